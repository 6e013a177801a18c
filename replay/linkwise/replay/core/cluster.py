"""The extender's core in simulated time, and around it what it meets in production.

Only the core decides. The API server's writes happen at once, kubelets give the GPUs that were
planned, and kube-scheduler is what it is for such pods: it tries a pod when it comes, when it is
nominated, and when GPUs come free; it asks about the nodes with enough GPUs free.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from linkwise.extender.actions import Action, Emit, Evict, LiftGate, Nominate, WritePlan
from linkwise.extender.applied import applied
from linkwise.extender.calls import BindCall, BindOrder, FilterCall, Outcome
from linkwise.extender.scheduler import CoreSettings, Scheduler
from linkwise.kube.objects import Condition, Pod
from linkwise.replay.core import objects
from linkwise.replay.errors import ReplayError
from linkwise.replay.jobs import Fleet, Job, Part, Run
from linkwise.topology import names
from linkwise.topology.plan import read_gpus

_MOST_ROUNDS = 1000
_TURNED_AWAY = Condition("PodScheduled", "False", "Unschedulable", "linkwise: no node")
change = msgspec.structs.replace


class _Waiting:
    """A job whose pods are not all bound."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.missing = len(job.pods)
        self.parts: dict[int, int] = {}


class CoreCluster:
    """A `Contestant`: Linkwise as it runs in production."""

    def __init__(self, fleet: Fleet, machine: str, settings: CoreSettings | None = None) -> None:
        self._core = Scheduler(settings or CoreSettings())
        self._now = objects.EPOCH
        self._pods: dict[str, Pod] = {}
        self._numbers: dict[str, int] = {}  # uid -> its job's number
        self._jobs: dict[int, _Waiting] = {}
        self._free: dict[str, int] = {}
        self._nodes: dict[str, tuple[int, dict[str, int]]] = {}  # number, and GPUs by uuid
        self._uids: dict[int, list[str]] = {}
        self._by_name: dict[str, int] = {}  # a job's number by its name
        self._to_try: deque[str] = deque()
        self._turned_away: dict[str, None] = {}  # single pods, the oldest first
        self._came_free = False
        self._made = 0
        there = list(objects.nodes(machine, fleet.nodes))
        for number, (node, hardware) in enumerate(there):
            name = node.metadata.name
            self._free[name] = len(hardware.gpus)
            bits = {gpu.uuid: 1 << position for position, gpu in enumerate(hardware.gpus)}
            self._nodes[name] = number, bits
        self._core.replace_nodes([node for node, _ in there], self._now)
        self._core.replace_pods([], self._now)
        self._core.replace_budgets([], self._now)
        self._core.filter(FilterCall(Pod(), ()), self._now)  # kube-scheduler has asked before

    # What happens.

    def submit(self, job: Job, now: float) -> None:
        self._now = objects.EPOCH + now
        self._made += 1
        self._jobs[self._made] = _Waiting(job)
        self._by_name[job.name] = self._made
        uids = self._uids[self._made] = []
        for pod in objects.pods(job, self._made, self._now):
            uids.append(pod.metadata.uid)
            self._numbers[pod.metadata.uid] = self._made
            self._to_try.append(pod.metadata.uid)
            self._put(pod, "ADDED")

    def end(self, run: Run, now: float) -> None:
        """Its containers end well, and its pods are deleted."""
        self._now = objects.EPOCH + now
        uids = self._uids.pop(self._by_name.pop(run.job.name))
        for uid in uids:
            pod = self._pods[uid]
            self._put(change(pod, status=change(pod.status, phase="Succeeded")))
        for uid in uids:
            del self._numbers[uid]
            self._core.pod_event("DELETED", self._pods.pop(uid), self._now)
        for part in run.parts:
            self._free[objects.node_name(part.node)] += part.gpus.bit_count()
        self._came_free = True

    def settle(self, now: float) -> Sequence[Run]:
        self._now = objects.EPOCH + now
        started: list[Run] = []
        for _ in range(_MOST_ROUNDS):
            actions = self._core.decide(self._now)
            for defect in self._core.take_defects():
                raise defect
            for action in actions:
                self._core.done(action, self._carry_out(action), self._now)
            if not (self._try_pods(started) or actions):
                return started
        raise ReplayError(f"the core finds no end of things to do at second {now:g}")

    def next_due(self) -> float | None:
        due = self._core.next_due()
        return None if due is None else due - objects.EPOCH

    # The API server.

    def _put(self, pod: Pod, kind: str = "MODIFIED") -> None:
        self._pods[pod.metadata.uid] = pod
        self._core.pod_event(kind, pod, self._now)

    def _carry_out(self, action: Action) -> Outcome:
        if isinstance(action, Emit):
            return Outcome.DONE
        if isinstance(action, Evict | LiftGate):
            raise ReplayError(f"{action}: no pod of a trace may be evicted, and none is gated")
        pod = self._pods.get(action.pod.uid)
        if pod is None:
            return Outcome.REFUSED
        if isinstance(action, WritePlan | Nominate) and action.node:
            self._to_try.append(action.pod.uid)
        self._put(applied(action, pod))
        return Outcome.DONE

    # kube-scheduler.

    def _try_pods(self, started: list[Run]) -> bool:
        """Whether there were any to try."""
        if not (self._to_try or self._came_free):
            return False
        tried = [*self._to_try]
        self._to_try.clear()
        for uid in tried:
            self._try_pod(uid, started)
        if self._came_free:
            self._came_free = False
            self._try_again(started)
        return True

    def _try_again(self, started: list[Run]) -> None:
        """Those who were turned away, the oldest first. At one moment, of two that differ in their
        expected run time alone, the longer one is turned away where the shorter one was."""
        in_vain: dict[tuple[str, int, bool], float] = {}
        most = max(self._free.values())
        for uid in [*self._turned_away]:
            job = self._jobs[self._numbers[uid]].job
            kind = job.namespace, job.gpus, job.expected is None
            expected = job.expected or 0.0
            if job.gpus > most or expected >= in_vain.get(kind, float("inf")):
                continue
            if not self._try_pod(uid, started):
                in_vain[kind] = expected
            else:
                most = max(self._free.values())

    def _try_pod(self, uid: str, started: list[Run]) -> bool:
        """Whether the pod got a node."""
        pod = self._pods.get(uid)
        if pod is None or pod.spec.node_name:
            return False
        wanted = int(pod.spec.containers[0].resources.limits[names.DEFAULT_RESOURCE])
        nominated = pod.status.nominated_node_name
        node = ""
        if nominated and self._free[nominated] >= wanted:
            node = self._ask(pod, (nominated,))
        if not node:
            node = self._ask(pod, tuple(n for n, free in self._free.items() if free >= wanted))
        if node and self._bind(pod, node, started):
            self._turned_away.pop(uid, None)
            return True
        if names.GANG not in pod.metadata.annotations:
            self._turned_away.setdefault(uid)
        pod = self._pods[uid]
        if not pod.status.conditions:
            self._put(change(pod, status=change(pod.status, conditions=(_TURNED_AWAY,))))
        return False

    def _ask(self, pod: Pod, nodes: tuple[str, ...]) -> str:
        """The node it is to go to; empty: none."""
        if not nodes:
            return ""
        answer = self._core.filter(FilterCall(pod, nodes), self._now)
        if answer.error:
            raise ReplayError(f"filter: {answer.error}")
        fitting = answer.node_names
        if len(fitting) < 2:
            return fitting[0] if fitting else ""
        scores = self._core.prioritize(FilterCall(pod, fitting), self._now).scores
        return max(scores, key=lambda score: score[1])[0]

    def _bind(self, pod: Pod, node: str, started: list[Run]) -> bool:
        meta = pod.metadata
        call = BindCall(meta.namespace, meta.name, meta.uid, node, pod.spec.scheduler_name)
        order = self._core.begin_bind(call, self._now)
        if not isinstance(order, BindOrder):
            self._core.bind_refused(call)
            return False
        latest = self._pods[meta.uid]
        annotations = {**latest.metadata.annotations, **order.annotations}
        metadata = change(latest.metadata, annotations=annotations)
        spec = change(latest.spec, node_name=node)
        self._put(change(latest, metadata=metadata, spec=spec))
        self._core.end_bind(order, Outcome.DONE, self._now)
        self._give(meta.uid, node, read_gpus(annotations[names.GPUS])[objects.CONTAINER], started)
        return True

    # Kubelets.

    def _give(self, uid: str, node: str, uuids: Iterable[str], started: list[Run]) -> None:
        number, bits = self._nodes[node]
        gpus = sum(bits[uuid] for uuid in uuids)
        self._free[node] -= gpus.bit_count()
        job = self._jobs[self._numbers[uid]]
        job.parts[number] = job.parts.get(number, 0) | gpus
        job.missing -= 1
        if not job.missing:
            del self._jobs[self._numbers[uid]]
            parts = tuple(Part(*part) for part in sorted(job.parts.items()))
            started.append(Run(job.job, self._now - objects.EPOCH, parts))
