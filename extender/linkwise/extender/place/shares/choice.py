"""Chooses the shares of one node for a pod, container by container.

A container that asks for one share gets it where others are in use already, so that fewest GPUs
are opened. Several shares are on different GPUs, between which bandwidth counts, or on one, as
`linkwise.dev/share` says; if it says nothing, on as many as possible, and parts that reach each
other within their GPU on as few as possible. Among equal choices that count opens GPUs, the one is
taken whose GPUs later pods miss least.

Nodes differ in ids, and mostly not in how many shares of each GPU are free. So the search knows
counts only, and its result serves all nodes with equal ones. It finds a choice if there is one,
with two exceptions. For a pod with several such containers and a required link, it tries of each
set of GPUs one way only to spread a container's shares. And it ends after some hundred steps: to
put dozens of containers onto GPUs that they fill to the last share is a puzzle of its own.

A call of kube-scheduler names thousands of nodes, which may all differ, while it holds the core. So
all its searches together have an `Effort`. What it leaves is found by the next call about the pod:
the book of a node remembers what was found, until a pod comes or goes there.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.state.cache.machine_kind import ENOUGH, Floats, MachineKind
from linkwise.extender.state.cache.node_table import Ints, popcount
from linkwise.extender.state.cache.shares.book import Place, ShareBook
from linkwise.pods.annotations import Sharing
from linkwise.pods.requirement import TopologyRequirement
from linkwise.topology.annotations.plan import PlannedShares
from linkwise.topology.demand import PodDemand, Role, split
from linkwise.topology.machine.model import LinkClass
from linkwise.topology.vendors.known import vendor_of

T = TypeVar("T")
Rank = tuple[float, int, float, float, int]
_MOST_CHOICES = 64  # remembered for each node
# Steps of one search, and of all searches of one call. A step takes some 0.1 ms. Most pods take as
# many as they have containers.
_MOST_STEPS, _STEPS_A_CALL = 500, 120
_SETS_A_STEP = 1000  # so many sets of GPUs take as long as a step


class Effort:
    """How many steps the searches of one call may still make; each may end what it has begun."""

    def __init__(self, steps: float = _STEPS_A_CALL) -> None:
        self._left = steps

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def spend(self, steps: float) -> None:
        self._left -= steps


class UnsoughtError(Exception):
    """The effort was spent before this node's turn. Not a failure: the next call goes on."""


@dataclass(frozen=True, slots=True)
class ShareRequest:
    """What a pod takes of each resource, and on which GPUs."""

    wants: tuple[tuple[str, PodDemand], ...]
    sharing: Sharing
    requirement: TopologyRequirement


@dataclass(frozen=True, slots=True)
class ShareChoice:
    """`quality` is the GB/s between the GPUs of the container that has least, or ENOUGH. `opened`
    counts the GPUs that no pod used before; `damage` is what later pods lose by them, in GB/s."""

    shares: tuple[PlannedShares, ...]
    quality: float
    opened: int
    damage: float
    left: int  # free shares of the same resources that stay

    def rank(self, lost_room: float) -> Rank:
        """Sorts the best choice first among nodes; *lost_room* is in GPUs."""
        return -self.quality, self.opened, lost_room, self.damage, self.left


def choose_shares(
    kind: MachineKind, book: ShareBook, request: ShareRequest, effort: Effort | None = None
) -> ShareChoice | None:
    """The shares for the pod; None if the node has none that suit. Made once for each book. Raises
    UnsoughtError if it is not known and the *effort* is spent; None is unlimited."""
    if effort is not None and effort.is_spent and request not in book.choices:
        raise UnsoughtError
    return remembered(book, request, lambda: _choose(kind, book, request, effort))


def remembered(book: ShareBook, key: Hashable, make: Callable[[], T]) -> T:
    """What *make* returned for *key*, which the book determines."""
    if key not in book.choices:
        if len(book.choices) >= _MOST_CHOICES:
            book.choices.clear()
        book.choices[key] = make()
    found: T = book.choices[key]
    return found


def suitable(kind: MachineKind, place: Place, requirement: TopologyRequirement) -> bool:
    """Whether the part has what is required of each GPU. A replica has all memory of its GPU,
    shared with the others."""
    gpu = kind.machine.gpus[place.gpu]
    mig = place.part.mig
    memory_mib = gpu.memory_mib if mig is None else mig.memory_mib
    return requirement.hardware.accepts(gpu.model, memory_mib)


@dataclass(frozen=True, slots=True)
class _Need:
    """So many shares of one resource, for one container; for what init containers take beyond the
    others, the name is empty."""

    resource: str
    container: str
    size: int
    sharing: Sharing


@dataclass(frozen=True, slots=True)
class ShareRoom:
    """How many shares of one resource are free on each GPU that has some. MIG devices are *apart*:
    they reach each other neither by NVLink nor over PCIe, not even on one GPU. Partitions of AMD's
    GPUs are *packed*: within one GPU they are far closer than any link to another is."""

    resource: str
    apart: bool
    free: tuple[tuple[int, int], ...]  # GPU and count, ascending
    packed: bool = False


@dataclass(frozen=True, slots=True)
class _State:
    """What is left after the choice so far, and what that costs."""

    free: Mapping[str, Mapping[int, int]]  # resource -> GPU -> count
    opened: int
    quality: float = ENOUGH
    new: int = 0  # bitmask of the GPUs that the choice opens


Counts = tuple[tuple[int, int], ...]
"""GPU and how many of its shares"""


@dataclass(frozen=True, slots=True)
class FoundShares:
    """What each need gets, in the order of `_needs_of`."""

    counts: tuple[Counts, ...]
    quality: float
    opened: int
    damage: float
    left: int


class _Search:
    def __init__(
        self,
        kind: MachineKind,
        requirement: TopologyRequirement,
        rooms: Sequence[ShareRoom],
        idle: int,
    ) -> None:
        self._kind, self._requirement, self._idle = kind, requirement, idle
        self._apart = {room.resource: room.apart for room in rooms}
        self._packed = {room.resource: room.packed for room in rooms}
        self._in_vain: set[Hashable] = set()  # states from which the rest finds no place
        self._calls, self.steps = 0, 0.0

    def find(self, needs: Sequence[_Need], state: _State) -> tuple[_State, list[Counts]] | None:
        """What each of *needs* gets, and the state after that. A pod may have a thousand
        containers, so nothing recurses."""
        taken: list[tuple[_State, Counts]] = []
        ways = [self._ways(needs, 0, state)]
        while len(taken) < len(needs):
            if self.steps > _MOST_STEPS:
                return None
            step = next(ways[-1], None)
            if step is not None:
                taken.append(step)
                ways.append(self._ways(needs, len(taken), step[0]))
                continue
            ways.pop()
            if not taken:
                return None
            taken.pop()
        return taken[-1][0] if taken else state, [counts for _, counts in taken]

    def damage(self, new: int) -> float:
        """What later pods lose by the GPUs that are opened, in GB/s."""
        return float(self._damages(np.array([new]))[0])

    def _damages(self, news: Ints) -> Floats:
        return self._kind.damages(self._idle, news & self._idle)

    def _ways(
        self, needs: Sequence[_Need], at: int, state: _State
    ) -> Iterator[tuple[_State, Counts]]:
        """What the need *at* may get, with the state after it, the best first."""
        if at == len(needs):
            return
        tried = at, self._essence(state)
        if tried in self._in_vain:
            return
        self._calls += 1
        self.steps += 1
        goes_straight = 0 < at == self._calls - 1
        if not (goes_straight or _may_spread(needs[at:], state)):
            return
        for gpus in self._sets(needs[at], state):
            yield self._take(needs[at], state, gpus)
        self._in_vain.add(tried)

    def _essence(self, state: _State) -> Hashable:
        """Equal for states that have room for the same needs. Without a required link it does not
        matter which GPU has how many shares."""
        if self._requirement.require is LinkClass.SYS:
            return tuple((name, *sorted(free.values())) for name, free in state.free.items())
        return tuple((name, *sorted(free.items())) for name, free in state.free.items())

    def _sets(self, need: _Need, state: _State) -> Iterator[tuple[int, ...]]:
        """The sets of GPUs that can give the shares, the best first: as many GPUs as possible, or
        as few, if the pod does not say how many."""
        free = state.free[need.resource]
        sizes: Sequence[int] = range(min(need.size, len(free)), 0, -1)
        if self._packed[need.resource]:
            sizes = sizes[::-1]
        if need.sharing is Sharing.SPREAD:
            sizes = (need.size,)
        elif need.sharing is Sharing.PACK:
            sizes = (1,)
        gpus = tuple(sorted(free))
        counts = np.array([free[gpu] for gpu in gpus], dtype=np.int64)
        for size in sizes:
            if size <= len(gpus):
                yield from self._ranked(need, state, _combinations(gpus, size), counts)

    def _ranked(
        self, need: _Need, state: _State, sets: "_Combinations", counts: Ints
    ) -> Iterator[tuple[int, ...]]:
        """Those of *sets* that can give the shares, the best first. *counts*: of each GPU."""
        self.steps += len(sets.masks) / _SETS_A_STEP
        there = counts[sets.places].sum(axis=1)
        may = there >= need.size
        require = self._requirement.require
        if require is not LinkClass.SYS and need.size > 1:
            may &= not self._apart[need.resource]
            may &= self._kind.table.ring_classes[sets.masks] >= require
        rows = np.flatnonzero(may)
        masks = sets.masks[rows]
        new = masks & ~state.opened
        lost = np.where(new, self._damages(state.new | new), 0.0)
        best = (there[rows], lost, popcount(new), -self._qualities(need, masks))
        for row in rows[np.lexsort(best)].tolist():
            yield tuple(sets.gpus[row])

    def _quality(self, need: _Need, gpus: int) -> float:
        return float(self._qualities(need, np.array([gpus]))[0])

    def _qualities(self, need: _Need, sets: Ints) -> Floats:
        """[sets] GB/s, or ENOUGH."""
        if self._apart[need.resource]:
            found = np.zeros(len(sets))
        else:
            found = self._kind.table.values[sets].astype(np.float64)
            prefer = self._requirement.prefer
            if prefer is not LinkClass.NVLINK:
                found[self._kind.table.ring_classes[sets] >= prefer] = ENOUGH
        found[popcount(sets) == 1] = ENOUGH
        return found

    def _take(self, need: _Need, state: _State, gpus: tuple[int, ...]) -> tuple[_State, Counts]:
        free = dict(state.free[need.resource])
        counts = tuple(zip(gpus, _evenly(need.size, [free[gpu] for gpu in gpus]), strict=True))
        for gpu, count in counts:
            free[gpu] -= count
            if not free[gpu]:
                del free[gpu]
        mask = _mask(gpus)
        after = replace(
            state,
            free={**state.free, need.resource: free},
            opened=state.opened | mask,
            quality=min(state.quality, self._quality(need, mask)),
            new=state.new | mask & ~state.opened,
        )
        return after, counts


@dataclass(frozen=True, slots=True)
class _Combinations:
    """All sets of so many of some GPUs: [sets] the GPUs, their places among those, and the
    bitmask."""

    gpus: Sequence[tuple[int, ...]]
    places: NDArray[np.int8]
    masks: Ints


@lru_cache(maxsize=64)
def _combinations(gpus: tuple[int, ...], size: int) -> _Combinations:
    sets = [*combinations(gpus, size)]
    places = np.array([*combinations(range(len(gpus)), size)], dtype=np.int8)
    return _Combinations(sets, places, np.array([*map(_mask, sets)], dtype=np.int64))


def _may_spread(needs: Sequence[_Need], state: _State) -> bool:
    """Whether there are enough GPUs for those *needs* that are to be on different ones. The largest
    k of them get at most k shares of each GPU (Gale and Ryser's condition)."""
    wanted: dict[str, int] = {}
    counts: dict[str, int] = {}
    for number, need in enumerate(needs):
        if need.sharing is not Sharing.SPREAD:
            continue
        name = need.resource
        wanted[name], counts[name] = wanted.get(name, 0) + need.size, counts.get(name, 0) + 1
        if number + 1 < len(needs) and needs[number + 1].size == need.size:
            continue
        if wanted[name] > sum(min(free, counts[name]) for free in state.free[name].values()):
            return False
    return True


@lru_cache(maxsize=65536)
def search(
    kind: MachineKind, request: ShareRequest, rooms: tuple[ShareRoom, ...], idle: int, opened: int
) -> tuple[FoundShares | None, float]:
    """What was found, and how many steps that took."""
    trial = _Search(kind, request.requirement, rooms, idle)
    first = _State({room.resource: dict(room.free) for room in rooms}, opened)
    found = trial.find(_needs_of(request), first)
    if found is None:
        return None, trial.steps
    state, counts = found
    choice = FoundShares(
        counts=tuple(counts),
        quality=state.quality,
        opened=state.new.bit_count(),
        damage=trial.damage(state.new),
        left=sum(sum(free.values()) for free in state.free.values()),
    )
    return choice, trial.steps


@lru_cache(maxsize=1024)
def _needs_of(request: ShareRequest) -> tuple[_Need, ...]:
    """The largest container first: it has the fewest places."""
    needs = [
        _Need(resource, container.name, container.gpus, request.sharing)
        for resource, demand in request.wants
        for container in demand.containers
        if container.role is not Role.INIT
    ]
    needs.sort(key=lambda need: -need.size)
    for resource, demand in request.wants:
        beyond = demand.gpus - sum(need.size for need in needs if need.resource == resource)
        if beyond > 0:  # init containers take more than those after them
            needs.append(_Need(resource, "", beyond, Sharing.EITHER))
    return tuple(needs)


def _choose(
    kind: MachineKind, book: ShareBook, request: ShareRequest, effort: Effort | None
) -> ShareChoice | None:
    rooms: list[ShareRoom] = []
    ids: dict[str, Mapping[int, list[str]]] = {}
    for resource, demand in request.wants:
        places = [p for p in book.of(resource) if suitable(kind, p, request.requirement)]
        ids[resource] = _by_gpu(book, places)
        free = tuple(sorted((gpu, len(of)) for gpu, of in ids[resource].items()))
        if sum(count for _, count in free) < demand.gpus:
            return None
        parts = any(place.part.mig is not None for place in places)
        linked = vendor_of(kind.machine).parts_linked
        rooms.append(ShareRoom(resource, parts and not linked, free, packed=parts and linked))
    idle = book.divided & ~book.opened
    known = search.cache_info().misses
    found, steps = search(kind, request, tuple(rooms), idle, book.opened)
    if effort is not None:
        is_new = search.cache_info().misses > known
        effort.spend(steps if is_new else 0.0)
    if found is None:
        return None
    given: dict[tuple[str, str], list[str]] = {}
    for need, counts in zip(_needs_of(request), found.counts, strict=True):
        mine = given.setdefault((need.resource, need.container), [])
        for gpu, count in counts:
            mine += ids[need.resource][gpu][:count]
            del ids[need.resource][gpu][:count]
    planned = [
        PlannedShares(container, resource, each)
        for resource, demand in request.wants
        for container, each in split(demand, _in_order(resource, demand, given)).items()
    ]
    return ShareChoice(tuple(planned), found.quality, found.opened, found.damage, found.left)


def _in_order(
    resource: str, demand: PodDemand, given: Mapping[tuple[str, str], Sequence[str]]
) -> list[str]:
    """The ids in the order in which the kubelet hands them to the containers."""
    names = [c.name for c in demand.containers if c.role is not Role.INIT]
    return [each for name in (*names, "") for each in given.get((resource, name), ())]


def _by_gpu(book: ShareBook, places: Sequence[Place]) -> dict[int, list[str]]:
    """GPU -> the ids of free shares, those of the fullest part first; GPUs without any left out."""
    parts: dict[int, list[tuple[str, ...]]] = {}
    for place in places:
        if ids := book.free_ids(place.part):
            parts.setdefault(place.gpu, []).append(ids)
    return {
        gpu: [each for ids in sorted(of_parts, key=len) for each in ids]
        for gpu, of_parts in parts.items()
    }


def _evenly(total: int, room: Sequence[int]) -> list[int]:
    """How many of *total* each place takes, at least one each, none more than it has room for; the
    sum of *room* suffices."""
    counts = [1] * len(room)
    for _ in range(total - len(room)):
        place = min(
            (place for place in range(len(room)) if counts[place] < room[place]),
            key=lambda place: (counts[place], place),
        )
        counts[place] += 1
    return counts


def _mask(gpus: Sequence[int]) -> int:
    return sum(1 << gpu for gpu in gpus)
