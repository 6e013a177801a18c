"""kube-scheduler alone, as a scheduler for the replay.

Pod by pod, by priority, then age: the node with the largest share of its GPUs free (LeastAllocated,
counted in GPUs), and there the GPUs that NVIDIA's device plugin prefers. It is better than the real
one in two ways: a gang never holds GPUs while some of its pods wait, and ties go to the first node
in the listing, not to a random one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from linkwise.cli.what_if.past.ground import Ground
from linkwise.kube.objects import Pod
from linkwise.pods.annotations import demand_of, resource_of
from linkwise.replay.core.contestant import PodsOf
from linkwise.replay.core.may_run import MayRun
from linkwise.replay.jobs import Job, OnNode, Run
from linkwise.topology.sets.partition import choose_partition


class KubeScheduler:
    """A `Contestant`."""

    def __init__(self, ground: Ground, pods_of: PodsOf, resources: tuple[str, ...]) -> None:
        self._machines = [machine for _, machine in ground.nodes]
        self._sizes = np.array([len(machine.gpus) for machine in self._machines])
        self._sets = [machine.all_gpus for machine in self._machines]
        self._free = self._sizes.copy()
        self._resources = resources
        self._may_run = MayRun([node for node, _ in ground.nodes], resources)
        self._names = [node.metadata.name for node, _ in ground.nodes]
        self._pods_of = pods_of
        self._waiting: list[tuple[int, int, Job, tuple[_Want, ...]]] = []
        self._came = 0
        self._open: dict[frozenset[str], NDArray[np.bool_]] = {}

    def submit(self, job: Job, now: float) -> None:
        pods = [*self._pods_of(job, self._came, now)]
        wants = tuple(self._want(pod) for pod in pods)
        self._waiting.append((-pods[0].spec.priority, self._came, job, wants))
        self._waiting.sort(key=lambda item: item[:2])
        self._came += 1

    def end(self, run: Run, now: float) -> None:  # noqa: ARG002
        for part in run.parts:
            self._sets[part.node] |= part.gpus
            self._free[part.node] += part.gpus.bit_count()

    def take_evicted(self) -> Sequence[str]:
        return ()

    def next_due(self) -> float | None:
        return None

    def settle(self, now: float) -> Sequence[Run]:
        """Free GPUs only decrease meanwhile: what did not fit once does not fit later."""
        started: list[Run] = []
        in_vain: set[object] = set()
        left = []
        for waiting in self._waiting:
            _, _, job, wants = waiting
            parts = None if wants in in_vain else self._place(wants)
            if parts is None:
                in_vain.add(wants)
                left.append(waiting)
            else:
                started.append(Run(job, now, parts))
        self._waiting = left
        return started

    def _place(self, wants: "tuple[_Want, ...]") -> tuple[OnNode, ...] | None:
        free = self._free.copy()
        sets: dict[int, int] = {}
        taken: dict[int, int] = {}
        for gpus, may in wants:
            open_ = self._open[may] & (free >= gpus)
            if not open_.any():
                return None
            node = int(np.argmax(np.where(open_, free / self._sizes, -1.0)))
            there = sets.get(node, self._sets[node])
            chosen = choose_partition(self._machines[node], there, gpus)
            if chosen is None:
                return None
            sets[node] = there & ~chosen
            taken[node] = taken.get(node, 0) | chosen
            free[node] -= gpus
        self._free = free
        for node, left in sets.items():
            self._sets[node] = left
        return tuple(OnNode(node, taken[node]) for node in sorted(taken))

    def _want(self, pod: Pod) -> "_Want":
        may = self._may_run.names(pod)
        if may not in self._open:
            self._open[may] = np.array([name in may for name in self._names], dtype=np.bool_)
        return demand_of(pod, resource_of(pod, self._resources)).gpus, may


_Want = tuple[int, frozenset[str]]
"""GPUs of a pod, and its possible nodes."""
