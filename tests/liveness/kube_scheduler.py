"""kube-scheduler for a test that says what time it is: the simulator's own steps, one pod after the
other.

Its extender is the core itself, behind calls that a test may
lose. A bind may wait for other members of its gang; meanwhile the pod is assumed and other pods are
tried.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from linkwise.extender.core import Core
from linkwise.extender.run.ports.dispatch import PassedNodes
from linkwise.extender.state.extender_calls import (
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
from linkwise.kube.device_claims import ResourceClaim
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.objects import Condition, Pod
from linkwise.replay.in_memory_api_server import answer_in_time
from linkwise.simulator.scheduler.cycle import Cycle, Unfit
from linkwise.simulator.scheduler.extender import ExtenderClient, ExtenderError, Filtered
from linkwise.simulator.scheduler.queue import ClusterEvent, QueuedPod, SchedulingQueue
from linkwise.simulator.scheduler.settings import OtherFilter, SchedulerSettings
from linkwise.simulator.scheduler.steps import SchedulerSteps
from linkwise.topology.names import DEFAULT_RESOURCE
from tests.extender.device_cluster import DeviceCluster, devices_of

T = TypeVar("T")
change = msgspec.structs.replace
HELD_SECONDS = 12.0  # for so long the extender lets a bind call wait for other members


class SampledCycle(Cycle):
    """Content with few nodes that pass: kube-scheduler's sample of 100, for a small cluster."""

    def __init__(self, *things: Any, sample: int, devices: DeviceCluster, **named: Any) -> None:
        super().__init__(*things, **named)
        self._sample, self._devices = sample, devices

    def _enough(self, nodes: int) -> int:
        return min(nodes, self._sample)

    def _plugins_pass(self, pod: Pod, name: str, unfit: Unfit) -> bool:
        if not super()._plugins_pass(pod, name, unfit):
            return False
        if why := self._lacks_devices(pod, name):
            # Up to 1.37, it evicts no pod for devices.
            unfit.rejections[name] = Rejection("DynamicResources", (why,), resolvable=False)
        return not why

    def _lacks_devices(self, pod: Pod, node: str) -> str:
        if not pod.spec.resource_claims:
            return ""
        claim = self._devices.claim_of(pod)
        if claim is None:
            return f'resourceclaim "{pod.spec.resource_claims[0].resource_claim_name}" not found'
        if devices := devices_of(claim):
            there = any(device.pool == node for device in devices)
            return "" if there else "resourceclaim not available on the node"
        return "" if self._devices.fit(claim, node) else "cannot allocate all claims"


class ClaimQueue(SchedulingQueue):
    def __init__(self, devices: DeviceCluster, **named: Any) -> None:
        super().__init__(**named)
        self._devices = devices

    def is_gated(self, pod: Pod) -> bool:
        """A pod with a claim that does not exist waits without a condition, too."""
        lacks_claim = bool(pod.spec.resource_claims) and self._devices.claim_of(pod) is None
        return lacks_claim or super().is_gated(pod)


class LazyQueue(ClaimQueue):
    """It tries a pod that did not fit once more if the extender nominates it elsewhere. No other
    change wakes it, and no time: so each pod that is woken was woken by the extender."""

    def __init__(self, devices: DeviceCluster, **named: Any) -> None:
        super().__init__(devices, **named | {"max_unschedulable_seconds": math.inf})

    def update(self, pod: Pod, now: float) -> None:
        asleep = self._unschedulable.get(pod.metadata.uid)
        before = "" if asleep is None else asleep.pod.status.nominated_node_name
        super().update(pod, now)
        if asleep is not None and pod.status.nominated_node_name not in ("", before):
            del self._unschedulable[asleep.uid]
            self._requeue(asleep, now)

    @staticmethod
    def _wakes(queued: QueuedPod, event: ClusterEvent) -> bool:  # noqa: ARG004
        return event is ClusterEvent.DEVICES_CHANGED

    @staticmethod
    def _wakes_on_update(queued: QueuedPod) -> bool:  # noqa: ARG004
        return False


@dataclass(slots=True)
class Wire:
    """Between kube-scheduler and the extender; a test cuts it."""

    core: Callable[[], Core | None]  # None: there is no leader
    now: Callable[[], float]
    post: Callable[[BindOrder], Outcome]  # the extender's Binding, and the outcome that it learns
    catch_up: Callable[[], None]  # the extender's watch shows what there is
    decide: Callable[[], object]  # the extender has a round
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
        if core.filter(call, self._wire.now()).passing:
            self._wire.catch_up()
            self._wire.decide()
        answer = answer_in_time(core, call, self._wire.now())
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
    bind: Callable[[QueuedPod, str], object]  # the pod has its devices there


class KubeScheduler(SchedulerSteps):
    def __init__(
        self,
        wire: Wire,
        api: Api,
        seed: int,
        sample: int,
        other_filters: Sequence[OtherFilter],
        devices: DeviceCluster,
        queue: type[ClaimQueue] = ClaimQueue,
    ) -> None:
        self.wire, self._api, self._devices = wire, api, devices
        self._core = CoreExtender(wire)
        self.binds: list[BindUnderway] = []  # that wait for other members
        super().__init__(
            SchedulerSettings(other_filters=other_filters),
            self._core,
            seed=seed,
            lock=nullcontext(),
            now=wire.now,
            cycle=partial(SampledCycle, sample=sample, devices=devices),
            queue=partial(queue, devices),
        )

    def note_nomination(self, known: Pod | None, pod: Pod) -> None:
        """As before 1.37, where it is harder for Linkwise."""
        if known is not None or not pod.spec.scheduling_gates:
            super().note_nomination(known, pod)

    def claim_event(self, kind: str, claim: ResourceClaim) -> None:
        now = self.wire.now()
        # A claim that has devices is deallocated, which is a change, before it is deleted.
        if kind != "DELETED" or devices_of(claim):
            self.queue.move_all(ClusterEvent.DEVICES_CHANGED, now)
        for pod in [*self.pods.values()]:
            waits = not (pod.spec.node_name or self.cluster.is_assumed(pod.metadata.uid))
            if waits and pod.spec.resource_claims:
                self.queue.update(pod, now)

    def slice_event(self, kind: str) -> None:
        if kind != "DELETED":
            self.queue.move_all(ClusterEvent.DEVICES_CHANGED, self.wire.now())

    def passes(self, pod: Pod, node: str) -> bool:
        """Whether everything but the extender and the devices lets the pod go there."""
        there = self.cluster.node(node) is not None
        return there and self.cluster.rejection(pod, node) is None

    def try_next(self) -> bool:
        """End the binds that wait no longer, or try one pod, if there is one."""
        if self._ask_again():
            return True
        queued = self.queue.pop(self.wire.now())
        if queued is None:
            return False
        self.try_pod(queued)
        return True

    # Binds

    def start_bind(self, queued: QueuedPod, node: str) -> None:
        if queued.pod.spec.resource_claims:
            self._devices.give_devices(queued.pod, node)
            self._api.bind(queued, node)  # the extender has no say about such pods
            return
        if not self._core.is_interested(queued.pod):
            self._api.bind(queued, node)  # it takes no GPUs
            return
        try:
            self.binds.append(self._core.start_bind(queued, node))
        except ExtenderError as error:
            self.error(queued, str(error))
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
            return self._core.ask_again(bind)
        except ExtenderError as error:
            self.error(bind.queued, str(error))
            return True

    def hang_up(self) -> None:
        """The process that got these calls is gone, or leads no more."""
        binds, self.binds = self.binds, []
        for bind in binds:
            self.error(bind.queued, "connection reset")

    def next_bind_end(self) -> float:
        return min((bind.ends for bind in self.binds), default=math.inf)

    # Writes

    def fit_error(self, unfit: Unfit) -> str:
        """The real text says how many nodes have which reason. With each sample of the nodes it is
        another, and makes kube-scheduler try again, at the cost of time that does not pass here. If
        its own filters leave no node, it has looked at all."""
        texts = (reason for each in unfit.reasons.values() for reason in each)
        why = ", ".join(sorted({r.reasons[0] for r in unfit.rejections.values()}))
        asked = any(text.startswith("linkwise: ") for text in texts)
        said = f"0/{len(self.cluster.names())} nodes are available: "
        return said + ("linkwise: none fits" if asked else why)

    def say(self, pod: Pod, reason: str, message: str, nomination: str | None) -> None:
        if reason == "Unschedulable" and pod.spec.resource_claims:
            self._devices.deallocate(pod)  # for another node
        told = Condition("PodScheduled", "False", reason, message)
        others = tuple(c for c in pod.status.conditions if c.type != "PodScheduled")
        before = next((c for c in pod.status.conditions if c.type == "PodScheduled"), None)
        node = pod.status.nominated_node_name if nomination is None else nomination
        if before != told or node != pod.status.nominated_node_name:
            status = change(pod.status, conditions=(*others, told), nominated_node_name=node)
            self._api.put(change(pod, status=status))

    def evict(self, victim: Pod, claimant: Pod) -> None:
        self._api.delete(victim, claimant)

    def drop_nomination(self, pod: Pod) -> None:
        self._api.put(change(pod, status=change(pod.status, nominated_node_name="")))
