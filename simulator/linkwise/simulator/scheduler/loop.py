"""kube-scheduler's loop: watches nodes and pods, tries one pod at a time, binds in parallel.

With an extender it makes the calls that kube-scheduler makes, in the same order. Without one it is
the baseline of the demo. One thread tries pods, so at most one filter call is in flight. Binds run
in a pool and overlap with the next tries.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from threading import Thread

import msgspec

from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.filters.volumes.storage import StorageObject
from linkwise.kube.objects import (
    CSINode,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
)
from linkwise.kube.reflector import Reflector
from linkwise.simulator.control_loop import ControlLoop
from linkwise.simulator.scheduler import preemption, words
from linkwise.simulator.scheduler.cache import SchedulerCache
from linkwise.simulator.scheduler.cycle import Cycle, Unfit
from linkwise.simulator.scheduler.extender import ExtenderClient, ExtenderError
from linkwise.simulator.scheduler.feasible import requests_of
from linkwise.simulator.scheduler.queue import (
    ClusterEvent,
    QueueCounts,
    QueuedPod,
    SchedulingQueue,
    node_events,
    storage_event,
)
from linkwise.simulator.scheduler.settings import SchedulerSettings

log = logging.getLogger(__name__)

_ENDED_PHASES = ("Succeeded", "Failed")
_STORAGE: Mapping[str, type[StorageObject]] = {
    "/api/v1/persistentvolumes": PersistentVolume,
    "/api/v1/persistentvolumeclaims": PersistentVolumeClaim,
    "/apis/storage.k8s.io/v1/storageclasses": StorageClass,
    "/apis/storage.k8s.io/v1/csinodes": CSINode,
}


class SchedulerLoop(ControlLoop):
    """*extender_url* is the prefix of the verbs; None: kube-scheduler alone. *seed* decides between
    nodes of equal score."""

    def __init__(
        self,
        client: KubeClient,
        extender_url: str | None = None,
        *,
        seed: int = 0,
        settings: SchedulerSettings | None = None,
    ) -> None:
        super().__init__()
        self._settings = settings = settings or SchedulerSettings()
        self._client = client
        self._extender = (
            ExtenderClient(
                extender_url,
                managed_resources=settings.managed_resources,
                timeout_seconds=settings.extender_timeout_seconds,
            )
            if extender_url
            else None
        )
        self._cluster = SchedulerCache(settings.other_filters)
        self._queue = SchedulingQueue(
            initial_backoff_seconds=settings.initial_backoff_seconds,
            max_backoff_seconds=settings.max_backoff_seconds,
            max_unschedulable_seconds=settings.max_unschedulable_seconds,
        )
        self._pods: dict[str, Pod] = {}  # pods that have not ended, as last seen
        self._binding = 0
        self._cycle = Cycle(
            self._cluster,
            self._changed,
            self._extender,
            seed=seed,
            percentage_of_nodes_to_score=settings.percentage_of_nodes_to_score,
            extender_weight=settings.extender_weight,
        )
        self._binds = ThreadPoolExecutor(settings.bind_threads, thread_name_prefix="bind")
        self._reflectors = (  # pods last, or they would be tried without any node or volume
            Reflector(
                client,
                "/api/v1/namespaces",
                Namespace,
                on_replace=self._replace_namespaces,
                on_event=self._namespace_event,
            ),
            *(self._storage(path, kind) for path, kind in _STORAGE.items()),
            Reflector(
                client,
                "/api/v1/nodes",
                Node,
                on_replace=self._replace_nodes,
                on_event=self._node_event,
            ),
            Reflector(
                client,
                "/api/v1/pods",
                Pod,
                on_replace=self._replace_pods,
                on_event=self._pod_event,
            ),
        )
        self._thread = Thread(target=self._run, name="scheduler", daemon=True)

    def stop(self) -> None:
        """Finish the current try and the binds, and start no other."""
        super().stop()
        self._binds.shutdown()
        if self._extender is not None:
            self._extender.close()

    def counts(self) -> QueueCounts:
        with self._changed:
            return self._queue.counts()

    @property
    def idle(self) -> bool:
        """True if the loop tries and binds nothing, and waits for an event.

        Retries after errors, and of pods that have waited for five minutes, do not count.
        """
        with self._changed:
            counts = self._queue.counts()
            return not (self._binding or counts.active or counts.in_flight or counts.backoff)

    # Events from the API server

    def _storage(self, path: str, kind: type[StorageObject]) -> Reflector[StorageObject]:
        """A watch on a kind of object that says where volumes are."""
        storage = self._cluster.storage

        def on_replace(objects: Collection[StorageObject]) -> None:
            with self._changed:
                storage.replace(kind, objects)
            for one in objects:
                on_event("ADDED", one)

        def on_event(what: str, one: StorageObject) -> None:
            with self._changed:
                if what == "DELETED":
                    storage.drop(one)
                    return
                storage.put(one)
                self._queue.move_all(storage_event(what, one), time.monotonic())
                self._changed.notify_all()

        return Reflector(self._client, path, kind, on_replace=on_replace, on_event=on_event)

    def _replace_namespaces(self, namespaces: Collection[Namespace]) -> None:
        with self._changed:
            self._cluster.replace_namespaces(namespaces)

    def _namespace_event(self, kind: str, namespace: Namespace) -> None:
        """kube-scheduler wakes no pod for a namespace."""
        with self._changed:
            if kind == "DELETED":
                self._cluster.remove_namespace(namespace.metadata.name)
            else:
                self._cluster.set_namespace(namespace)

    def _replace_nodes(self, nodes: Collection[Node]) -> None:
        with self._changed:
            for name in set(self._cluster.names()) - {node.metadata.name for node in nodes}:
                self._cluster.remove_node(name)
        for node in nodes:
            self._node_event("MODIFIED", node)

    def _node_event(self, kind: str, node: Node) -> None:
        with self._changed:
            if kind == "DELETED":
                self._cluster.remove_node(node.metadata.name)
                self._queue.move_all(ClusterEvent.NODE_GONE, time.monotonic())
                self._changed.notify_all()
                return
            before = self._cluster.node(node.metadata.name)
            try:
                self._cluster.set_node(node)
            except ValueError as error:  # an amount that does not parse
                log.warning("node %s left out: %s", node.metadata.name, error)
                return
            for event in node_events(before, node):
                self._queue.move_all(event, time.monotonic())
            self._changed.notify_all()

    def _replace_pods(self, pods: Collection[Pod]) -> None:
        there = {pod.metadata.uid for pod in pods}
        with self._changed:
            gone = [pod for uid, pod in self._pods.items() if uid not in there]
        for pod in gone:
            self._pod_event("DELETED", pod)
        for pod in sorted(pods, key=_age):
            self._pod_event("MODIFIED", pod)

    def _pod_event(self, kind: str, pod: Pod) -> None:
        uid, now = pod.metadata.uid, time.monotonic()
        with self._changed:
            known = self._pods.get(uid)
            seen = known is not None and known.metadata.resource_version
            if kind != "DELETED" and seen == pod.metadata.resource_version:
                return  # listed again without a change
            try:
                requests_of(pod)
            except ValueError as error:
                log.warning("pod %s left out: %s", pod.metadata.name, error)
                return
            # The scheduler's watch leaves out pods that have ended.
            if kind == "DELETED" or pod.status.phase in _ENDED_PHASES:
                self._forget(uid, now)
            elif pod.spec.node_name:
                self._pods[uid] = pod
                self._queue.delete(uid)
                self._cluster.add_pod(pod)
                added = known is None or not known.spec.node_name
                event = (
                    ClusterEvent.ASSIGNED_POD_ADDED if added else ClusterEvent.ASSIGNED_POD_CHANGED
                )
                self._queue.move_all(event, now)
                if known is not None and known.metadata.labels != pod.metadata.labels:
                    self._queue.move_all(ClusterEvent.ASSIGNED_POD_LABELS, now)
            else:
                self._pods[uid] = pod
                self._waiting(pod, now)
            if _gives_up_room(known, pod, kind):
                self._queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, now)
            self._changed.notify_all()

    def _forget(self, uid: str, now: float) -> None:
        self._pods.pop(uid, None)
        self._queue.delete(uid)
        self._cluster.forget_pod(uid)
        if self._cluster.remove_pod(uid):
            self._queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, now)

    def _waiting(self, pod: Pod, now: float) -> None:
        ours = pod.spec.scheduler_name == self._settings.scheduler_name
        if not ours or self._cluster.is_assumed(pod.metadata.uid):
            return
        self._cluster.nominate(pod)
        self._queue.update(pod, now)

    # Tries

    def _run(self) -> None:
        while True:
            with self._changed:
                queued = None
                while not self._stopping:
                    now = time.monotonic()
                    queued = self._queue.pop(now)
                    if queued is not None:
                        break
                    self._changed.wait(self._queue.next_wake(now))
                if queued is None:
                    return
            self._try(queued)

    def _try(self, queued: QueuedPod) -> None:
        pod = queued.pod
        if pod.metadata.deletion_timestamp is not None:
            with self._changed:
                self._queue.done(queued.uid)
            return
        try:
            found = self._cycle.schedule(pod)
        except ExtenderError as error:
            self._error(queued, str(error))
            return
        if isinstance(found, Unfit):
            self._unfit(queued, found)
            return
        with self._changed:
            latest = self._pods.get(queued.uid)
            if latest is None or latest.spec.node_name:
                return  # deleted, or bound by another program, during the try
            self._cluster.assume_pod(pod, found)
            self._queue.done(queued.uid)
            self._binding += 1
        self._binds.submit(self._bind, queued, found)

    def _unfit(self, queued: QueuedPod, unfit: Unfit) -> None:
        """Preempt if that helps, queue the pod, and write the reason into its status. That write is
        an update like any other, so it wakes a pod that the extender refused."""
        tried = queued.pod
        try:
            nomination = self._preempt(tried, unfit)
        except ExtenderError as error:  # the pod still fits nowhere, and sleeps
            log.info("%s: preemption: %s", tried.metadata.name, error)
            nomination = None
        with self._changed:
            pod = self._still_waits(queued, nomination)
            if pod is None:
                return
            self._queue.add_unschedulable(queued, unfit.rejected_by, time.monotonic())
        helpful = sum(r.resolvable for r in unfit.rejections.values())
        nowhere = unfit.nowhere.reasons[0] if unfit.nowhere else ""
        message = words.fit_error(unfit.nodes, unfit.reasons, helpful, nowhere)
        self._say(pod, "Unschedulable", message, nomination)

    def _error(self, queued: QueuedPod, message: str) -> None:
        """Queue the pod for another try after its back-off, whatever happens."""
        with self._changed:
            pod = self._still_waits(queued, nomination="")
            if pod is None:
                return
            self._queue.add_error(queued, time.monotonic())
        self._say(pod, "SchedulerError", message, nomination="")

    def _still_waits(self, queued: QueuedPod, nomination: str | None) -> Pod | None:
        """Return the pod as last seen. If it no longer waits, drop it from the queue and return
        None.

        The queue goes on with this pod, with the nomination that the scheduler is about to write.
        """
        pod = self._pods.get(queued.uid)
        if pod is None or pod.spec.node_name:
            self._queue.done(queued.uid)
            return None
        queued.pod = pod
        if nomination is not None:
            status = msgspec.structs.replace(pod.status, nominated_node_name=nomination)
            queued.pod = msgspec.structs.replace(pod, status=status)
        self._cluster.nominate(queued.pod)
        return pod

    def _say(self, pod: Pod, reason: str, message: str, nomination: str | None) -> None:
        """The patch is against the pod as last seen: it also removes a nomination that came during
        the try."""
        patch = words.condition_patch(pod, reason, message, _moment(), nomination=nomination)
        if patch is not None:
            self._ask(pod, lambda: self._client.patch(f"{_path_of(pod)}/status", patch))

    def _ask(self, pod: Pod, request: Callable[[], None]) -> None:
        """A refused request does no harm: the next try repeats it."""
        try:
            request()
        except ApiError as error:
            log.info("%s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)

    # Preemption

    def _preempt(self, pod: Pod, unfit: Unfit) -> str | None:
        """Evict the victims on one node, and return its name.

        Returns "" if eviction helps nowhere, and None if earlier victims are still ending. Raises
        ExtenderError.
        """
        with self._changed:
            if not preemption.is_eligible(pod, self._cluster, unfit.rejections):
                return None
            found = preemption.candidates(pod, self._cluster, unfit.rejections)
        if found and self._extender is not None and self._extender.is_interested(pod):
            found = self._extender_agrees(pod, found)
        if not found:
            return ""
        node = preemption.pick(found)
        for victim in found[node]:
            uid = victim.metadata.uid
            log.info("%s evicts %s from %s", pod.metadata.name, victim.metadata.name, node)
            told = words.disruption_patch(victim, self._settings.scheduler_name, _moment())
            self._ask(victim, partial(self._client.patch, f"{_path_of(victim)}/status", told))
            self._ask(victim, partial(self._client.delete, _path_of(victim), uid=uid))
        with self._changed:
            lower = self._cluster.nominated_below(node, pod.spec.priority)
        for other in lower:
            patch = {"metadata": {"uid": other.metadata.uid}, "status": {"nominatedNodeName": None}}
            self._ask(other, partial(self._client.patch, f"{_path_of(other)}/status", patch))
        return node

    def _extender_agrees(
        self, pod: Pod, found: dict[str, tuple[Pod, ...]]
    ) -> dict[str, tuple[Pod, ...]]:
        """Ask the extender, which may drop nodes and name other victims on them."""
        assert self._extender is not None
        asked = {node: [v.metadata.uid for v in victims] for node, victims in found.items()}
        answer = self._extender.preempt(pod, asked)
        with self._changed:
            return preemption.agreed_victims(answer, self._cluster)

    # Binds

    def _bind(self, queued: QueuedPod, node: str) -> None:
        error = ""
        try:
            self._ask_to_bind(queued.pod, node)
        except (ApiError, ExtenderError) as refused:
            error = f"binding rejected: {refused}"
            log.info("%s to %s: %s", queued.pod.metadata.name, node, error)
        with self._changed:
            self._binding -= 1
            self._changed.notify_all()
            if not error:
                return  # the watch will report it
            now = time.monotonic()
            if self._cluster.is_assumed(queued.uid):
                self._cluster.remove_pod(queued.uid)
                self._queue.move_all(ClusterEvent.ASSIGNED_POD_GONE, now)
            pod = self._still_waits(queued, nomination="")
            if pod is None:
                return
            self._queue.add_error(queued, now)
        self._say(pod, "SchedulerError", error, nomination="")

    def _ask_to_bind(self, pod: Pod, node: str) -> None:
        extender = self._extender
        if extender is not None and extender.is_interested(pod):
            extender.bind(pod, node)
            return
        meta = pod.metadata
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._client.post(f"{_path_of(pod)}/binding", body)


def _gives_up_room(known: Pod | None, pod: Pod, kind: str) -> bool:
    """Whether a waiting pod no longer keeps the room that it was nominated for: since 1.34 it wakes
    others (`hasNominatedNodeNameChanged` in its eventhandlers.go)."""
    before = "" if known is None or known.spec.node_name else known.status.nominated_node_name
    now = "" if kind == "DELETED" else pod.status.nominated_node_name
    return bool(before) and not pod.spec.node_name and before != now


def _age(pod: Pod) -> datetime:
    return pod.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC)


def _path_of(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
