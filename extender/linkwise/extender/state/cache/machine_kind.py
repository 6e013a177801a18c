"""One kind of machine, and which set a pod would get on it: look-ups, each set chosen only once.

Nodes of one kind differ in uuids and in their free GPUs, so callers query the kind with a bitmask
of free GPUs: 5,000 nodes are a handful of kinds with some hundred distinct masks. Where the kubelet
aligns GPUs (`sets.alignment`), that is part of the kind.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from itertools import product
from operator import or_

import numpy as np
from numpy.typing import NDArray

from linkwise.pods.requirement import HardwareRequirement, TopologyRequirement
from linkwise.topology.demand import (
    ContainerDemand,
    Draw,
    PodDemand,
    Role,
    drawn_sizes,
    draws,
    split,
)
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.sets import subsets
from linkwise.topology.sets.alignment import alignment_of
from linkwise.topology.sets.chain import chain, hops_of
from linkwise.topology.sets.choose import choose, pack
from linkwise.topology.sets.network import fabric_gbytes_per_s, network_gbytes_per_s
from linkwise.topology.sets.outlook import outlook_of
from linkwise.topology.sets.tables import Worth, fingerprint, table_of
from linkwise.topology.while_alive import while_alive

Masks = NDArray[np.int64]
Floats = NDArray[np.float64]
ENOUGH = 1e6
"""The quality, in GB/s, of any set that has the preferred link below NVLink. More bandwidth is
worth nothing to such a pod, so all those sets are equal and better than every other."""

_MOST_MASKS = 8192  # remembered for each kind and request; a kind of 16 GPUs has 65,536


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A pod's request for a node's GPUs; equal for all pods of a job, and a key of caches."""

    demand: PodDemand
    requirement: TopologyRequirement
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.demand, self.requirement)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def size(self) -> int:
        return self.demand.gpus

    @property
    def simple(self) -> bool:
        """One container uses all the GPUs, so the pod's set is the container's set."""
        return len(self.demand.containers) == 1

    @property
    def drawn(self) -> tuple[int, ...]:
        return drawn_sizes(self.demand)


class MachineKind:
    """Machines whose GPU sets have the same values, whose GPUs are of the same models, and whose
    kubelets align GPUs alike."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine  # the first one seen; the others differ in uuids only
        # For the containers of one pod: what it has together is to be a partition.
        self.of_containers = replace(machine, partitions=()) if machine.partitions else machine
        self.number = number
        self.table = table_of(machine)
        self.hops = hops_of(self.table)
        self.network = network_gbytes_per_s(machine)
        self.fabric = fabric_gbytes_per_s(machine)
        self.all_gpus = machine.all_gpus
        self.alignment = alignment_of(machine)
        outlook_of(self.table)  # computed now, so that no pod waits for it
        self.models = tuple(sorted({gpu.model for gpu in machine.gpus}))
        self._allowed: dict[HardwareRequirement, int] = {}
        # request -> free GPUs -> the set to take, 0 for none
        self._sets = lru_cache(maxsize=64)(_no_sets)

    def allowed(self, requirement: TopologyRequirement) -> int:
        """The bitmask of the GPUs that have what is required of each."""
        hardware = requirement.hardware
        found = self._allowed.get(hardware)
        if found is None:
            if len(self._allowed) > 1024:  # pods may request arbitrary values
                self._allowed.clear()
            found = self._allowed[hardware] = sum(
                1 << position
                for position, gpu in enumerate(self.machine.gpus)
                if hardware.accepts(gpu.model, gpu.memory_mib)
            )
        return found

    def of_model(self, model: str) -> int:
        """The bitmask of the GPUs of exactly this model."""
        return sum(1 << p for p, gpu in enumerate(self.machine.gpus) if gpu.model == model)

    def take(
        self, request: GpuRequest, free: int, running: tuple[int, ...] | None = None
    ) -> int | None:
        """The set for the pod, or None if no set is suitable. *running*: the other GPU sets, if it
        is known which of them come free together."""
        usable = free & self.allowed(request.requirement)
        if self.alignment is not None and not self._aligns_as_one(request):
            shares = _one_by_one(self, request, free)
            together = 0 if shares is None else reduce(or_, shares.values(), 0)
            return together if together and self.table.may_be[together] else None
        return _take(self, request, usable, self.reach(request, free) & usable, running)

    def pack(self, request: GpuRequest, free: int, count: int) -> tuple[int, ...]:
        """Up to *count* disjoint sets for as many such pods, best total; fewer if no more fit.
        Consecutive sets are neighbours. Aligned sets are chosen one after the other, as the kubelet
        admits the pods."""
        if self.alignment is None:
            return _pack(self, request, free & self.allowed(request.requirement), count)
        return _pack_aligned(self, request, free, count)

    def reach(self, request: GpuRequest, free: int, count: int = 1) -> int:
        """Those of the *free* GPUs that the kubelet would give to *count* such pods, one after the
        other; 0: it would refuse one of them."""
        if self.alignment is None or not self._aligns_as_one(request):
            return free
        return self.alignment.reach_of_several(free, request.size, count)

    def aligned(self, size: int) -> NDArray[np.bool_]:
        """[2^n] the sets that the kubelet may give to a container of *size* GPUs."""
        masks = np.arange(1 << self.table.count)
        if self.alignment is None:
            return np.ones(len(masks), dtype=np.bool_)
        found: NDArray[np.bool_] = masks == 0
        for region in self.alignment.regions(size):
            found |= masks & ~region == 0
        return found

    def admits(self, request: GpuRequest, containers: Mapping[str, int]) -> bool:
        """Whether the kubelet may give a pod's containers GPUs of these sets. It refuses one if
        the GPUs that it could hand on to it are not all aligned."""
        if self.alignment is None:
            return True
        if self._aligns_as_one(request):
            return self.alignment.holds(reduce(or_, containers.values(), 0), request.size)
        return all(
            self.alignment.holds(containers[each.name], each.gpus)
            for each in request.demand.containers
        )

    def ever(self, request: GpuRequest, gpus: int | None = None) -> bool:
        """Whether the pod could get a set of these GPUs (all, if not given) once some of them are
        free, whichever."""
        gpus = self.all_gpus if gpus is None else gpus
        if self.alignment is None or not self._aligns_as_one(request):
            return self.take(request, gpus) is not None
        usable = gpus & self.allowed(request.requirement)
        regions = self.alignment.regions(request.size)
        return any(_take(self, request, usable, usable & region) is not None for region in regions)

    def fits_unaligned(self, request: GpuRequest, free: int) -> bool:
        """Whether the pod would get a set if its kubelet aligned nothing."""
        usable = free & self.allowed(request.requirement)
        return _take(self, request, usable, usable) is not None

    def has_partition(self, request: GpuRequest, free: int) -> bool:
        """Whether these GPUs hold one of the sets that NVSwitch has for so many, if not any will
        do."""
        own, usable = self.machine.partitions, free & self.allowed(request.requirement)
        return not own or any(
            gpus.bit_count() == request.size and not gpus & ~usable for gpus in own
        )

    def _aligns_as_one(self, request: GpuRequest) -> bool:
        """Whether the kubelet aligns the pod's GPUs together, and not those of each container."""
        return request.simple or (self.alignment is not None and self.alignment.of_pod)

    def neighbours(self, parts: Sequence[int]) -> tuple[int, ...]:
        """These sets, in an order in which consecutive sets are neighbours."""
        return chain(parts, self.hops)

    def worth(self, request: GpuRequest) -> Worth:
        """What sets are worth to the pod, whichever GPUs of its init containers the kubelet hands
        on."""
        return self.table.worth(request.drawn)

    def quality(self, request: GpuRequest, gpus: int) -> float:
        """The quality of a set for the pod, in GB/s, or ENOUGH."""
        prefer, worth = request.requirement.prefer, self.worth(request)
        if prefer is not LinkClass.NVLINK and worth.ring_classes[gpus] >= prefer:
            return ENOUGH
        return float(worth.values[gpus])

    def closeness(self, request: GpuRequest, gpus: Masks) -> NDArray[np.int8]:
        """The link classes of these sets, where they decide between equal qualities: all are
        NVLINK that are worth ENOUGH."""
        classes, prefer = self.table.ring_classes[gpus], request.requirement.prefer
        kept = prefer is not LinkClass.NVLINK
        found: NDArray[np.int8] = np.where(kept & (classes >= prefer), LinkClass.NVLINK, classes)
        return found

    def qualities(self, request: GpuRequest, free: Masks) -> Floats:
        """The quality of the best set within each mask of free GPUs; -inf if none is suitable."""
        allowed = self.allowed(request.requirement)
        if request.size > self.table.count:
            return np.full(len(free), -np.inf)
        distinct, position = np.unique(free, return_inverse=True)
        if request.simple:
            if self.alignment is not None:
                reach = [self.reach(request, mask) for mask in distinct.tolist()]
                free = np.array(reach, dtype=np.int64)[position]
            return self._simple_qualities(request, free & allowed)
        found = [self.take(request, mask) for mask in distinct.tolist()]
        of_distinct = [-np.inf if gpus is None else self.quality(request, gpus) for gpus in found]
        return np.array(of_distinct)[position]

    def _simple_qualities(self, request: GpuRequest, masks: Masks) -> Floats:
        require, prefer = request.requirement.require, request.requirement.prefer
        best = self.table.best_with(require)[request.size][masks]
        preferred = self.table.best_with(max(require, prefer))[request.size][masks]
        enough = preferred if prefer is LinkClass.NVLINK else ENOUGH
        return np.where(preferred > -np.inf, enough, best)

    def taken_within(self, request: GpuRequest, free: Masks) -> Masks:
        """The set for the pod within each mask of free GPUs; 0 if no set is suitable."""
        sets = self._sets(request)  # once: hashing a request costs more than looking up a mask
        if len(sets) > _MOST_MASKS:
            sets.clear()
        distinct, position = np.unique(free, return_inverse=True)
        found = []
        for mask in distinct.tolist():
            gpus = sets.get(mask)
            if gpus is None:
                gpus = sets[mask] = self.take(request, mask) or 0
            found.append(gpus)  # not looked up again: a search without the lock may clear the sets
        taken: Masks = np.array(found, dtype=np.int64)[position]
        return taken

    def damage(self, free: int, taken: int) -> float:
        """How much bandwidth later jobs lose if these GPUs are taken, in GB/s."""
        return float(self.damages(free, np.array([taken]))[0])

    def damages(self, free: int | Masks, taken: Masks) -> Floats:
        """`damage` for each of these sets; *free* is one mask, or one for each set."""
        left = self.table.remaining_gbytes_per_s
        lost: Floats = left[free] - left[free & ~taken]
        return np.round(lost, 6)


def _no_sets(_request: GpuRequest) -> dict[int, int]:
    return {}


def kind_key(machine: Machine) -> Hashable:
    models = tuple((gpu.model, gpu.memory_mib) for gpu in machine.gpus)
    alignment = alignment_of(machine)
    aligned = None if alignment is None else alignment.key
    return fingerprint(machine), models, machine.vendor, aligned


def containers_on(
    kind: MachineKind, machine: Machine, request: GpuRequest, gpus: int
) -> dict[str, tuple[str, ...]]:
    """Split a pod's set: container -> uuids of *machine*, in the order of the kubelet's calls. If
    the kubelet chooses some of them by itself, these are all that the container may get."""
    own = machine.gpus
    return {
        name: tuple([own[position].uuid for position in draw.among])
        for name, draw in _draws(kind, request, gpus).items()
    }


def will_do(
    kind: MachineKind, machine: Machine, request: GpuRequest, shares: Mapping[str, Sequence[str]]
) -> bool:
    """Whether these uuids by container meet the pod's request: count, models, links, and what the
    kubelet admits."""
    masks = tuple([(name, machine.mask_of(share)) for name, share in shares.items()])
    return _will_do(kind, request, masks)


@while_alive(16384)
def _will_do(kind: MachineKind, request: GpuRequest, shares: tuple[tuple[str, int], ...]) -> bool:
    """Cached, as thousands of equal pods are checked at once."""
    demand = request.demand
    if {name for name, _ in shares} != {container.name for container in demand.containers}:
        return False
    found = draws(demand, {name: _positions(mask) for name, mask in shares})
    if _counts(found) != _counts(draws(demand, split(demand, range(demand.gpus)))):
        return False
    masks = {name: _mask(draw.among) for name, draw in found.items()}
    together = reduce(or_, masks.values(), 0)
    return (
        together.bit_count() == request.size
        and bool(kind.table.may_be[together])
        and not together & ~kind.allowed(request.requirement)
        and _all_hold(kind, request, found)
        and kind.admits(request, masks)
    )


def _counts(found: Mapping[str, Draw[int]]) -> dict[str, tuple[int, int]]:
    return {name: (len(draw.sure), len(draw.others)) for name, draw in found.items()}


@while_alive(16384)
def _take(
    kind: MachineKind,
    request: GpuRequest,
    free: int,
    within: int,
    running: tuple[int, ...] | None = None,
) -> int | None:
    """*within*: those of the *free* GPUs that the kubelet would give."""
    if within.bit_count() < request.size:
        return None
    require, prefer = request.requirement.require, request.requirement.prefer
    # The containers of one pod need not be close to each other, only each one's own GPUs.
    of_pod = require if request.simple else LinkClass.SYS
    # A set of which any GPUs may be handed on is the best. If there is none, one may still do: the
    # kubelet chooses among the GPUs of init containers only.
    for of_any in (require, of_pod) if request.drawn else (of_pod,):
        choice = choose(
            kind.machine,
            free,
            request.size,
            within=within,
            require=of_any,
            prefer=prefer,
            running=running,
            drawn=request.drawn,
        )
        if choice is not None and (request.simple or _containers_hold(kind, request, choice.gpus)):
            return choice.gpus
    if request.simple:
        return None
    apart = _apart(kind, request, within)
    return apart if apart is not None and _containers_hold(kind, request, apart) else None


@while_alive(16384)
def _pack(kind: MachineKind, request: GpuRequest, free: int, count: int) -> tuple[int, ...]:
    require, prefer = request.requirement.require, request.requirement.prefer
    if request.simple:
        choices = pack(kind.machine, free, request.size, count, require=require, prefer=prefer)
        return chain([choice.gpus for choice in choices], kind.hops)
    sets: list[int] = []
    while len(sets) < count and (gpus := _take(kind, request, free, free)) is not None:
        sets.append(gpus)
        free &= ~gpus
    return chain(sets, kind.hops)


@while_alive(16384)
def _pack_aligned(kind: MachineKind, request: GpuRequest, free: int, count: int) -> tuple[int, ...]:
    sets: list[int] = []
    while len(sets) < count and (gpus := kind.take(request, free)) is not None:
        sets.append(gpus)
        free &= ~gpus
    return chain(sets, kind.hops)


@while_alive(16384)
def _one_by_one(kind: MachineKind, request: GpuRequest, free: int) -> Mapping[str, int] | None:
    """Container -> set, where the kubelet aligns the GPUs of each container by itself: one after
    the other in its order, each from what those before it left. Containers get the GPUs of ended
    init containers again. None if one of them gets no suitable set."""
    alignment = kind.alignment
    assert alignment is not None, "without one, any set will do"
    require, prefer = request.requirement.require, request.requirement.prefer
    usable = free & kind.allowed(request.requirement)
    shares: dict[str, int] = {}
    left, reusable = free, 0
    last = request.demand.containers[-1]
    for container in request.demand.containers:
        again = sum(1 << position for position in _positions(reusable)[: container.gpus])
        reach = alignment.reach_beside(left, reusable, container.gpus) & (left | again)
        # As in `_take`: best is a set of which any GPUs may be handed on.
        hands_on = request.drawn if container.role is Role.INIT else ()
        # As many GPUs of several NUMA nodes as can be are left to later containers.
        ways = [(reach, again)]
        if container is not last and reach & alignment.of_several_nodes:
            own = reach & ~alignment.of_several_nodes | again
            enough = own.bit_count() >= container.gpus
            ways.insert(0, (own, again) if enough else (reach, own))
        for (within, must), drawn in product(ways, (hands_on, ()) if hands_on else ((),)):
            choice = choose(
                kind.of_containers,
                (left & usable) | again,
                container.gpus,
                must=must,
                within=within,
                require=require,
                prefer=prefer,
                drawn=drawn,
            )
            if choice is not None:
                break
        else:
            return None
        shares[container.name] = choice.gpus
        left &= ~choice.gpus
        if container.role is Role.INIT:
            reusable |= choice.gpus
        else:
            reusable &= ~choice.gpus
    found = draws(request.demand, {name: _positions(share) for name, share in shares.items()})
    return shares if _all_hold(kind, request, found) else None


def _apart(kind: MachineKind, request: GpuRequest, free: int) -> int | None:
    """A set for the pod that consists of one good set per container that runs beside others."""
    require, prefer = request.requirement.require, request.requirement.prefer
    sizes = sorted((c.gpus for c in _together(request.demand)), reverse=True)
    taken = 0
    if len(set(sizes)) == 1:
        sets = pack(kind.of_containers, free, sizes[0], len(sizes), require=require, prefer=prefer)
        if len(sets) < len(sizes):
            return None
        taken = sum(choice.gpus for choice in sets)
    else:
        for size in sizes:
            choice = choose(kind.of_containers, free & ~taken, size, require=require, prefer=prefer)
            if choice is None:
                return None
            taken |= choice.gpus
    whole = choose(kind.machine, free, request.size, must=taken, prefer=prefer)
    return None if whole is None else whole.gpus


def _containers_hold(kind: MachineKind, request: GpuRequest, gpus: int) -> bool:
    """Whether every container's own GPUs have the required link, whichever it gets."""
    if request.requirement.require is LinkClass.SYS:
        return True
    return _all_hold(kind, request, _draws(kind, request, gpus))


def _all_hold(kind: MachineKind, request: GpuRequest, found: Mapping[str, Draw[int]]) -> bool:
    """Whether all sets that the kubelet may give to the containers have the required link."""
    require, classes = request.requirement.require, kind.table.ring_classes
    for container in request.demand.containers if require is not LinkClass.SYS else ():
        draw = found[container.name]
        sets: Masks | int = _mask(draw.sure)
        if draw.others:
            of_size = subsets.layer(kind.table.count, container.gpus)
            sets = subsets.within(of_size, _mask(draw.among), _mask(draw.sure))
        if np.any(classes[sets] < require):
            return False
    return True


def _draws(kind: MachineKind, request: GpuRequest, gpus: int) -> Mapping[str, Draw[int]]:
    """Container -> positions."""
    return draws(request.demand, _shares(kind, request, gpus))


@while_alive(16384)
def _shares(kind: MachineKind, request: GpuRequest, gpus: int) -> Mapping[str, tuple[int, ...]]:
    """Container -> positions, equal on all machines of a kind, and so for all gang members."""
    if kind.alignment is not None and not (request.simple or kind.alignment.of_pod):
        shares = _one_by_one(kind, request, gpus)
        if shares is not None:
            return {name: tuple(_positions(share)) for name, share in shares.items()}
    return split(request.demand, _order(kind, request, gpus))


def _order(kind: MachineKind, request: GpuRequest, gpus: int) -> tuple[int, ...]:
    """Positions in the order in which the containers get them. Each container that runs beside
    others gets the best set of those left: the largest container chooses first."""
    require, prefer = request.requirement.require, request.requirement.prefer
    together = _together(request.demand)
    left = gpus
    of_container: dict[str, int] = {}
    for container in sorted(together, key=lambda container: -container.gpus):
        own = kind.of_containers
        choice = choose(own, left, container.gpus, require=require, prefer=prefer)
        if choice is None:
            choice = choose(own, left, container.gpus, prefer=prefer)
        assert choice is not None, "a pod's set holds what its containers take together"
        of_container[container.name] = choice.gpus
        left &= ~choice.gpus
    masks = [of_container[container.name] for container in together]
    return tuple(position for mask in (*masks, left) for position in _positions(mask))


def _together(demand: PodDemand) -> list[ContainerDemand]:
    return [container for container in demand.containers if container.role is not Role.INIT]


def _mask(positions: Sequence[int]) -> int:
    return sum(1 << position for position in positions)


def _positions(mask: int) -> list[int]:
    return [position for position in range(mask.bit_length()) if mask >> position & 1]
