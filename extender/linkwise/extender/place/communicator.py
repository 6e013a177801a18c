"""The worth of a gang's GPUs as one communicator: the estimated bandwidth of an all-reduce.

Inside a node, the ring through all the members' GPUs there determines it. Between nodes, the
bandwidth from the GPUs of each node to the others does. The slowest node counts.
docs/topology.md has the formulas and their sources.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_

import numpy as np

from linkwise.extender.state.cache.machine_kind import ENOUGH, Floats, GpuRequest, MachineKind
from linkwise.extender.state.cache.node_table import Ints
from linkwise.pods.spans import FABRICS, ZONE
from linkwise.topology.machine.hardware import facts_of_gpu
from linkwise.topology.machine.model import LinkClass
from linkwise.topology.sets import subsets
from linkwise.topology.sets.bandwidth import sharp_gain
from linkwise.topology.sets.criteria import AFTER_DAMAGE, Question, best_of, most
from linkwise.topology.while_alive import while_alive

# The share of the NICs' bandwidth that is left past each level that the nodes do not share. An
# assumption: no label says how far a network is oversubscribed (docs/topology.md).
_PAST_A_SWITCH, _PAST_A_ZONE = 0.9, 0.5


@dataclass(frozen=True, slots=True)
class Reach:
    """A *share* of the NICs' bandwidth, or an NVLink *fabric*. *apart*: each member is a
    communicator of its own, so neither counts."""

    share: float = 1.0
    fabric: bool = False
    apart: bool = False


ONE_NODE = Reach(share=float("inf"))
APART = Reach(apart=True)


def reach_of(levels: Sequence[str], shared: int) -> Reach:
    """The reach of nodes whose nearest shared level is `levels[shared]`; len(levels): they share
    none."""
    if shared < len(levels) and levels[shared] in FABRICS:
        return Reach(fabric=True)
    share = 1.0
    for key in levels[:shared]:
        if key not in FABRICS:
            share *= _PAST_A_ZONE if key == ZONE else _PAST_A_SWITCH
    return Reach(round(share, 6))


_MOST_ARRAYS = 256  # cached; an array for 16 GPUs takes half a MiB
_MOST_MASKS = 8192  # remembered at once, of the 65,536 of 16 GPUs
_AT_ONCE = 64  # masks; with 16 GPUs, 12,870 covers for each
TOLERANCE = 0.05
"""Estimates that differ by less than this share of the best count as equal."""


@while_alive(_MOST_ARRAYS)
def worths(kind: MachineKind, prefer: LinkClass, reach: Reach) -> Floats:
    """[2^n] GB/s that a node allows the communicator, by bitmask of the gang's GPUs there.

    With a preferred link below NVLink, a set with that link or a closer one is worth ENOUGH, as in
    `MachineKind.quality`.
    """
    table = kind.table
    if reach.apart:
        return np.full(1 << table.count, ENOUGH)
    inside = table.values if reach == ONE_NODE else table.ring_values
    if prefer is not LinkClass.NVLINK:
        inside = np.where(table.ring_classes >= prefer, ENOUGH, inside)
    between = kind.network * reach.share if reach.share < float("inf") else np.inf
    if reach.fabric:
        between = np.maximum(between, kind.fabric)
    return np.minimum(inside, between)


def reduced_in_fabric(kind: MachineKind, gpus: int, count: int) -> float:
    """The GB/s of *count* GPUs in a fabric, these of one node among them, if its NVSwitches reduce.

    All placements of a gang in one fabric gain as much, so the search need not count them.
    """
    members = [gpu for p, gpu in enumerate(kind.machine.gpus) if gpus >> p & 1]
    gain = min(sharp_gain(facts_of_gpu(gpu), count) for gpu in members)
    return round(float(kind.fabric[gpus]) * gain, 4)


@while_alive(_MOST_ARRAYS)
def own_rings(kind: MachineKind, size: int, require: LinkClass, prefer: LinkClass) -> Floats:
    """[2^n] GB/s of the slowest member's ring, by bitmask of GPUs that are cut into sets of *size*.

    ENOUGH if the sets have the preferred link; -inf if no cut has sets with the link *require* that
    the kubelet admits.
    """
    table = kind.table
    if size == 1 and kind.alignment is None and not kind.machine.partitions:
        return np.full(1 << table.count, ENOUGH)
    values = table.values
    if prefer is not LinkClass.NVLINK:
        values = np.where(table.ring_classes >= prefer, ENOUGH, values)
    if size == 1:
        values = np.full(len(values), ENOUGH)
    usable = (subsets.sizes(table.count) == size) & (table.ring_classes >= require)
    usable &= kind.aligned(size) & table.may_be
    return subsets.best_slowest_parts(np.where(usable, values, -np.inf), size)


@dataclass(frozen=True, slots=True)
class Standard:
    """The minimum for a placement, in GB/s: *worth* of the communicator, *own* ring of each
    member."""

    worth: float = -np.inf
    own: float = -np.inf


Choice = tuple[int, float, float]
"""Members on a node, GB/s that the node then allows the communicator, and GB/s of the slowest
member's own ring."""


class Choices:
    """What 1, 2 … *most* members can have on nodes of one kind where the gang has the GPUs *beside*
    already, for masks of free GPUs. Each mask is judged once, and all new masks together: a busy
    cluster has hundreds."""

    def __init__(
        self, kind: MachineKind, request: GpuRequest, beside: int, most: int, reach: Reach
    ) -> None:
        self._kind, self._request, self._reach = kind, request, reach
        self._beside, self._most = beside, most
        self._known: dict[int, tuple[Choice, ...]] = {}

    def within(self, free: Sequence[int]) -> list[tuple[Choice, ...]]:
        """For each of these masks and each number of members, the choices that no other beats in
        both values."""
        if len(self._known) > _MOST_MASKS:
            self._known = {}  # not cleared: a search without the lock may be reading the old one
        known = self._known
        new = dict.fromkeys(mask for mask in free if mask not in known)
        if new:
            known.update(self._judged([*new]))
        return [known[mask] for mask in free]

    def _judged(self, free: Sequence[int]) -> dict[int, tuple[Choice, ...]]:
        kind, request = self._kind, self._request
        worth_of = worths(kind, request.requirement.prefer, self._reach)
        found: dict[int, list[Choice]] = {mask: [] for mask in free}
        at_once = _AT_ONCE if request.simple else 1  # other pods have one cover for each mask
        for start in range(0, len(free), at_once):
            masks = free[start : start + at_once]
            for count in range(1, self._most + 1):
                reached = [kind.reach(request, mask, count) for mask in masks]
                covers, own = _covers(kind, request, reduce(or_, reached), count)
                if not len(covers):
                    break
                worth = worth_of[covers | self._beside]
                best_first = np.lexsort((-own, -worth))
                covers, worth, own = covers[best_first], worth[best_first], own[best_first]
                of_place: dict[int, Choice] = {}  # one object for all masks: they are remembered
                for number, place in _unbeaten(covers, own, reached):
                    choice = of_place.get(place)
                    if choice is None:
                        choice = of_place[place] = (count, float(worth[place]), float(own[place]))
                    found[masks[number]].append(choice)
        return {mask: tuple(of_mask) for mask, of_mask in found.items()}


choices_of = lru_cache(maxsize=256)(Choices)


def _unbeaten(covers: Ints, own: Floats, masks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(index of a mask, index of a cover within it) for each cover that has a greater own ring than
    all covers before it within that mask."""
    numbers = np.arange(len(masks))
    free = np.array(masks, dtype=np.uint16)[:, np.newaxis]  # 16 bits: MAX_GPUS
    inside = covers.astype(np.uint16) & ~free == 0
    while inside.size:
        some = inside.any(axis=1)
        numbers, inside = numbers[some], inside[some]
        first = inside.argmax(axis=1)
        yield from zip(numbers.tolist(), first.tolist(), strict=True)
        inside &= own > own[first][:, np.newaxis]


@lru_cache(maxsize=16384)
def cover(
    kind: MachineKind,
    request: GpuRequest,
    free: int,
    beside: int,
    count: int,
    reach: Reach,
    standard: Standard,
) -> tuple[int, float]:
    """The GPUs of *count* members on a node that reach *standard*, and their damage: least damage,
    of those linked most closely, then by `AFTER_DAMAGE`, then lowest indices."""
    covers, own = _covers(kind, request, kind.reach(request, free, count), count)
    worth = worths(kind, request.requirement.prefer, reach)[covers | beside]
    covers = covers[(worth >= standard.worth) & (own >= standard.own)]
    covers = most(covers, kind.closeness(request, covers | beside))
    covers = most(covers, -kind.damages(free, covers))
    question = Question(kind.table, free, request.requirement.prefer)
    best = best_of(question, covers, AFTER_DAMAGE)
    return best, kind.damage(free, best)


@lru_cache(maxsize=16384)
def sets(kind: MachineKind, request: GpuRequest, gpus: int, count: int) -> tuple[int, ...]:
    """These GPUs, cut into the sets of *count* members. Consecutive sets are neighbours."""
    return kind.neighbours(_parts(kind, request, gpus, count))


def ways(
    kind: MachineKind, request: GpuRequest, free: int, count: int
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Ways to give *count* members sets of the *free* GPUs, with the slowest own ring of each way;
    the best ring first."""
    covers, own = _covers(kind, request, kind.reach(request, free, count), count)
    for place in np.argsort(-own, kind="stable").tolist():
        parts = _parts(kind, request, int(covers[place]), count)
        yield kind.neighbours(parts), float(own[place])


def _covers(kind: MachineKind, request: GpuRequest, free: int, count: int) -> tuple[Ints, Floats]:
    """The sets of GPUs that *count* members could have together, and the slowest own ring of each.
    Of the *free* GPUs, the kubelet would give all to so many members (`MachineKind.reach`)."""
    requirement = request.requirement
    allowed = free & kind.allowed(requirement)
    if not request.simple:  # a pod's containers divide its set; one good way is enough
        parts = kind.pack(request, free, count)
        if len(parts) < count:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        slowest = min(kind.quality(request, gpus) for gpus in parts)
        return np.array([sum(parts)]), np.array([slowest])
    total = count * request.size
    if total > allowed.bit_count():
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    covers = subsets.within(subsets.layer(kind.table.count, total), allowed)
    own = own_rings(kind, request.size, requirement.require, requirement.prefer)[covers]
    return covers[own > -np.inf], own[own > -np.inf]


def _parts(kind: MachineKind, request: GpuRequest, cover: int, count: int) -> tuple[int, ...]:
    """*cover* cut into the members' sets: the slowest as fast as possible, then the others."""
    if not request.simple:
        return kind.pack(request, cover, count)
    requirement, size = request.requirement, request.size
    own = own_rings(kind, size, requirement.require, requirement.prefer)
    table, slowest = kind.table, float(own[cover])
    found = []
    while cover:
        parts = subsets.within(subsets.layer(table.count, size), cover, cover & -cover)
        able = np.minimum(own[parts], own[cover ^ parts]) >= slowest
        parts = parts[able]
        part = int(parts[np.argmax(table.values[parts])])
        found.append(part)
        cover ^= part
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Share:
    """A gang's GPUs on one node, and the node's domain at each level (empty: none)."""

    kind: MachineKind
    gpus: int  # bitmask
    domains: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Estimate:
    """GB/s of an all-reduce: of each node's ring, between the nodes, and of all together, which is
    the minimum of these."""

    inside: tuple[float, ...]
    between: float | None  # None: there is one node
    together: float


def estimate(shares: Sequence[Share], levels: Sequence[str]) -> Estimate:
    """*levels* are those in which some node of the cluster has a domain, nearest first."""
    shared = next((n for n in range(len(levels)) if _is_shared(shares, n)), len(levels))
    return estimate_of([(share.kind, share.gpus) for share in shares], levels, shared)


def estimate_of(
    parts: Sequence[tuple[MachineKind, int]], levels: Sequence[str], shared: int
) -> Estimate:
    """*parts* has the GPUs (bitmask) of one node each. *shared* is the index of the nearest level
    at which all are in one domain; len(levels): none."""
    if len(parts) == 1:
        ((kind, gpus),) = parts
        alone = float(kind.table.values[gpus])
        return Estimate((alone,), None, alone)
    of_part = {part: float(part[0].table.ring_values[part[1]]) for part in set(parts)}
    inside = tuple(of_part[part] for part in parts)
    reach = reach_of(levels, shared)
    between = min(_between(*part, reach) for part in of_part)
    together = min(float(worths(kind, LinkClass.NVLINK, reach)[gpus]) for kind, gpus in of_part)
    if reach.fabric:
        count = sum(gpus.bit_count() for _, gpus in parts)
        reduced = min(reduced_in_fabric(*part, count) for part in of_part)
        between, together = max(between, reduced), max(together, reduced)
    return Estimate(inside, between, together)


def _is_shared(shares: Sequence[Share], level: int) -> bool:
    domains = {share.domains[level] for share in shares}
    return len(domains) == 1 and "" not in domains


def _between(kind: MachineKind, gpus: int, reach: Reach) -> float:
    through_nics = float(kind.network[gpus]) * reach.share
    return max(through_nics, float(kind.fabric[gpus])) if reach.fabric else through_nics


@dataclass(frozen=True, slots=True)
class Machines:
    """Idle machines of one kind."""

    kind: MachineKind
    allowed: int  # bitmask of the GPUs of each that the gang may use
    near: Reach  # between the machines that are nearest to each other


def ideal(machines: Iterable[Machines], members: Sequence[int]) -> float:
    """An upper bound on the GB/s of a communicator on *machines*: on one, or on as many as it
    needs. *members* has the number of GPUs of each member."""
    gpus, least = sum(members), min(members)
    found = (_on(each.kind, each.allowed, gpus, least, each.near) for each in machines)
    return max(found, default=0.0)


@while_alive(4096)
def _on(kind: MachineKind, allowed: int, gpus: int, least: int, near: Reach) -> float:
    masks = subsets.within(np.arange(1, 1 << kind.table.count), allowed)
    sizes = subsets.sizes(kind.table.count)[masks]
    on_one = worths(kind, LinkClass.NVLINK, ONE_NODE)[masks[sizes == gpus]]
    some = (sizes >= least) & (sizes < gpus)
    on_several = worths(kind, LinkClass.NVLINK, near)[masks[some]]
    reduced = [reduced_in_fabric(kind, mask, gpus) for mask in masks[some].tolist() if near.fabric]
    return float(max(on_one.max(initial=0.0), on_several.max(initial=0.0), *reduced))
