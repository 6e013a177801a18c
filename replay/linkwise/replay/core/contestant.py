"""The extender's core in simulated time.

Only the core decides. Kubelets give the planned GPUs, at once. kube-scheduler tries
a pod when it is created, when it is nominated, and when GPUs come free. It asks about the nodes
where the pod may run and that have enough free GPUs.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.state.actions import Action, Evict, LiftGate, Nominate, WritePlan
from linkwise.extender.state.extender_calls import FilterCall, Outcome
from linkwise.extender.state.membership.owner_cache import Found
from linkwise.kube.objects import Condition, Node, Pod
from linkwise.pods.annotations import demand_of, resource_of
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.replay.core import objects
from linkwise.replay.core.may_run import MayRun
from linkwise.replay.errors import ReplayError
from linkwise.replay.in_memory_api_server import InMemoryApiServer, answer_in_time
from linkwise.replay.jobs import Job, OnNode, Run
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus
from linkwise.topology.machine.model import Machine

_MOST_ROUNDS = 1000
_TURNED_AWAY = Condition("PodScheduled", "False", "Unschedulable", "linkwise: no node")
change = msgspec.structs.replace

PodsOf = Callable[[Job, int, float], Iterable[Pod]]
"""(job, its number, now in seconds since 1970) -> its pods, as they are created."""


class _Started:
    """How far a job has started: how many of its pods are missing, and what the others have."""

    def __init__(self, job: Job, pods: int) -> None:
        self.job = job
        self.missing = pods
        self.parts: dict[int, int] = {}


class LinkwiseContestant(InMemoryApiServer):
    """A `Contestant`: Linkwise as it runs in production."""

    def __init__(
        self,
        nodes: Iterable[tuple[Node, Machine]],
        settings: CoreSettings | None = None,
        pods_of: PodsOf = objects.pods,
    ) -> None:
        """*nodes* are idle; a `OnNode` names them by number. Pods must not be gated."""
        machines = {node.metadata.name: (node, machine) for node, machine in nodes}
        there = {name: node for name, (node, _) in machines.items()}
        super().__init__(settings or CoreSettings(), objects.EPOCH, there)
        self.core.filter(FilterCall(Pod(), ()), self.now)  # as after kube-scheduler's first call
        self._pods_of = pods_of
        self._jobs: dict[str, _Started] = {}  # by the uid of each of their pods
        self._uids: dict[str, list[str]] = {}  # by job name
        self._to_try: deque[str] = deque()
        self._turned_away: dict[str, _Single] = {}  # by uid, oldest first
        self._came_free = False
        self._had: dict[str, tuple[str, int]] = {}  # uid -> node, and how many of its GPUs
        self._evicted: list[str] = []  # names of jobs
        self._made = 0
        self._started: list[Run] = []
        self._names = list(there)
        self._free = {name: len(machine.gpus) for name, (_, machine) in machines.items()}
        self._gpus = {  # node -> its number, and its GPUs by uuid
            name: (number, {gpu.uuid: 1 << place for place, gpu in enumerate(machine.gpus)})
            for number, (name, (_, machine)) in enumerate(machines.items())
        }
        self._may_run = MayRun(there.values(), self.settings.resource_names)

    # Events

    def submit(self, job: Job, now: float) -> None:
        self.now = objects.EPOCH + now
        self._made += 1
        pods = list(self._pods_of(job, self._made, self.now))
        uids = self._uids[job.name] = [pod.metadata.uid for pod in pods]
        self._jobs |= dict.fromkeys(uids, _Started(job, len(pods)))
        self._to_try += uids
        for pod in pods:
            self.put_pod(pod)

    def end(self, run: Run, now: float) -> None:
        """The run's containers succeed, and its pods are deleted."""
        self.now = objects.EPOCH + now
        uids = self._uids.pop(run.job.name)
        for uid in uids:
            pod = self.pods[uid]
            self.put_pod(change(pod, status=change(pod.status, phase="Succeeded")))
        for uid in uids:
            del self._jobs[uid]
            self.remove_pod(uid)
            self._give_back(uid)

    def settle(self, now: float) -> Sequence[Run]:
        self.now = objects.EPOCH + now
        self._started = []
        for _ in range(_MOST_ROUNDS):
            _, busy = self.decide()
            for defect in self.core.take_defects():
                raise defect
            self.bind_released()
            if not (self._try_pods() or busy):
                return self._started
        raise ReplayError(f"the core finds no end of things to do at second {now:g}")

    def take_evicted(self) -> Sequence[str]:
        evicted, self._evicted = self._evicted, []
        return evicted

    def next_due(self) -> float | None:
        due = self.core.next_due()
        return None if due is None else due - objects.EPOCH

    def carry_out(self, action: Action) -> Outcome:
        if isinstance(action, LiftGate):
            raise ReplayError(f"{action}: no pod of a trace is gated")
        if isinstance(action, WritePlan | Nominate) and action.node:
            self._to_try.append(action.pod.uid)
        return super().carry_out(action)

    def read_owner(self, ref: ObjectRef) -> Found:  # noqa: ARG002
        """Jobs of a trace count no eviction as a failure."""
        ignores = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
        return {"spec": {"podFailurePolicy": {"rules": [ignores]}}}

    def evict(self, pod: Pod, action: Evict) -> Outcome:  # noqa: ARG002
        """The pod is gone at once, and its controller recreates it."""
        meta = pod.metadata
        job = self._jobs.pop(meta.uid).job
        uids = self._uids[job.name]
        self._give_back(meta.uid)
        self.remove_pod(meta.uid)
        self._made += 1
        name = f"job-{self._made}"
        said = {k: v for k, v in meta.annotations.items() if k not in names.BY_EXTENDER}
        created = datetime.fromtimestamp(self.now, UTC)
        recreated = change(meta, uid=name, name=name, annotations=said, creation_timestamp=created)
        uids[uids.index(meta.uid)] = name
        self._jobs[name] = _Started(job, 1)
        self._evicted.append(job.name)
        self._to_try.append(name)
        self.put_pod(Pod(metadata=recreated, spec=change(pod.spec, node_name="")))
        return Outcome.DONE

    def _give_back(self, uid: str) -> None:
        node, count = self._had.pop(uid)
        self._free[node] += count
        self._came_free = True

    # kube-scheduler

    def _try_pods(self) -> bool:
        """Try the waiting pods. Return False if there were none."""
        if not (self._to_try or self._came_free):
            return False
        tried = [*self._to_try]
        self._to_try.clear()
        for uid in tried:
            self._try_pod(uid)
        if self._came_free:
            self._came_free = False
            self._try_again()
        return True

    def _try_again(self) -> None:
        """Try refused pods again, by priority, then age. If two differ only in their expected run
        time, the longer one is refused at any moment when the shorter one is."""
        in_vain: dict[tuple[object, ...], float] = {}
        most = max(self._free.values())
        for uid, single in sorted(self._turned_away.items(), key=lambda item: -item[1].priority):
            if single.gpus > most or single.expected >= in_vain.get(single.alike, float("inf")):
                continue
            if not self._try_pod(uid):
                in_vain[single.alike] = single.expected
            else:
                most = max(self._free.values())

    def _try_pod(self, uid: str) -> bool:
        """Return True if the pod got a node."""
        pod = self.pods.get(uid)
        if pod is None or pod.spec.node_name:
            return False
        wanted = demand_of(pod, resource_of(pod, self.settings.resource_names)).gpus
        nominated = pod.status.nominated_node_name
        node = ""
        if nominated and self._free[nominated] >= wanted:
            node = self._ask(pod, (nominated,))
        if not node:
            may = self._may_run.names(pod)
            fitting = (n for n, free in self._free.items() if free >= wanted and n in may)
            node = self._ask(pod, tuple(fitting))
        if node and self.try_to_bind(pod, node):
            self._turned_away.pop(uid, None)
            return True
        if names.GANG not in pod.metadata.annotations and uid not in self._turned_away:
            expected = self._jobs[uid].job.expected
            self._turned_away[uid] = _single(pod, wanted, expected)
        pod = self.pods[uid]
        if not pod.status.conditions:
            self.put_pod(change(pod, status=change(pod.status, conditions=(_TURNED_AWAY,))))
        return False

    def _ask(self, pod: Pod, nodes: tuple[str, ...]) -> str:
        """Return the node for the pod; "" if there is none."""
        if not nodes:
            return ""
        answer = answer_in_time(self.core, FilterCall(pod, nodes), self.now)
        if answer.error:
            raise ReplayError(f"filter: {answer.error}")
        return self.best_of(pod, answer.node_names)

    # Kubelets

    def put_bound(self, pod: Pod) -> Pod:
        """The pod runs at once, on the planned GPUs."""
        number, bits = self._gpus[pod.spec.node_name]
        given = read_gpus(pod.metadata.annotations[names.GPUS]).values()
        gpus = sum(bits[uuid] for uuids in given for uuid in uuids)
        self._free[pod.spec.node_name] -= gpus.bit_count()
        self._had[pod.metadata.uid] = pod.spec.node_name, gpus.bit_count()
        job = self._jobs[pod.metadata.uid]
        job.parts[number] = job.parts.get(number, 0) | gpus
        job.missing -= 1
        if not job.missing:
            parts = tuple(OnNode(*part) for part in sorted(job.parts.items()))
            self._started.append(Run(job.job, self.now - objects.EPOCH, parts))
        return super().put_bound(pod)


class _Single(NamedTuple):
    """A pod in no gang that kube-scheduler found no node for."""

    alike: tuple[object, ...]  # equal for pods that differ only in their expected run time
    gpus: int
    priority: int
    expected: float  # seconds; 0: not given


def _single(pod: Pod, gpus: int, expected: float | None) -> _Single:
    meta, spec = pod.metadata, pod.spec
    said = {k: v for k, v in meta.annotations.items() if k != names.EXPECTED_DURATION}
    alike = (
        meta.namespace,
        gpus,
        spec.priority,
        expected is None,
        repr((sorted(said.items()), spec.node_selector, spec.affinity, spec.tolerations)),
    )
    return _Single(alike, gpus, spec.priority, expected or 0.0)
