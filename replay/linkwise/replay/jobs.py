"""Jobs, the nodes that they run on, and where each ran.

Times are seconds of the trace. A GPU set is a bitmask over the positions of a machine's GPUs.
"""

from dataclasses import dataclass
from functools import cached_property

from linkwise.topology.machine.model import Machine
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

    @property
    def pods(self) -> tuple[int, ...]:
        """Return the GPUs of each pod; the last one gets the remainder."""
        whole, rest = divmod(self.gpus, self.gpus_per_pod)
        return (self.gpus_per_pod,) * whole + ((rest,) if rest else ())


@dataclass(frozen=True, slots=True)
class Part:
    """A job's GPUs on one node."""

    node: int
    gpus: int  # bitmask


@dataclass(frozen=True, slots=True)
class Run:
    """`stretch` is the factor by which the run is longer than its job says."""

    job: Job
    start: float
    parts: tuple[Part, ...]
    stretch: float = 1.0

    @property
    def end(self) -> float:
        return self.start + self.job.seconds * self.stretch

    @property
    def queued(self) -> float:
        return self.start - self.job.submit


@dataclass(frozen=True)
class Fleet:
    """*nodes* equal nodes.

    `nic_gbytes_per_s` is what a GPU's share of its node's NICs carries, as recorded machines do not
    give the speed of their NICs.
    """

    machine: Machine
    nodes: int
    nic_gbytes_per_s: float = 48.0

    @property
    def gpus_per_node(self) -> int:
        return len(self.machine.gpus)

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

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
    def _values(self) -> list[float]:
        values: list[float] = table_of(self.machine).values.tolist()
        return values

    @cached_property
    def _best_of_size(self) -> list[float]:
        best = [0.0] * (self.gpus_per_node + 1)
        for gpus, gbytes in enumerate(self._values):
            best[gpus.bit_count()] = max(best[gpus.bit_count()], gbytes)
        return best

    def bandwidth(self, parts: tuple[Part, ...]) -> float:
        """Return the GB/s of a ring through all GPUs of a job of at least two.

        On one node that is the value of the GPU set. Across nodes the ring is as fast as its
        slowest node: the set there, or its GPUs' share of the node's NICs.
        """
        if len(parts) == 1:
            return self._values[parts[0].gpus]
        return min(self._through(part.gpus.bit_count(), part.gpus) for part in parts)

    def _through(self, count: int, gpus: int) -> float:
        nics = count * self.nic_gbytes_per_s
        return nics if count == 1 else min(nics, self._values[gpus])

    def best_bandwidth(self, job: Job) -> float:
        """Return the GB/s on an idle cluster: on one node the best set, else evenly over the fewest
        nodes."""
        nodes = self.fewest_nodes(job)
        if nodes == 1:
            return self._best_of_size[job.gpus]
        least = job.gpus // nodes
        nics = least * self.nic_gbytes_per_s
        return nics if least == 1 else min(nics, self._best_of_size[least])

    def stretch(self, run: Run, communication: float) -> float:
        """Return the factor by which a run takes longer than on the best GPUs.

        *communication* is the share of its time there that it spends communicating: 1 - share +
        share × best / got GB/s.
        """
        if run.job.gpus == 1:
            return 1.0
        ratio = self.best_bandwidth(run.job) / self.bandwidth(run.parts)
        return 1.0 - communication + communication * max(ratio, 1.0)
