"""kube-scheduler without threads, sockets or a clock: the simulator's queue and judgement, driven
by a test that says what time it is.

It does what `linkwise.simulator.scheduler.loop` does, one pod after the other. Its extender is the
core itself, behind calls that a test may lose. A bind may wait for other members of its gang;
meanwhile the pod is assumed and other pods are tried.
"""

import math
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from linkwise.extender.api.extender_calls import (
    BindCall,
    BindOrder,
    BindRefusal,
    BindWaits,
    FilterAnswer,
    FilterCall,
    Outcome,
    PreemptCall,
    Victims,
)
from linkwise.extender.core import Core
from linkwise.extender.runtime.ports.passed_nodes import PassedNodes
from linkwise.kube.objects import Condition, Node, Pod
from linkwise.simulator.scheduler import preemption
from linkwise.simulator.scheduler.cache import SchedulerCache
from linkwise.simulator.scheduler.cycle import Cycle, Unfit
from linkwise.simulator.scheduler.extender import ExtenderClient, ExtenderError, Filtered
from linkwise.simulator.scheduler.queue import ClusterEvent, QueuedPod, SchedulingQueue
from linkwise.simulator.scheduler.settings import OtherFilter
from linkwise.topology.names import DEFAULT_RESOURCE

T = TypeVar("T")
change = msgspec.structs.replace
_ENDED = ("Succeeded", "Failed")
OWN_NAME = "default-scheduler"
HELD_SECONDS = 12.0  # for so long the extender lets a bind call wait for other members


class SampledCycle(Cycle):
    """Content with few nodes that pass: kube-scheduler's sample of 100, for a small cluster."""

    sample = 1 << 30

    def _enough(self, nodes: int) -> int:
        return min(nodes, self.sample)


@dataclass(slots=True)
class Wire:
    """Between kube-scheduler and the extender; a test cuts it."""

    core: Callable[[], Core | None]  # None: there is no leader
    now: Callable[[], float]
    post: Callable[[BindOrder], Outcome]  # the extender's Binding, and the outcome that it learns
    catch_up: Callable[[], None]  # the extender's watch shows what there is
    is_lost: Callable[[], bool] = lambda: False  # the call, or the answer to it
    lost: int = 0
    calls: int = 0

    def ask(self, asked: Callable[[Core], T]) -> T:
        """Raises ExtenderError."""
        answer = asked(self.reach())
        self.answer()
        return answer

    def reach(self) -> Core:
        """The call arrives. Raises ExtenderError."""
        self.calls += 1
        core = self.core()
        if core is None:
            raise ExtenderError("connection refused")
        if self.is_lost():
            self.lost += 1
            raise ExtenderError("the call was lost")
        return core

    def answer(self) -> None:
        """Raises ExtenderError."""
        if self.is_lost():
            self.lost += 1
            raise ExtenderError("the answer was lost")


@dataclass(frozen=True, slots=True, eq=False)
class BindUnderway:
    """A bind call without an answer yet; the pod is assumed on its node."""

    queued: QueuedPod
    call: BindCall
    core: Core  # that got it
    since: float

    @property
    def ends(self) -> float:
        return self.since + HELD_SECONDS


class CoreExtender(ExtenderClient):
    def __init__(self, wire: Wire) -> None:
        super().__init__("http://core", managed_resources=[DEFAULT_RESOURCE])
        self._wire = wire
        self._memory: tuple[Core | None, PassedNodes] = None, PassedNodes()

    def filter(self, pod: Pod, nodes: Sequence[str]) -> Filtered:
        call = FilterCall(pod, tuple(nodes))
        answer = self._wire.ask(lambda core: self._filter(core, call))
        return Filtered(answer.node_names, answer.failed, answer.unresolvable)

    def _filter(self, core: Core, call: FilterCall) -> FilterAnswer:
        answer = core.filter(call, self._wire.now())
        self._let_through(core).note(call.pod, answer.node_names)
        return answer

    def _let_through(self, core: Core) -> PassedNodes:
        """Of this process alone: another leader begins without."""
        if self._memory[0] is not core:
            self._memory = core, PassedNodes()
        return self._memory[1]

    def prioritize(self, pod: Pod, nodes: Sequence[str]) -> dict[str, int]:
        call = FilterCall(pod, tuple(nodes))
        try:
            answer = self._wire.ask(lambda core: core.prioritize(call, self._wire.now()))
        except ExtenderError:
            return {}
        return answer.scores

    def preempt(self, pod: Pod, victims: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
        call = PreemptCall(pod, {node: Victims(tuple(uids)) for node, uids in victims.items()})
        answer = self._wire.ask(lambda core: core.preempt(call, self._wire.now()))
        return {node: those.uids for node, those in answer.victims.items()}

    def start_bind(self, queued: QueuedPod, node: str) -> BindUnderway:
        """Raises ExtenderError."""
        meta, core = queued.pod.metadata, self._wire.reach()
        through = self._let_through(core).as_whose(meta.uid, node)
        call = BindCall(meta.namespace, meta.name, meta.uid, node, through)
        return BindUnderway(queued, call, core, self._wire.now())

    def ask_again(self, bind: BindUnderway) -> bool:
        """As the extender's loop asks its core: whether the pod is bound, or has to wait. Raises
        ExtenderError."""
        wire, core, call = self._wire, bind.core, bind.call
        if wire.core() is not core:
            raise ExtenderError("connection reset")
        now = wire.now()
        order: object = core.begin_bind(call, now)
        if isinstance(order, BindRefusal) and order.passing:
            wire.catch_up()
            order = core.begin_bind(call, now)
        if isinstance(order, BindWaits):
            if now < bind.ends:
                return False
            order = core.bind_gave_up(call, now) or core.begin_bind(call, now)
        if isinstance(order, BindRefusal):
            core.bind_refused(call)
            raise ExtenderError(order.reason)
        if isinstance(order, BindOrder):
            outcome = wire.post(order)
            core.end_bind(order, outcome, now)
            if outcome is not Outcome.DONE:
                raise ExtenderError(f"binding: {outcome.value}")
        wire.answer()
        return True


@dataclass(slots=True)
class Api:
    """What it writes, each of which comes back as an event."""

    put: Callable[[Pod], object]
    delete: Callable[[Pod, Pod], object]  # a victim, with grace, for a claimant


@dataclass
class KubeScheduler:
    wire: Wire
    api: Api
    seed: int
    sample: int
    other_filters: MutableSequence[OtherFilter] = field(default_factory=list)
    queue: SchedulingQueue = field(default_factory=SchedulingQueue)
    pods: dict[str, Pod] = field(default_factory=dict)
    binds: list[BindUnderway] = field(default_factory=list)  # that wait for other members
    tries: int = 0

    def __post_init__(self) -> None:
        self.cluster = SchedulerCache(self.other_filters, self.wire.now)
        self._extender = CoreExtender(self.wire)
        self._cycle = SampledCycle(
            self.cluster,
            nullcontext(),
            self._extender,
            seed=self.seed,
            percentage_of_nodes_to_score=0,
            extender_weight=1,
        )
        self._cycle.sample = self.sample

    # What it hears.

    def node_event(self, kind: str, node: Node) -> None:
        name, now = node.metadata.name, self.wire.now()
        if kind == "DELETED":
            self.cluster.remove_node(name)
            return
        before = self.cluster.node(name)
        self.cluster.set_node(node)
        for event in _changes(before, node):
            self.queue.move_all(event, now)

    def pod_event(self, kind: str, pod: Pod) -> None:
        uid, now = pod.metadata.uid, self.wire.now()
        known = self.pods.get(uid)
        if kind == "DELETED" or pod.status.phase in _ENDED:
            self.pods.pop(uid, None)
            self.queue.delete(uid)
            self.cluster.forget_pod(uid)
            if self.cluster.remove_pod(uid):
                self.queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, now)
        elif pod.spec.node_name:
            self.pods[uid] = pod
            self.queue.delete(uid)
            self.cluster.add_pod(pod)
            was_there = known is not None and known.spec.node_name
            added, changed = ClusterEvent.ASSIGNED_POD_ADDED, ClusterEvent.ASSIGNED_POD_CHANGED
            self.queue.move_all(changed if was_there else added, now)
        elif pod.spec.scheduler_name == OWN_NAME:
            self.pods[uid] = pod
            if not self.cluster.is_assumed(uid):
                # As before 1.37, where it is harder for Linkwise.
                if known is not None or not pod.spec.scheduling_gates:
                    self.cluster.nominate(pod)
                self.queue.update(pod, now)
        # Since 1.34 (`hasNominatedNodeNameChanged` in its eventhandlers.go).
        was_at = "" if known is None or known.spec.node_name else known.status.nominated_node_name
        is_at = "" if kind == "DELETED" else pod.status.nominated_node_name
        if was_at and not pod.spec.node_name and was_at != is_at:
            self.queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, now)

    def passes(self, pod: Pod, node: str) -> bool:
        """Whether everything but the extender lets the pod go there."""
        there = self.cluster.node(node) is not None
        return there and self.cluster.rejection(pod, node) is None

    # What it does.

    def try_next(self) -> bool:
        """End the binds that wait no longer, or try one pod, if there is one."""
        if self._ask_again():
            return True
        queued = self.queue.pop(self.wire.now())
        if queued is None:
            return False
        self.tries += 1
        pod = queued.pod
        if pod.metadata.deletion_timestamp is not None:
            self.queue.done(queued.uid)
            return True
        try:
            found = self._cycle.schedule(pod)
        except ExtenderError as error:
            self._error(queued, str(error))
            return True
        if isinstance(found, Unfit):
            self._unfit(queued, found)
        else:
            self._bind(queued, found)
        return True

    def _bind(self, queued: QueuedPod, node: str) -> None:
        latest = self.pods.get(queued.uid)
        if latest is None or latest.spec.node_name:
            return
        self.cluster.assume_pod(queued.pod, node)
        self.queue.done(queued.uid)
        try:
            self.binds.append(self._extender.start_bind(queued, node))
        except ExtenderError as error:
            self._bind_failed(queued, error)
        self._ask_again()

    def _ask_again(self) -> bool:
        """Whether any bind ended. All that a last member releases end at this moment."""
        ended = False
        while over := [bind for bind in self.binds if self._is_over(bind)]:
            self.binds = [bind for bind in self.binds if bind not in over]
            ended = True
        return ended

    def _is_over(self, bind: BindUnderway) -> bool:
        try:
            return self._extender.ask_again(bind)
        except ExtenderError as error:
            self._bind_failed(bind.queued, error)
            return True

    def hang_up(self) -> None:
        """The process that got these calls is gone, or leads no more."""
        binds, self.binds = self.binds, []
        for bind in binds:
            self._bind_failed(bind.queued, ExtenderError("connection reset"))

    def next_bind_end(self) -> float:
        return min((bind.ends for bind in self.binds), default=math.inf)

    def _bind_failed(self, queued: QueuedPod, error: ExtenderError) -> None:
        if self.cluster.is_assumed(queued.uid):
            self.cluster.remove_pod(queued.uid)
            self.queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, self.wire.now())
        self._error(queued, str(error))

    def _error(self, queued: QueuedPod, message: str) -> None:
        pod = self._still_waits(queued, "")
        if pod is not None:
            self.queue.add_error(queued, self.wire.now())
            self._say(pod, "SchedulerError", message, "")

    def _unfit(self, queued: QueuedPod, unfit: Unfit) -> None:
        try:
            nomination = self._preempt(queued.pod, unfit)
        except ExtenderError:
            nomination = None
        pod = self._still_waits(queued, nomination)
        if pod is None:
            return
        self.queue.add_unschedulable(queued, unfit.rejected_by, self.wire.now())
        # The real text says how many nodes have which reason. With each sample of the nodes it is
        # another, and makes kube-scheduler try again, at the cost of time that does not pass here.
        # If its own filters leave no node, it has looked at all.
        texts = (reason for each in unfit.reasons.values() for reason in each)
        why = ", ".join(sorted({r.reasons[0] for r in unfit.rejections.values()}))
        asked = any(text.startswith("linkwise: ") for text in texts)
        said = f"0/{len(self.cluster.names())} nodes are available: "
        self._say(
            pod, "Unschedulable", said + ("linkwise: none fits" if asked else why), nomination
        )

    def _still_waits(self, queued: QueuedPod, nomination: str | None) -> Pod | None:
        pod = self.pods.get(queued.uid)
        if pod is None or pod.spec.node_name:
            self.queue.done(queued.uid)
            return None
        queued.pod = pod
        if nomination is not None:
            queued.pod = change(pod, status=change(pod.status, nominated_node_name=nomination))
        self.cluster.nominate(queued.pod)
        return pod

    def _say(self, pod: Pod, reason: str, message: str, nomination: str | None) -> None:
        told = Condition("PodScheduled", "False", reason, message)
        others = tuple(c for c in pod.status.conditions if c.type != "PodScheduled")
        before = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
        node = pod.status.nominated_node_name if nomination is None else nomination
        if before != told or node != pod.status.nominated_node_name:
            status = change(pod.status, conditions=(*others, told), nominated_node_name=node)
            self.api.put(change(pod, status=status))

    def _preempt(self, pod: Pod, unfit: Unfit) -> str | None:
        if not preemption.is_eligible(pod, self.cluster, unfit.rejections):
            return None
        found = preemption.candidates(pod, self.cluster, unfit.rejections)
        if not found:
            return ""
        asked = {node: [v.metadata.uid for v in victims] for node, victims in found.items()}
        agreed = {}
        for node, uids in self._extender.preempt(pod, asked).items():
            there = self.cluster.info(node).pods
            if not uids or not set(uids) <= there.keys():
                raise ExtenderError(f"extender's preempt answer for {node}")
            agreed[node] = tuple(there[uid][0] for uid in uids)
        if not agreed:
            return ""
        node = preemption.pick(agreed)
        for victim in agreed[node]:
            self.api.delete(victim, pod)
        for other in self.cluster.nominated_below(node, pod.spec.priority):
            status = change(other.status, nominated_node_name="")
            self.api.put(change(other, status=status))
        return node


def _changes(before: Node | None, node: Node) -> list[ClusterEvent]:
    if before is None:
        return [ClusterEvent.NODE_ADDED]
    return [
        event
        for event, happened in {
            ClusterEvent.NODE_ALLOCATABLE: before.status.allocatable != node.status.allocatable,
            ClusterEvent.NODE_TAINTS: before.spec != node.spec,
            ClusterEvent.NODE_OTHER: before.metadata.annotations != node.metadata.annotations
            or before.status.conditions != node.status.conditions,
        }.items()
        if happened
    ]
