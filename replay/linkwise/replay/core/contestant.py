"""The extender's core in simulated time, with the parts of a cluster around it.

Only the core decides. The API server's writes happen at once, and kubelets give the planned GPUs.
kube-scheduler tries a pod when it is created, when it is nominated, and when GPUs come free. It
asks about the nodes where the pod may run and that have enough free GPUs.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from linkwise.extender.api.action_effects import applied
from linkwise.extender.api.actions import Action, Emit, Evict, LiftGate, Nominate, WritePlan
from linkwise.extender.api.annotations import demand_of
from linkwise.extender.api.extender_calls import (
    BindCall,
    BindOrder,
    BindWaits,
    FilterCall,
    Outcome,
)
from linkwise.extender.api.records import GangKey
from linkwise.extender.core import Core
from linkwise.extender.core_settings import CoreSettings
from linkwise.kube.objects import Condition, Node, Pod
from linkwise.replay.core import objects
from linkwise.replay.core.may_run import MayRun
from linkwise.replay.errors import ReplayError
from linkwise.replay.jobs import Job, Part, Run
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus
from linkwise.topology.machine.model import Machine

_MOST_ROUNDS = 1000
_TURNED_AWAY = Condition("PodScheduled", "False", "Unschedulable", "linkwise: no node")
change = msgspec.structs.replace

PodsOf = Callable[[Job, int, float], Iterable[Pod]]
"""(job, its number, now in seconds since 1970) -> its pods, as they are created."""


class _Waiting:
    """A job with pods that are not bound yet."""

    def __init__(self, job: Job, pods: int) -> None:
        self.job = job
        self.missing = pods
        self.parts: dict[int, int] = {}


class CoreCluster:
    """A `Contestant`: Linkwise as it runs in production."""

    def __init__(
        self,
        nodes: Iterable[tuple[Node, Machine]],
        settings: CoreSettings | None = None,
        pods_of: PodsOf = objects.pods,
    ) -> None:
        """*nodes* are idle; a `Part` names them by number. Pods must not be gated."""
        self._settings = settings or CoreSettings()
        self._core = Core(self._settings)
        self._pods_of = pods_of
        self._now = objects.EPOCH
        self._pods: dict[str, Pod] = {}
        self._numbers: dict[str, int] = {}  # uid -> number of its job
        self._jobs: dict[int, _Waiting] = {}
        self._free: dict[str, int] = {}
        self._nodes: dict[str, tuple[int, dict[str, int]]] = {}  # number, and GPUs by uuid
        self._uids: dict[int, list[str]] = {}
        self._by_name: dict[str, int] = {}  # job name -> number
        self._to_try: deque[str] = deque()
        # Binds that wait for other members of their gangs.
        self._held: dict[GangKey, dict[str, str]] = {}  # gang -> uid -> node
        self._turned_away: dict[str, _Single] = {}  # by uid, oldest first
        self._came_free = False
        self._made = 0
        self._names: list[str] = []
        there = list(nodes)
        for number, (node, hardware) in enumerate(there):
            name = node.metadata.name
            self._names.append(name)
            self._free[name] = len(hardware.gpus)
            bits = {gpu.uuid: 1 << position for position, gpu in enumerate(hardware.gpus)}
            self._nodes[name] = number, bits
        self._may_run = MayRun([node for node, _ in there], self._settings.resource_name)
        self._core.replace_nodes([node for node, _ in there], self._now)
        self._core.replace_pods([], self._now)
        self._core.replace_budgets([], self._now)
        self._core.filter(FilterCall(Pod(), ()), self._now)  # as after kube-scheduler's first call

    # Events

    def submit(self, job: Job, now: float) -> None:
        self._now = objects.EPOCH + now
        self._made += 1
        self._by_name[job.name] = self._made
        uids = self._uids[self._made] = []
        pods = list(self._pods_of(job, self._made, self._now))
        self._jobs[self._made] = _Waiting(job, len(pods))
        for pod in pods:
            uids.append(pod.metadata.uid)
            self._numbers[pod.metadata.uid] = self._made
            self._to_try.append(pod.metadata.uid)
            self._put(pod, "ADDED")

    def end(self, run: Run, now: float) -> None:
        """The run's containers succeed, and its pods are deleted."""
        self._now = objects.EPOCH + now
        uids = self._uids.pop(self._by_name.pop(run.job.name))
        for uid in uids:
            pod = self._pods[uid]
            self._put(change(pod, status=change(pod.status, phase="Succeeded")))
        for uid in uids:
            del self._numbers[uid]
            self._core.pod_event("DELETED", self._pods.pop(uid), self._now)
        for part in run.parts:
            self._free[self._names[part.node]] += part.gpus.bit_count()
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
            self._ask_for_held(started)
            if not (self._try_pods(started) or actions):
                return started
        raise ReplayError(f"the core finds no end of things to do at second {now:g}")

    def next_due(self) -> float | None:
        due = self._core.next_due()
        return None if due is None else due - objects.EPOCH

    # API server

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

    # kube-scheduler

    def _try_pods(self, started: list[Run]) -> bool:
        """Try the waiting pods. Return False if there were none."""
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
        """Try refused pods again, by priority, then age. If two differ only in their expected run
        time, the longer one is refused at any moment when the shorter one is."""
        in_vain: dict[tuple[object, ...], float] = {}
        most = max(self._free.values())
        for uid, single in sorted(self._turned_away.items(), key=lambda item: -item[1].priority):
            if single.gpus > most or single.expected >= in_vain.get(single.alike, float("inf")):
                continue
            if not self._try_pod(uid, started):
                in_vain[single.alike] = single.expected
            else:
                most = max(self._free.values())

    def _try_pod(self, uid: str, started: list[Run]) -> bool:
        """Return True if the pod got a node."""
        pod = self._pods.get(uid)
        if pod is None or pod.spec.node_name:
            return False
        wanted = self._wanted(pod)
        nominated = pod.status.nominated_node_name
        node = ""
        if nominated and self._free[nominated] >= wanted:
            node = self._ask(pod, (nominated,))
        if not node:
            may = self._may_run.names(pod)
            fitting = (n for n, free in self._free.items() if free >= wanted and n in may)
            node = self._ask(pod, tuple(fitting))
        if node and self._bind(pod, node, started):
            self._turned_away.pop(uid, None)
            return True
        if names.GANG not in pod.metadata.annotations and uid not in self._turned_away:
            expected = self._jobs[self._numbers[uid]].job.expected
            self._turned_away[uid] = _single(pod, wanted, expected)
        pod = self._pods[uid]
        if not pod.status.conditions:
            self._put(change(pod, status=change(pod.status, conditions=(_TURNED_AWAY,))))
        return False

    def _wanted(self, pod: Pod) -> int:
        return demand_of(pod, self._settings.resource_name).gpus

    def _ask(self, pod: Pod, nodes: tuple[str, ...]) -> str:
        """Return the node for the pod; "" if there is none."""
        if not nodes:
            return ""
        answer = self._core.filter(FilterCall(pod, nodes), self._now)
        if answer.error:
            raise ReplayError(f"filter: {answer.error}")
        fitting = answer.node_names
        if len(fitting) < 2:
            return fitting[0] if fitting else ""
        scores = self._core.prioritize(FilterCall(pod, fitting), self._now).scores
        return max(scores, key=scores.__getitem__)

    def _bind(self, pod: Pod, node: str, started: list[Run]) -> bool:
        """Bind the pod, or keep the call until the other members of its gang have come."""
        meta = pod.metadata
        call = BindCall(meta.namespace, meta.name, meta.uid, node, pod.spec.scheduler_name)
        order = self._core.begin_bind(call, self._now)
        if isinstance(order, BindWaits):
            self._held.setdefault(order.gang, {})[meta.uid] = node
            return True
        if not isinstance(order, BindOrder):
            self._core.bind_refused(call)
            return False
        self._post(order, started)
        self._ask_for_held(started)
        return True

    def _ask_for_held(self, started: list[Run]) -> None:
        for gang in self._core.take_released():
            for uid, node in self._held.pop(gang, {}).items():
                pod = self._pods.get(uid)
                if pod is not None and not pod.spec.node_name:
                    self._bind(pod, node, started)

    def _post(self, order: BindOrder, started: list[Run]) -> None:
        meta, node = self._pods[order.uid].metadata, order.node
        latest = self._pods[meta.uid]
        annotations = {**latest.metadata.annotations, **order.annotations}
        metadata = change(latest.metadata, annotations=annotations)
        spec = change(latest.spec, node_name=node)
        status = change(latest.status, phase="Running")  # its kubelet starts it at once
        self._put(change(latest, metadata=metadata, spec=spec, status=status))
        self._core.end_bind(order, Outcome.DONE, self._now)
        given = read_gpus(annotations[names.GPUS]).values()
        self._give(meta.uid, node, frozenset().union(*given), started)

    # Kubelets

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
