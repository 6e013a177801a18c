"""How much room a placement takes from the pods to come, in GPUs of the whole cluster.

The *room* of a kind of pods is how many of them the cluster could take if no others came. A
placement takes a part of the room of each kind. The mean of these parts over the mix of pods that
came, times all free GPUs, is the *lost room*: the step along the gradient of -sum(share *
log(room)). So whatever is scarce is dear, and no list says what is: a GPU model that many pods
insist on, nodes with eight idle GPUs, CPU beside idle GPUs.

Pods of 2, 4 and 8 GPUs have room by bandwidth: sets that lie side by side in what is free, each by
its GB/s beside the best of its size. So a set without NVLink is a small part of the room that a
set with NVLink is, and to break a pair or an island costs what its pods would lose.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from linkwise.extender.state.cache.machine_kind import Floats, MachineKind
from linkwise.extender.state.cache.node_table import NOT_USABLE, Ints, popcount
from linkwise.extender.state.records import PodRecord, ResourceList
from linkwise.pods.requirement import ANYTHING, TopologyRequirement
from linkwise.topology.sets import subsets
from linkwise.topology.while_alive import while_alive

MOST_KINDS = 32  # the most frequent ones; rarer pods find room by chance
MOST_PODS = 4096  # counted before the counts are halved
_GROWTH = 1.5  # the counts differ so little before that prices would stay as they are


@dataclass(frozen=True, slots=True)
class Ask:
    """What pods take of one node: *size* whole GPUs with the required models and memory, or as many
    shares of *resource*.
    """

    size: int
    requirement: TopologyRequirement = ANYTHING
    resource: str = ""  # empty: whole GPUs


class PodKind(NamedTuple):
    ask: Ask
    milli_cpu: int = 0
    memory: int = 0  # bytes


class PodMix:
    """Counts the kinds of pods that came, so that room is kept for others like them.

    All pods that the API server lists count, each once, however they end. The counts are halved
    when there are many, so that a kind that stopped coming is forgotten. They are in memory only: a
    new leader begins with the pods that are there.
    """

    def __init__(self) -> None:
        self._counts: Counter[PodKind] = Counter()
        self._pods = 0
        self._next = 1.0
        self.version = 0  # rises when the counts have changed much

    def came(self, record: PodRecord) -> None:
        """Count a pod that was not there before."""
        if record.left_alone or record.invalid:
            return
        for kind in _kinds_of(record):
            self._counts[kind] += 1
            self._pods += 1
        if self._pods >= MOST_PODS:
            self._counts = Counter({k: n // 2 for k, n in self._counts.items() if n > 1})
            self._pods = self._counts.total()
            self._next = self._pods
        if self._pods >= self._next:
            self._next = max(self._pods * _GROWTH, 1.0)
            self.version += 1

    def shares(self) -> dict[PodKind, float]:
        """The most frequent kinds of pods, and how often each comes, of 1."""
        counts = self._counts.most_common(MOST_KINDS)
        total = sum(count for _, count in counts)
        return {kind: count / total for kind, count in counts}


def _kinds_of(record: PodRecord) -> Iterator[PodKind]:
    """One kind for the pod's whole GPUs, and one for each resource of which it takes shares."""
    on = TopologyRequirement(hardware=record.ask.requirement.hardware)
    wants = [(resource, demand.gpus) for resource, demand in record.shares]
    for resource, size in [("", record.demand.gpus), *wants]:
        if size:
            yield PodKind(Ask(size, on, resource), record.needs.milli_cpu, record.needs.memory)


# Prices are learnt again after so many changes of nodes, as a part of the free GPUs. A pod that
# comes or goes changes its node about twice, so that is after a tenth of them came or went.
_CHANGES = 0.2
NO_SHARES: Mapping[str, int] = {}
_DIGITS = 6  # of a GPU; smaller differences come from rounding


@dataclass(frozen=True, slots=True)
class Left:
    """What some nodes have left, [rows]: the numbers of their kinds of machines, bitmasks of free
    GPUs, CPU and memory; and free shares by resource."""

    kinds: Ints
    free: Ints
    milli_cpu: Ints
    memory: Ints
    shares: Mapping[str, Ints]

    def without(
        self, needs: ResourceList, gpus: Ints | int = 0, wants: Mapping[str, int] = NO_SHARES
    ) -> "Left":
        """What is left if a pod with these needs takes the bitmask *gpus*, one or [rows], and as
        many shares of each resource as it *wants*."""
        return Left(
            self.kinds,
            self.free & ~gpus,
            self.milli_cpu - needs.milli_cpu,
            self.memory - needs.memory,
            {resource: of - wants.get(resource, 0) for resource, of in self.shares.items()},
        )


class Room:
    """Learnt from the mix and what all nodes have left, and not changed any more."""

    def __init__(
        self, mix: Mapping[PodKind, float], machines: Sequence[MachineKind], left: Left
    ) -> None:
        self._machines = machines
        self._asks = list(dict.fromkeys(kind.ask for kind in mix))
        self._ask = np.array([self._asks.index(kind.ask) for kind in mix], dtype=np.int64)
        self._milli_cpu = _Needs([kind.milli_cpu for kind in mix])
        self._memory = _Needs([kind.memory for kind in mix])
        self.resources = {ask.resource for ask in self._asks if ask.resource}
        self._best = [
            max((_best(machine, ask) for machine in machines), default=0.0) for ask in self._asks
        ]
        self.free = int(popcount(left.free).sum())
        total = self.of(left).sum(axis=0)
        # A kind without any room loses none; 1 is less than any price can matter for.
        self._price: Floats = self.free * np.array([*mix.values()]) / np.maximum(total, 1.0)

    def lost(self, before: Left, after: Left) -> Floats:
        """[rows] the lost room in GPUs, if each node has *after* left instead of *before*."""
        found: Floats = np.round((self.of(before) - self.of(after)) @ self._price, _DIGITS)
        return found

    def of(self, left: Left) -> Floats:
        """[rows, kinds of pods] how many pods of the kind alone each node takes."""
        by_gpus = np.zeros((len(left.kinds), len(self._asks)))
        for number in np.unique(left.kinds):
            if number != NOT_USABLE:
                places = np.flatnonzero(left.kinds == number)
                self._by_gpus(self._machines[number], left, by_gpus, places)
        room = by_gpus[:, self._ask]
        np.minimum(room, self._milli_cpu.room(left.milli_cpu), out=room)
        np.minimum(room, self._memory.room(left.memory), out=room)
        found: Floats = np.maximum(room, 0.0, out=room)
        return found

    def _by_gpus(self, kind: MachineKind, left: Left, found: Floats, places: Ints) -> None:
        """Set the rows *places* of *found* [rows, asks], which are machines of the kind."""
        for column, (ask, best) in enumerate(zip(self._asks, self._best, strict=True)):
            allowed = kind.allowed(ask.requirement)
            if not ask.resource:
                found[places, column] = _sets(kind, ask.size, best)[left.free[places] & allowed]
            elif allowed and ask.resource in left.shares:
                found[places, column] = left.shares[ask.resource][places] // ask.size


class _Needs:
    """What each kind of pods needs of one resource."""

    def __init__(self, of_kinds: Sequence[int]) -> None:
        needs = np.array(of_kinds, dtype=np.float64)
        self._needs = np.maximum(needs, 1.0)
        self._needs_none = np.where(needs > 0, 0.0, np.inf)  # those always have enough

    def room(self, left: Ints) -> Floats:
        """[rows, kinds of pods] for how many pods what is *left* [rows] is enough."""
        found: Floats = np.floor(left[:, None] / self._needs) + self._needs_none
        return found


class LatestRoom:
    """The room by which placements are judged now. It is learnt again when the mix has changed
    much, or a part of what was free then came or went."""

    def __init__(self, mix: PodMix) -> None:
        self._mix = mix
        self._room: Room | None = None
        self._version = self._due = 0

    def at(
        self,
        changes: int,
        machines: Sequence[MachineKind],
        left: Callable[[Collection[str]], Left],
    ) -> Room:
        """*changes* rises with each change of a node; *left* returns what all nodes with free GPUs
        or shares have left, with the shares of these resources. If the room cannot be learnt, the
        exception is raised once, and no placement loses any until it is to be learnt again."""
        if self._room is None or self._version != self._mix.version or changes >= self._due:
            mix = self._mix.shares()
            resources = {kind.ask.resource for kind in mix if kind.ask.resource}
            try:
                self._room = Room(mix, machines, left(resources))
            except Exception:
                self._room = Room({}, machines, left(()))
                raise
            finally:
                self._version = self._mix.version
                free = 0 if self._room is None else self._room.free
                self._due = changes + max(1, int(_CHANGES * free))
        return self._room


def _best(kind: MachineKind, ask: Ask) -> float:
    """The GB/s of the best set of the size on the idle machine; 0 if there is none."""
    if ask.resource or ask.size > kind.table.count:
        return 0.0
    best = float(kind.table.best[ask.size][kind.allowed(ask.requirement)])
    return max(best, 0.0)


@while_alive(64)
def _sets(kind: MachineKind, size: int, best: float) -> Floats:
    """[2^n] how many pods of *size* GPUs each mask of free GPUs holds, those on slower sets than
    *best*, in GB/s, as a part of one."""
    side_by_side = kind.table.side_by_side.get(size)
    if side_by_side is None:
        if size > kind.table.count:  # it may be too large for the array's type
            return np.zeros(1 << kind.table.count)
        return np.array(subsets.sizes(kind.table.count) // size, dtype=np.float64)
    found: Floats = side_by_side / max(best, 1e-9)
    return found
