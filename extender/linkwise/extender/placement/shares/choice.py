"""Chooses the shares of one node for a pod, container by container.

A container that asks for one share gets it where others are in use already, so that fewest GPUs
are opened. Several shares are on different GPUs, between which bandwidth counts, or on one, as
`linkwise.dev/share` says. Among equal choices that count opens GPUs, the one is taken whose GPUs
later pods miss least.

Nodes differ in ids, and mostly not in how many shares of each GPU are free. So the search knows
counts only, and its result serves all nodes with equal ones. It finds a choice if there is one. The
only exception is a pod with several such containers and a required link: of each set of GPUs it
tries one way only to spread a container's shares.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations

from linkwise.extender.api.annotations import Sharing, TopologyRequirement, is_model
from linkwise.extender.cache.machine_kind import ENOUGH, MachineKind
from linkwise.extender.cache.shares.book import Place, ShareBook
from linkwise.topology.annotations.plan import PlannedShares
from linkwise.topology.demand import PodDemand, Role, split
from linkwise.topology.machine.model import LinkClass

_MOST_CHOICES = 64  # remembered for each node
_MOST_STEPS = 20_000  # of one search; a pod of a few containers takes as many steps as it has


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

    @property
    def rank(self) -> tuple[float, int, float, int]:
        """Sorts the best choice first, on one node and among nodes."""
        return -self.quality, self.opened, self.damage, self.left


def choose_shares(kind: MachineKind, book: ShareBook, request: ShareRequest) -> ShareChoice | None:
    """The shares for the pod; None if the node has none that suit. Made once for each book."""
    if request not in book.choices:
        if len(book.choices) >= _MOST_CHOICES:
            book.choices.clear()
        book.choices[request] = _choose(kind, book, request)
    found = book.choices[request]
    assert found is None or isinstance(found, ShareChoice)
    return found


def suitable(kind: MachineKind, place: Place, requirement: TopologyRequirement) -> bool:
    """Whether the part has the required model and memory. A replica has all memory of its GPU,
    shared with the others."""
    gpu = kind.machine.gpus[place.gpu]
    mig = place.part.mig
    memory_mib = gpu.memory_mib if mig is None else mig.memory_mib
    models = requirement.models
    return memory_mib >= requirement.memory_mib and (
        not models or any(is_model(gpu.model, model) for model in models)
    )


@dataclass(frozen=True, slots=True)
class _Need:
    """So many shares of one resource, for one container; for what init containers take beyond the
    others, the name is empty."""

    resource: str
    container: str
    size: int
    sharing: Sharing


@dataclass(frozen=True, slots=True)
class _Room:
    """How many shares of one resource are free on each GPU that has some. MIG devices reach each
    other neither by NVLink nor over PCIe, not even on one GPU."""

    resource: str
    mig: bool
    free: tuple[tuple[int, int], ...]  # GPU and count, ascending


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
class _Found:
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
        rooms: Sequence[_Room],
        idle: int,
    ) -> None:
        self._kind, self._requirement, self._idle = kind, requirement, idle
        self._mig = {room.resource: room.mig for room in rooms}
        self._steps = 0

    def find(self, needs: Sequence[_Need], state: _State) -> tuple[_State, list[Counts]] | None:
        """What each of *needs* gets, and the state after that."""
        if not needs:
            return state, []
        self._steps += 1
        if self._steps > _MOST_STEPS:
            return None
        for gpus in self._sets(needs[0], state):
            after, counts = self._take(needs[0], state, gpus)
            rest = self.find(needs[1:], after)
            if rest is not None:
                return rest[0], [counts, *rest[1]]
        return None

    def damage(self, new: int) -> float:
        """What later pods lose by the GPUs that are opened, in GB/s."""
        return self._kind.damage(self._idle, new & self._idle) if new else 0.0

    def _sets(self, need: _Need, state: _State) -> Iterator[tuple[int, ...]]:
        """The sets of GPUs that can give the shares, the best first: as many GPUs as possible, if
        the pod does not say how many."""
        free = state.free[need.resource]
        sizes: Sequence[int] = range(min(need.size, len(free)), 0, -1)
        if need.sharing is Sharing.SPREAD:
            sizes = (need.size,)
        elif need.sharing is Sharing.PACK:
            sizes = (1,)
        for size in sizes:
            sets = (
                gpus
                for gpus in combinations(sorted(free), size)
                if sum(free[gpu] for gpu in gpus) >= need.size and self._linked(need, _mask(gpus))
            )
            yield from sorted(sets, key=lambda gpus: self._rank(need, state, gpus))

    def _linked(self, need: _Need, gpus: int) -> bool:
        require = self._requirement.require
        if require is LinkClass.SYS or need.size == 1:
            return True
        return not self._mig[need.resource] and bool(self._kind.table.ring_classes[gpus] >= require)

    def _rank(
        self, need: _Need, state: _State, gpus: tuple[int, ...]
    ) -> tuple[float, int, float, int, tuple[int, ...]]:
        mask = _mask(gpus)
        new = mask & ~state.opened
        lost = self.damage(state.new | new) if new else 0.0
        left = sum(state.free[need.resource][gpu] for gpu in gpus)
        return -self._quality(need, mask), new.bit_count(), lost, left, gpus

    def _quality(self, need: _Need, gpus: int) -> float:
        if gpus.bit_count() == 1:
            return ENOUGH
        if self._mig[need.resource]:
            return 0.0
        prefer = self._requirement.prefer
        if prefer is not LinkClass.NVLINK and self._kind.table.ring_classes[gpus] >= prefer:
            return ENOUGH
        return float(self._kind.table.values[gpus])

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


@lru_cache(maxsize=65536)
def _search(
    kind: MachineKind, request: ShareRequest, rooms: tuple[_Room, ...], idle: int, opened: int
) -> _Found | None:
    search = _Search(kind, request.requirement, rooms, idle)
    first = _State({room.resource: dict(room.free) for room in rooms}, opened)
    found = search.find(_needs_of(request), first)
    if found is None:
        return None
    state, counts = found
    return _Found(
        counts=tuple(counts),
        quality=state.quality,
        opened=state.new.bit_count(),
        damage=search.damage(state.new),
        left=sum(sum(free.values()) for free in state.free.values()),
    )


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


def _choose(kind: MachineKind, book: ShareBook, request: ShareRequest) -> ShareChoice | None:
    rooms: list[_Room] = []
    ids: dict[str, Mapping[int, list[str]]] = {}
    for resource, demand in request.wants:
        places = [p for p in book.of(resource) if suitable(kind, p, request.requirement)]
        ids[resource] = _by_gpu(book, places)
        free = tuple(sorted((gpu, len(of)) for gpu, of in ids[resource].items()))
        if sum(count for _, count in free) < demand.gpus:
            return None
        rooms.append(_Room(resource, any(p.part.mig is not None for p in places), free))
    idle = book.divided & ~book.opened
    found = _search(kind, request, tuple(rooms), idle, book.opened)
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
