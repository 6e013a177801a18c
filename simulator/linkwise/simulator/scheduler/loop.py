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
from threading import Thread

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
from linkwise.simulator.scheduler import words
from linkwise.simulator.scheduler.extender import ExtenderClient, ExtenderError
from linkwise.simulator.scheduler.feasible import requests_of
from linkwise.simulator.scheduler.queue import (
    QueueCounts,
    QueuedPod,
    storage_event,
)
from linkwise.simulator.scheduler.settings import SchedulerSettings
from linkwise.simulator.scheduler.steps import SchedulerSteps

log = logging.getLogger(__name__)

_STORAGE: Mapping[str, type[StorageObject]] = {
    "/api/v1/persistentvolumes": PersistentVolume,
    "/api/v1/persistentvolumeclaims": PersistentVolumeClaim,
    "/apis/storage.k8s.io/v1/storageclasses": StorageClass,
    "/apis/storage.k8s.io/v1/csinodes": CSINode,
}


class SchedulerLoop(ControlLoop, SchedulerSteps):
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
        ControlLoop.__init__(self)
        settings = settings or SchedulerSettings()
        self._client = client
        extender = None
        if extender_url:
            extender = ExtenderClient(
                extender_url,
                managed_resources=settings.managed_resources,
                timeout_seconds=settings.extender_timeout_seconds,
            )
        SchedulerSteps.__init__(
            self, settings, extender, seed=seed, lock=self._changed, now=time.monotonic
        )
        self._binding = 0
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
            return self.queue.counts()

    @property
    def idle(self) -> bool:
        """True if the loop tries and binds nothing, and waits for an event.

        Retries after errors, and of pods that have waited for five minutes, do not count.
        """
        with self._changed:
            counts = self.queue.counts()
            return not (self._binding or counts.active or counts.in_flight or counts.backoff)

    # Events from the API server

    def _storage(self, path: str, kind: type[StorageObject]) -> Reflector[StorageObject]:
        """A watch on a kind of object that says where volumes are."""
        storage = self.cluster.storage

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
                self.queue.move_all(storage_event(what, one), time.monotonic())
                self._changed.notify_all()

        return Reflector(self._client, path, kind, on_replace=on_replace, on_event=on_event)

    def _replace_namespaces(self, namespaces: Collection[Namespace]) -> None:
        with self._changed:
            self.cluster.replace_namespaces(namespaces)

    def _namespace_event(self, kind: str, namespace: Namespace) -> None:
        """kube-scheduler wakes no pod for a namespace."""
        with self._changed:
            if kind == "DELETED":
                self.cluster.remove_namespace(namespace.metadata.name)
            else:
                self.cluster.set_namespace(namespace)

    def _replace_nodes(self, nodes: Collection[Node]) -> None:
        with self._changed:
            for name in set(self.cluster.names()) - {node.metadata.name for node in nodes}:
                self.cluster.remove_node(name)
        for node in nodes:
            self._node_event("MODIFIED", node)

    def _node_event(self, kind: str, node: Node) -> None:
        with self._changed:
            try:
                self.node_event(kind, node)
            except ValueError as error:  # an amount that does not parse
                log.warning("node %s left out: %s", node.metadata.name, error)
                return
            self._changed.notify_all()

    def _replace_pods(self, pods: Collection[Pod]) -> None:
        there = {pod.metadata.uid for pod in pods}
        with self._changed:
            gone = [pod for uid, pod in self.pods.items() if uid not in there]
        for pod in gone:
            self._pod_event("DELETED", pod)
        for pod in sorted(pods, key=_age):
            self._pod_event("MODIFIED", pod)

    def _pod_event(self, kind: str, pod: Pod) -> None:
        with self._changed:
            known = self.pods.get(pod.metadata.uid)
            seen = known is not None and known.metadata.resource_version
            if kind != "DELETED" and seen == pod.metadata.resource_version:
                return  # listed again without a change
            try:
                requests_of(pod)
            except ValueError as error:
                log.warning("pod %s left out: %s", pod.metadata.name, error)
                return
            self.pod_event(kind, pod)
            self._changed.notify_all()

    # Tries

    def _run(self) -> None:
        while True:
            with self._changed:
                queued = None
                while not self._stopping:
                    now = time.monotonic()
                    queued = self.queue.pop(now)
                    if queued is not None:
                        break
                    self._changed.wait(self.queue.next_wake(now))
                if queued is None:
                    return
            self.try_pod(queued)

    # Writes

    def say(self, pod: Pod, reason: str, message: str, nomination: str | None) -> None:
        """The patch is against the pod as last seen: it also removes a nomination that came during
        the try."""
        patch = words.condition_patch(pod, reason, message, _moment(), nomination=nomination)
        if patch is not None:
            self._ask(pod, lambda: self._client.patch(f"{_path_of(pod)}/status", patch))

    def evict(self, victim: Pod, claimant: Pod) -> None:  # noqa: ARG002
        uid = victim.metadata.uid
        told = words.disruption_patch(victim, self._settings.scheduler_name, _moment())
        self._ask(victim, lambda: self._client.patch(f"{_path_of(victim)}/status", told))
        self._ask(victim, lambda: self._client.delete(_path_of(victim), uid=uid))

    def drop_nomination(self, pod: Pod) -> None:
        patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"nominatedNodeName": None}}
        self._ask(pod, lambda: self._client.patch(f"{_path_of(pod)}/status", patch))

    def _ask(self, pod: Pod, request: Callable[[], None]) -> None:
        """A refused request does no harm: the next try repeats it."""
        try:
            request()
        except ApiError as error:
            log.info("%s/%s: %s", pod.metadata.namespace, pod.metadata.name, error)

    # Binds

    def start_bind(self, queued: QueuedPod, node: str) -> None:
        self._binding += 1
        self._binds.submit(self._bind, queued, node)

    def _bind(self, queued: QueuedPod, node: str) -> None:
        try:
            self._ask_to_bind(queued.pod, node)
        except (ApiError, ExtenderError) as refused:
            log.info("%s to %s: %s", queued.pod.metadata.name, node, refused)
            self.error(queued, f"binding rejected: {refused}")
        with self._changed:  # if it is bound, the watch will report it
            self._binding -= 1
            self._changed.notify_all()

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


def _age(pod: Pod) -> datetime:
    return pod.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC)


def _path_of(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
