"""kube-scheduler's steps: what it does about an event, and what it does as it tries a pod.

Without threads, sockets or a clock: a subclass says when there is a step, and carries out what it
writes.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from linkwise.kube.objects import Node, Pod
from linkwise.simulator.scheduler import preemption, words
from linkwise.simulator.scheduler.cache import SchedulerCache
from linkwise.simulator.scheduler.cycle import Cycle, Unfit
from linkwise.simulator.scheduler.extender import ExtenderClient, ExtenderError
from linkwise.simulator.scheduler.queue import (
    ClusterEvent,
    QueuedPod,
    SchedulingQueue,
    node_events,
)
from linkwise.simulator.scheduler.settings import SchedulerSettings

log = logging.getLogger(__name__)


class SchedulerSteps(ABC):
    def __init__(
        self,
        settings: SchedulerSettings,
        extender: ExtenderClient | None,
        *,
        seed: int,
        lock: AbstractContextManager[object],
        now: Callable[[], float],
        cycle: Callable[..., Cycle] = Cycle,
        queue: Callable[..., SchedulingQueue] = SchedulingQueue,
    ) -> None:
        """*lock* guards `cluster`, `queue` and `pods`, and can be taken twice."""
        self._settings, self._extender = settings, extender
        self._lock, self._now = lock, now
        self.cluster = SchedulerCache(settings.other_filters, now)
        self.queue = queue(
            initial_backoff_seconds=settings.initial_backoff_seconds,
            max_backoff_seconds=settings.max_backoff_seconds,
            max_unschedulable_seconds=settings.max_unschedulable_seconds,
        )
        self.pods: dict[str, Pod] = {}  # as last seen: those with a node, and its own that wait
        self._cycle = cycle(
            self.cluster,
            lock,
            extender,
            seed=seed,
            percentage_of_nodes_to_score=settings.percentage_of_nodes_to_score,
            extender_weight=settings.extender_weight,
        )

    # What a subclass carries out

    @abstractmethod
    def start_bind(self, queued: QueuedPod, node: str) -> None:
        """The pod is assumed on *node*. If the bind fails, `error` follows. The lock is held."""

    @abstractmethod
    def say(self, pod: Pod, reason: str, message: str, nomination: str | None) -> None:
        """Write why the pod waits. *nomination*: as in `words.condition_patch`."""

    @abstractmethod
    def evict(self, victim: Pod, claimant: Pod) -> None: ...

    @abstractmethod
    def drop_nomination(self, pod: Pod) -> None: ...

    # Events; the lock is held

    def node_event(self, kind: str, node: Node) -> None:
        """Raises ValueError if an amount of the node does not parse."""
        name, now = node.metadata.name, self._now()
        if kind == "DELETED":
            self.cluster.remove_node(name)
            self.queue.move_all(ClusterEvent.NODE_GONE, now)
            return
        before = self.cluster.node(name)
        self.cluster.set_node(node)
        for event in node_events(before, node):
            self.queue.move_all(event, now)

    def pod_event(self, kind: str, pod: Pod) -> None:
        uid, now = pod.metadata.uid, self._now()
        known = self.pods.get(uid)
        # The scheduler's watch leaves out pods that have ended.
        if kind == "DELETED" or pod.has_ended:
            self.pods.pop(uid, None)
            self.queue.delete(uid)
            self.cluster.forget_pod(uid)
            if self.cluster.remove_pod(uid):
                self.queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, now)
        elif pod.spec.node_name:
            self.pods[uid] = pod
            self.queue.delete(uid)
            self.cluster.add_pod(pod)
            is_new = known is None or not known.spec.node_name
            added, changed = ClusterEvent.ASSIGNED_POD_ADDED, ClusterEvent.ASSIGNED_POD_CHANGED
            self.queue.move_all(added if is_new else changed, now)
            if known is not None and known.metadata.labels != pod.metadata.labels:
                self.queue.move_all(ClusterEvent.ASSIGNED_POD_LABELS, now)
        elif pod.spec.scheduler_name == self._settings.scheduler_name:
            self.pods[uid] = pod
            if not self.cluster.is_assumed(uid):
                self.note_nomination(known, pod)
                self.queue.update(pod, now)
        if _gives_up_room(known, pod, kind):
            self.queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, now)

    def note_nomination(self, known: Pod | None, pod: Pod) -> None:  # noqa: ARG002
        """Of a waiting pod; *known*: as it was before, if it was there."""
        self.cluster.nominate(pod)

    # A try

    def try_pod(self, queued: QueuedPod) -> None:
        pod = queued.pod
        if pod.is_leaving:
            with self._lock:
                self.queue.done(queued.uid)
            return
        try:
            found = self._cycle.schedule(pod)
        except ExtenderError as error:
            self.error(queued, str(error))
            return
        if isinstance(found, Unfit):
            self._unfit(queued, found)
            return
        with self._lock:
            latest = self.pods.get(queued.uid)
            if latest is None or latest.spec.node_name:
                return  # deleted, or bound by another program, during the try
            self.cluster.assume_pod(pod, found)
            self.queue.done(queued.uid)
            self.start_bind(queued, found)

    def error(self, queued: QueuedPod, message: str) -> None:
        """Queue the pod for another try after its back-off, whatever happens."""
        with self._lock:
            if self.cluster.is_assumed(queued.uid):
                self.cluster.remove_pod(queued.uid)
                self.queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, self._now())
            pod = self._still_waits(queued, nomination="")
            if pod is None:
                return
            self.queue.add_error(queued, self._now())
        self.say(pod, "SchedulerError", message, nomination="")

    def _unfit(self, queued: QueuedPod, unfit: Unfit) -> None:
        """Preempt if that helps, queue the pod, and write the reason into its status. That write is
        an update like any other, so it wakes a pod that the extender refused."""
        tried = queued.pod
        try:
            nomination = self._preempt(tried, unfit)
        except ExtenderError as error:  # the pod still fits nowhere, and sleeps
            log.info("%s: preemption: %s", tried.metadata.name, error)
            nomination = None
        with self._lock:
            pod = self._still_waits(queued, nomination)
            if pod is None:
                return
            self.queue.add_unschedulable(queued, unfit.rejected_by, self._now())
        self.say(pod, "Unschedulable", self.fit_error(unfit), nomination)

    def fit_error(self, unfit: Unfit) -> str:
        helpful = sum(r.resolvable for r in unfit.rejections.values())
        nowhere = unfit.nowhere.reasons[0] if unfit.nowhere else ""
        return words.fit_error(unfit.nodes, unfit.reasons, helpful, nowhere)

    def _still_waits(self, queued: QueuedPod, nomination: str | None) -> Pod | None:
        """Return the pod as last seen. If it no longer waits, drop it from the queue and return
        None.

        The queue goes on with this pod, with the nomination that the scheduler is about to write.
        """
        pod = self.pods.get(queued.uid)
        if pod is None or pod.spec.node_name:
            self.queue.done(queued.uid)
            return None
        queued.pod = pod
        if nomination is not None:
            status = msgspec.structs.replace(pod.status, nominated_node_name=nomination)
            queued.pod = msgspec.structs.replace(pod, status=status)
        self.cluster.nominate(queued.pod)
        return pod

    def _preempt(self, pod: Pod, unfit: Unfit) -> str | None:
        """Evict the victims on one node, and return its name.

        Returns "" if eviction helps nowhere, and None if earlier victims are still ending. Raises
        ExtenderError.
        """
        with self._lock:
            if not preemption.is_eligible(pod, self.cluster, unfit.rejections):
                return None
            found = preemption.candidates(pod, self.cluster, unfit.rejections)
        if found and self._extender is not None and self._extender.is_interested(pod):
            # The extender may drop nodes, and name other victims on them.
            asked = {node: [v.metadata.uid for v in victims] for node, victims in found.items()}
            answer = self._extender.preempt(pod, asked)
            with self._lock:
                found = preemption.agreed_victims(answer, self.cluster)
        if not found:
            return ""
        node = preemption.pick(found)
        for victim in found[node]:
            log.info("%s evicts %s from %s", pod.metadata.name, victim.metadata.name, node)
            self.evict(victim, pod)
        with self._lock:
            lower = self.cluster.nominated_below(node, pod.spec.priority)
        for other in lower:
            self.drop_nomination(other)
        return node


def _gives_up_room(known: Pod | None, pod: Pod, kind: str) -> bool:
    """Whether a waiting pod no longer keeps the room that it was nominated for: since 1.34 it wakes
    others (`hasNominatedNodeNameChanged` in its eventhandlers.go)."""
    before = "" if known is None or known.spec.node_name else known.status.nominated_node_name
    now = "" if kind == "DELETED" else pod.status.nominated_node_name
    return bool(before) and not pod.spec.node_name and before != now
