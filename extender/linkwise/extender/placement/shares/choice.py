"""Chooses the shares of one node for a pod, container by container.

A container that asks for one share gets it where others are in use already, so that fewest GPUs
are opened. Several shares are on different GPUs, between which bandwidth counts, or on one, as
`linkwise.dev/share` says. Among equal choices that count opens GPUs, the one is taken whose GPUs
later pods miss least.

The search finds a choice if there is one. The only exception is a pod with several such containers
and a required link: of each set of GPUs it tries one way only to spread a container's shares.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from linkwise.extender.api.annotations import Sharing, TopologyRequirement, is_model
from linkwise.extender.cache.machine_kind import ENOUGH, MachineKind
from linkwise.extender.cache.shares.book import Place, ShareBook
from linkwise.topology.annotations.plan import PlannedShares
from linkwise.topology.demand import PodDemand, Role, split
from linkwise.topology.machine.model import LinkClass

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
    """So many shares of one resource, for one container."""

    resource: str
    size: int
    sharing: Sharing


@dataclass(frozen=True, slots=True)
class _State:
    """The free shares of each GPU by resource, and what the choice so far costs."""

    free: Mapping[str, Mapping[int, tuple[str, ...]]]  # resource -> GPU -> ids, in order of use
    opened: int
    quality: float = ENOUGH
    new: int = 0  # bitmask of GPUs that the choice opens


class _Search:
    def __init__(self, kind: MachineKind, book: ShareBook, request: ShareRequest) -> None:
        self._kind, self._requirement = kind, request.requirement
        self._idle = 0
        for place in book.places:
            self._idle |= 1 << place.gpu
        self._idle &= ~book.opened
        self._mig: dict[str, bool] = {}
        self._steps = 0
        free: dict[str, Mapping[int, tuple[str, ...]]] = {}
        for resource, _ in request.wants:
            places = [p for p in book.of(resource) if suitable(kind, p, request.requirement)]
            self._mig[resource] = any(place.part.mig is not None for place in places)
            free[resource] = _by_gpu(book, places)
        self.first = _State(free, book.opened)

    def find(
        self, needs: Sequence[_Need], state: _State
    ) -> tuple[_State, list[tuple[str, ...]]] | None:
        """The ids for each of *needs*, and the state after them."""
        if not needs:
            return state, []
        self._steps += 1
        if self._steps > _MOST_STEPS:
            return None
        for gpus in self._sets(needs[0], state):
            after, ids = self._take(needs[0], state, gpus)
            rest = self.find(needs[1:], after)
            if rest is not None:
                return rest[0], [ids, *rest[1]]
        return None

    def damage(self, state: _State) -> float:
        """What later pods lose by the GPUs that this choice opens, in GB/s."""
        return self._kind.damage(self._idle, state.new & self._idle) if state.new else 0.0

    def _sets(self, need: _Need, state: _State) -> Iterator[tuple[int, ...]]:
        """The sets of GPUs that can give the shares, the best first: as many GPUs as possible, if
        the pod does not say how many."""
        free = state.free[need.resource]
        most = min(need.size, len(free))
        sizes: Sequence[int] = range(most, 0, -1)
        if need.sharing is Sharing.SPREAD:
            sizes = (need.size,)
        elif need.sharing is Sharing.PACK:
            sizes = (1,)
        for size in sizes:
            sets = (
                gpus
                for gpus in combinations(sorted(free), size)
                if sum(len(free[gpu]) for gpu in gpus) >= need.size
                and self._linked(need, _mask(gpus))
            )
            yield from sorted(sets, key=lambda gpus: self._rank(need, state, gpus))

    def _linked(self, need: _Need, gpus: int) -> bool:
        require = self._requirement.require
        if require is LinkClass.SYS or need.size == 1:
            return True
        # MIG devices reach each other neither by NVLink nor over PCIe, not even on one GPU.
        return not self._mig[need.resource] and bool(self._kind.table.ring_classes[gpus] >= require)

    def _rank(
        self, need: _Need, state: _State, gpus: tuple[int, ...]
    ) -> tuple[float, int, float, int, tuple[int, ...]]:
        mask = _mask(gpus)
        new = mask & ~state.opened
        lost = self._kind.damage(self._idle, (state.new | new) & self._idle) if new else 0.0
        left = sum(len(state.free[need.resource][gpu]) for gpu in gpus)
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

    def _take(
        self, need: _Need, state: _State, gpus: tuple[int, ...]
    ) -> tuple[_State, tuple[str, ...]]:
        free = dict(state.free[need.resource])
        counts = _evenly(need.size, [len(free[gpu]) for gpu in gpus])
        ids: list[str] = []
        for gpu, count in zip(gpus, counts, strict=True):
            ids += free[gpu][:count]
            free[gpu] = free[gpu][count:]
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
        return after, tuple(ids)


def _choose(kind: MachineKind, book: ShareBook, request: ShareRequest) -> ShareChoice | None:
    search = _Search(kind, book, request)
    if any(
        sum(map(len, search.first.free[resource].values())) < demand.gpus
        for resource, demand in request.wants
    ):
        return None
    needs = [
        (resource, container.name, _Need(resource, container.gpus, request.sharing))
        for resource, demand in request.wants
        for container in demand.containers
        if container.role is not Role.INIT
    ]
    # The largest first: it has the fewest places.
    needs.sort(key=lambda need: -need[2].size)
    for resource, demand in request.wants:
        beyond = demand.gpus - sum(
            container.gpus for container in demand.containers if container.role is not Role.INIT
        )
        if beyond > 0:  # init containers take more than those after them
            needs.append((resource, "", _Need(resource, beyond, Sharing.EITHER)))
    found = search.find([need for _, _, need in needs], search.first)
    if found is None:
        return None
    state, ids = found
    given = {need[:2]: each for need, each in zip(needs, ids, strict=True)}
    planned = [
        PlannedShares(container, resource, each)
        for resource, demand in request.wants
        for container, each in split(demand, _in_order(resource, demand, given)).items()
    ]
    return ShareChoice(
        shares=tuple(planned),
        quality=state.quality,
        opened=state.new.bit_count(),
        damage=search.damage(state),
        left=sum(len(each) for free in state.free.values() for each in free.values()),
    )


def _in_order(
    resource: str, demand: PodDemand, given: Mapping[tuple[str, str], tuple[str, ...]]
) -> list[str]:
    """The ids in the order in which the kubelet hands them to the containers."""
    names = [c.name for c in demand.containers if c.role is not Role.INIT]
    return [each for name in (*names, "") for each in given.get((resource, name), ())]


def _by_gpu(book: ShareBook, places: Sequence[Place]) -> Mapping[int, tuple[str, ...]]:
    """GPU -> the ids of free shares, those of the fullest part first; GPUs without any left out."""
    parts: dict[int, list[tuple[str, ...]]] = {}
    for place in places:
        if ids := book.free_ids(place.part):
            parts.setdefault(place.gpu, []).append(ids)
    return {
        gpu: tuple(each for ids in sorted(of_parts, key=len) for each in ids)
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
