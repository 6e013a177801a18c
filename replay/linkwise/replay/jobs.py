"""Jobs, the nodes that they run on, and where each ran.

Times are seconds of the trace. A GPU set is a bitmask over the positions of a machine's GPUs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.tables import table_of


@dataclass(frozen=True, slots=True)
class Job:
    """Pods that start together, run for `seconds`, and end together.

    `expected` is the run time that the job's author states; None: not stated.
    """

    name: str
    submit: float
    seconds: float
    gpus: int
    namespace: str
    gpus_per_pod: int = 1
    expected: float | None = None
    move_cost: float | None = None  # seconds of its run that a move loses; None: it stays
    movable_after: float = 0.0  # after how many seconds of its run it may be moved, if it may

    @property
    def pods(self) -> tuple[int, ...]:
        """Return the GPUs of each pod; the last one gets the remainder."""
        whole, rest = divmod(self.gpus, self.gpus_per_pod)
        return (self.gpus_per_pod,) * whole + ((rest,) if rest else ())


@dataclass(frozen=True, slots=True)
class OnNode:
    """A job's GPUs on one node."""

    node: int
    gpus: int  # bitmask


@dataclass(frozen=True, slots=True)
class Run:
    """`stretch` is the factor by which the run is longer than its job says."""

    job: Job
    start: float
    parts: tuple[OnNode, ...]
    stretch: float = 1.0
    moves: tuple[float, ...] = ()  # when it was moved
    lost: float = 0.0  # seconds of its run that moves lost

    @property
    def end(self) -> float:
        return self.start + self.job.seconds * self.stretch + self.lost

    @property
    def queued(self) -> float:
        return self.start - self.job.submit


@dataclass(frozen=True)
class Fleet:
    """The nodes, which have equally many GPUs. *machines* names the recorded machine that each is.

    `nic_gbytes_per_s` is what a GPU's share of its node's NICs carries, as recorded machines do not
    give the speed of their NICs. So many nodes with consecutive numbers as `nodes_per_leaf` says
    are on one leaf switch; 0: the network has no leaves.

    Raises MachineError for a machine that is not recorded, or has another number of GPUs.
    """

    machines: tuple[str, ...]
    nic_gbytes_per_s: float = 48.0
    nodes_per_leaf: int = 0

    def __post_init__(self) -> None:
        first = self.machines[0]
        for name in dict.fromkeys(self.machines):
            if (gpus := len(_recorded(name).gpus)) != self.gpus_per_node:
                raise MachineError(
                    f"machine {name} has {gpus} GPUs and {first} has {self.gpus_per_node}"
                    ": expected machines with equally many"
                )

    @property
    def nodes(self) -> int:
        return len(self.machines)

    @cached_property
    def gpus_per_node(self) -> int:
        return len(_recorded(self.machines[0]).gpus)

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    def leaves(self, nodes: Iterable[int]) -> int:
        """Return on how many leaves *nodes* are; 0: there are none."""
        return len({node // self.nodes_per_leaf for node in nodes}) if self.nodes_per_leaf else 0

    def fewest_nodes(self, job: Job) -> int:
        """Return how many nodes hold *job* on an idle cluster."""
        on_each = self.gpus_per_node // job.gpus_per_pod  # for the equal pods
        whole, rest = divmod(job.gpus, job.gpus_per_pod)
        nodes, on_last = divmod(whole, on_each)
        if on_last:
            return nodes + 1
        beside = self.gpus_per_node - on_each * job.gpus_per_pod
        return nodes + (1 if rest > (beside if nodes else 0) else 0)

    @cached_property
    def _best_of_size(self) -> list[list[float]]:
        """[GPUs][rank]: the GB/s of the best set on each node, the best node first."""
        best = {name: _best_of_size(name) for name in set(self.machines)}
        sizes = range(self.gpus_per_node + 1)
        return [
            sorted((best[name][size] for name in self.machines), reverse=True) for size in sizes
        ]

    def bandwidth(self, parts: tuple[OnNode, ...]) -> float:
        """Return the GB/s of a ring through all GPUs of a job of at least two.

        On one node that is the value of the GPU set. Across nodes the ring is as fast as its
        slowest node: the set there, or its GPUs' share of the node's NICs.
        """
        if len(parts) == 1:
            return self._value(parts[0])
        return min(self._through(part.gpus.bit_count(), self._value(part)) for part in parts)

    def _value(self, part: OnNode) -> float:
        return _values(self.machines[part.node])[part.gpus]

    def _through(self, count: int, gbytes: float) -> float:
        nics = count * self.nic_gbytes_per_s
        return nics if count == 1 else min(nics, gbytes)

    def best_bandwidth(self, job: Job) -> float:
        """Return the GB/s on an idle cluster: on one node the best set of all, else evenly over
        the fewest nodes, which are the best for that."""
        nodes = self.fewest_nodes(job)
        if nodes == 1:
            return self._best_of_size[job.gpus][0]
        least = job.gpus // nodes
        return self._through(least, self._best_of_size[least][nodes - 1])

    def stretch(self, run: Run, communication: float) -> float:
        """Return the factor by which a run takes longer than on the best GPUs.

        *communication* is the share of its time there that it spends communicating: 1 - share +
        share × best / got GB/s.
        """
        if run.job.gpus == 1:
            return 1.0
        ratio = self.best_bandwidth(run.job) / self.bandwidth(run.parts)
        return 1.0 - communication + communication * max(ratio, 1.0)


def evenly(groups: Sequence[tuple[str, int]]) -> tuple[str, ...]:
    """Return the name of each node's machine, given how many nodes each machine is. The machines
    take turns, so that no scheduler gains by taking the first node that fits."""
    turns = (
        ((turn + 0.5) / nodes, group, name)
        for group, (name, nodes) in enumerate(groups)
        for turn in range(nodes)
    )
    return tuple(name for _, _, name in sorted(turns))


def _recorded(name: str) -> Machine:
    return recorded_machine(name, node="node")


@cache
def _values(name: str) -> list[float]:
    """The GB/s of each GPU set of a recorded machine."""
    values: list[float] = table_of(_recorded(name)).values.tolist()
    return values


def _best_of_size(name: str) -> list[float]:
    best = [0.0] * (len(_recorded(name).gpus) + 1)
    for gpus, gbytes in enumerate(_values(name)):
        best[gpus.bit_count()] = max(best[gpus.bit_count()], gbytes)
    return best
