"""The best that a gang, or a pod, could have: every way to deal its members out over the nodes.

It shares no code with the search: a set's bandwidth comes from `linkwise.topology.sets.bandwidth`,
which is the definition, and what joins nodes is worked out here again from docs/topology.md.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations

from linkwise.topology.machine.hardware import facts_of_gpu
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.sets.bandwidth import bandwidth, ring_class

CLIQUE, LEAF, ZONE = "clique", "leaf", "zone"
SHARES = {LEAF: 0.9, ZONE: 0.5}  # of the NICs' bandwidth where a gang shares no domain there


@dataclass(frozen=True)
class Place:
    """A node: its machine, free GPUs (bitmask), CPUs that are left, its domains, and the GPUs that
    the gang has there already."""

    name: str
    machine: Machine
    free: int
    cpus: int
    domains: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""  # equal for equal machines
    beside: int = 0


@dataclass(frozen=True)
class Member:
    gpus: int
    cpus: int = 1


_VALUES: dict[str, dict[int, float]] = {}  # GB/s by kind and set
_CLASSES: dict[str, dict[int, LinkClass]] = {}
Dealt = Mapping[str, int]
"""All GPUs of the gang on each node, as a bitmask."""


def best_worth(
    places: Sequence[Place], members: Sequence[Member], require: LinkClass = LinkClass.SYS
) -> float | None:
    """GB/s of the best communicator; None where the members have no room. *require*: of each
    member's own GPUs."""
    mates = {place.name for place in places if place.beside}
    found = [
        worth
        for share, fabric, among in scopes(places)
        if mates <= {place.name for place in among}
        for worth in [_best(among, members, share, fabric, require)]
        if worth is not None
    ]
    return max(found, default=None)


def worth_of(places: Sequence[Place], dealt: Dealt) -> float:
    """GB/s of a communicator with these GPUs."""
    used = [place for place in places if dealt.get(place.name)]
    if len(used) == 1:
        return inside(used[0], dealt[used[0].name])
    share, fabric = joined_by(used, {level for place in places for level in place.domains})
    return min(of_node(place, dealt[place.name], share, fabric) for place in used)


def joined_by(used: Sequence[Place], known: Set[str]) -> tuple[float, bool]:
    """The share of the NICs' bandwidth, and whether NVLinks join these nodes; *known* are the
    levels that some node is in."""
    share = 1.0
    for level in (level for level in (CLIQUE, LEAF, ZONE) if level in known):
        domains = {place.domains.get(level, "") for place in used}
        if len(domains) == 1 and "" not in domains:
            return (1.0, True) if level == CLIQUE else (share, False)
        share *= SHARES.get(level, 1.0)
    return share, False


def domain_counts(used: Sequence[Place], places: Sequence[Place]) -> tuple[int, ...]:
    """How many domains these nodes are in at each level nearer than the one that they share, the
    widest first. A node without a label is in a domain of its own."""
    counts: tuple[int, ...] = ()
    for level in (CLIQUE, LEAF, ZONE):
        if not any(level in place.domains for place in places):
            continue
        domains = {place.domains.get(level, place.name) for place in used}
        if len(domains) == 1 and all(level in place.domains for place in used):
            break
        counts = (len(domains), *counts)
    return counts


def has_room(
    places: Sequence[Place],
    members: Sequence[Member],
    share: float,
    fabric: bool,
    require: LinkClass,
) -> bool:
    """Whether the members fit on these nodes, which are joined so."""
    return _best(places, members, share, fabric, require) is not None


def scopes(places: Sequence[Place]) -> Iterator[tuple[float | None, bool, Sequence[Place]]]:
    """Each node alone, then each domain, then all; with how its nodes are joined."""
    for place in places:
        yield None, False, [place]
    known = {level for place in places for level in place.domains}
    share = 1.0
    for level in (CLIQUE, LEAF, ZONE):
        if level not in known:
            continue
        for domain in {place.domains[level] for place in places if level in place.domains}:
            inside_it = [place for place in places if place.domains.get(level) == domain]
            yield (1.0, True, inside_it) if level == CLIQUE else (share, False, inside_it)
        share *= SHARES.get(level, 1.0)
    yield share, False, places


def _best(
    among: Sequence[Place],
    members: Sequence[Member],
    share: float | None,
    fabric: bool,
    require: LinkClass,
) -> float | None:
    """Members of one kind are interchangeable, so only how many of each a node gets counts."""
    kinds = sorted(set(members), key=lambda kind: (-kind.gpus, kind.cpus))
    wanted = tuple(members.count(kind) for kind in kinds)

    @cache
    def most(number: int, left: tuple[int, ...]) -> float | None:
        if number == len(among):
            return None if any(left) else float("inf")
        best: float | None = None
        for load in loads(among[number], kinds, left):
            sizes = tuple(
                kind.gpus for kind, count in zip(kinds, load, strict=True) for _ in range(count)
            )
            here = of_sizes(among[number], sizes, share, fabric, require)
            if here is None or (best is not None and here <= best):
                continue
            rest = tuple(have - take for have, take in zip(left, load, strict=True))
            others = most(number + 1, rest)
            if others is not None and (best is None or min(here, others) > best):
                best = min(here, others)
        return best

    return most(0, wanted)


def loads(
    place: Place, kinds: Sequence[Member], left: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    def deal(number: int, gpus: int, cpus: int) -> Iterator[tuple[int, ...]]:
        if number == len(kinds):
            yield ()
            return
        kind = kinds[number]
        for count in range(left[number] + 1):
            if count * kind.gpus <= gpus and count * kind.cpus <= cpus:
                rest = deal(number + 1, gpus - count * kind.gpus, cpus - count * kind.cpus)
                yield from ((count, *others) for others in rest)

    return deal(0, place.free.bit_count(), place.cpus)


def inside(place: Place, gpus: int) -> float:
    known = _VALUES.setdefault(place.kind, {})
    if gpus not in known:
        known[gpus] = bandwidth(place.machine, gpus)
    return known[gpus]


def of_node(place: Place, gpus: int, share: float, fabric: bool) -> float:
    between = network(place.machine, gpus) * share
    if fabric:
        between = max(between, nvlinks(place.machine, gpus))
    return min(inside(place, gpus), between)


def of_sizes(
    place: Place, sizes: tuple[int, ...], share: float | None, fabric: bool, require: LinkClass
) -> float | None:
    """The best of all sets that can be cut into sets of these sizes; *share* None: there is no
    other node. None: there is no such set."""
    free = [position for position in range(len(place.machine.gpus)) if place.free >> position & 1]
    found = []
    for some in combinations(free, sum(sizes)):
        gpus = sum(1 << position for position in some)
        if require is LinkClass.SYS or _can_be_cut(place, gpus, sizes, require):
            all_of_them = gpus | place.beside
            if not all_of_them:
                return float("inf")
            if share is None:
                found.append(inside(place, all_of_them))
            else:
                found.append(of_node(place, all_of_them, share, fabric))
    return max(found, default=None)


def _can_be_cut(place: Place, gpus: int, sizes: tuple[int, ...], require: LinkClass) -> bool:
    if not sizes:
        return True
    positions = [p for p in range(len(place.machine.gpus)) if gpus >> p & 1]
    for some in combinations(positions, sizes[0]):
        part = sum(1 << position for position in some)
        if _ring_class(place, part) >= require and _can_be_cut(
            place, gpus & ~part, sizes[1:], require
        ):
            return True
    return False


def _ring_class(place: Place, gpus: int) -> LinkClass:
    known = _CLASSES.setdefault(place.kind, {})
    if gpus not in known:
        known[gpus] = ring_class(place.machine, gpus)
    return known[gpus]


def network(machine: Machine, gpus: int) -> float:
    """What the NICs carry from these GPUs, and no more than the GPUs' slots do."""
    used = [position for position in range(len(machine.gpus)) if gpus >> position & 1]
    slots = sum(facts_of_gpu(machine.gpus[position]).pcie_gbytes_per_s for position in used)
    if not machine.nics:
        return max(facts_of_gpu(machine.gpus[position]).pcie_gbytes_per_s for position in used)
    paths = 0.0
    for nic in machine.nics:
        paths += max(_path(machine, position, nic.closeness[position]) for position in used)
    return min(slots, paths)


def _path(machine: Machine, position: int, closeness: LinkClass) -> float:
    facts = facts_of_gpu(machine.gpus[position])
    if closeness >= LinkClass.PXB:
        return facts.pcie_gbytes_per_s
    if closeness >= LinkClass.NODE:
        return facts.pcie_gbytes_per_s / 1.2
    return min(facts.pcie_gbytes_per_s / 1.2, facts.inter_socket_gbytes_per_s)


def nvlinks(machine: Machine, gpus: int) -> float:
    """What the slowest of these GPUs sends into an NVLink fabric between machines."""
    speeds = []
    for position, gpu in enumerate(machine.gpus):
        if gpus >> position & 1:
            links = [
                machine.link(position, other)
                for other in range(len(machine.gpus))
                if other != position
            ]
            into_switch = max((link.nvlinks for link in links if link.through_switch), default=0)
            speeds.append(into_switch * facts_of_gpu(gpu).nvlink_gbytes_per_s)
    return min(speeds)
