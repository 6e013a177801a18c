"""A kubelet in threads: admits the pods of one node one by one, and gives them devices.

The real plugin registers here over a real socket and cannot see a difference; the package
lists those that exist. One thread does all the work in order (admission, starts, ends, status
writes). The reflector and the gRPC servers only queue work for it.
"""

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread

import grpc
import msgspec

from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.objects import Pod
from linkwise.kube.reflector import Reflector
from linkwise.simulator.kubelet import servers, statuses
from linkwise.simulator.kubelet.devices import (
    AdmissionError,
    Device,
    DeviceManager,
    Meddle,
    container_requests,
)
from linkwise.simulator.kubelet.endpoint import Adviser, Endpoint
from linkwise.simulator.kubelet.outbox import StatusOutbox
from linkwise.simulator.kubelet.pods import age_of, listed_containers, seconds_in
from linkwise.simulator.kubelet.servers import PodDevices, RegistrationError
from linkwise.simulator.kubelet.settings import KubeletSettings
from linkwise.simulator.manifests.object_reader import RUN_SECONDS, STOP_SECONDS

log = logging.getLogger(__name__)

_EXTENDED_RESOURCE = re.compile(
    r"(?!requests\.)[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?"
)
_RETRY_SECONDS = 0.5  # between retries of a failed write to the API server


class _Phase(Enum):
    ADMITTING = "admitting"
    STARTING = "starting"  # init containers run
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(slots=True)
class _Record:
    """A pod that holds devices. `until` ends its phase, on the monotonic clock."""

    pod: Pod
    phase: _Phase = _Phase.ADMITTING
    until: float | None = None
    told_to_end: float = 0.0


class Kubelet:
    """One node's kubelet. *directory* holds its sockets: `device-plugins/kubelet.sock` and
    `pod-resources/kubelet.sock`, and its configuration file. Its path must be short, as a socket's
    path has at most 107 bytes.

    *seed* decides every random order and every random device. An `adviser`, if set, replaces the
    plugin's preferred allocation. `meddle` may change the chosen devices (see DeviceManager).
    """

    def __init__(
        self,
        node_name: str,
        directory: Path,
        client: KubeClient,
        *,
        seed: int = 0,
        settings: KubeletSettings | None = None,
    ) -> None:
        self.node_name = node_name
        self.adviser: Adviser | None = None
        self.meddle: Meddle = lambda chosen, _: chosen
        self.device_plugin_directory = directory / "device-plugins"
        self.configuration_file = directory / "config.json"
        self.pod_resources_socket = directory / "pod-resources" / "kubelet.sock"
        self._client = client
        self._settings = settings or KubeletSettings()
        # Together with _pods, the checkpoint that a restart keeps.
        self._manager = DeviceManager(
            seed,
            meddle=lambda *devices: self.meddle(*devices),
            policy=self._settings.topology_manager_policy,
            scope=self._settings.topology_manager_scope,
            numa_nodes=self._settings.numa_nodes,
        )
        self._pods: dict[str, _Record] = {}
        self._lock = Lock()  # guards _pods, _endpoints and _gone_since; never held during a call
        self._endpoints: dict[str, list[Endpoint]] = {}  # by resource; the last one is asked
        self._gone_since: dict[str, float] = {}
        self._over: set[str] = set()  # pods that ended here, until the API server removes them
        self._outbox = StatusOutbox(client)
        self._written: dict[str, tuple[int, int]] = {}  # devices in the Node's status
        self._registered = False
        self._heard = False  # True once the reflector has listed the pods
        self._stopping = True
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._reflector: Reflector[Pod] | None = None
        self._servers: list[grpc.Server] = []
        self._worker: Thread | None = None

    # Start and stop

    def start(self) -> None:
        """Wipe the socket directory, serve, register the Node and watch its pods."""
        for socket in (self.device_plugin_directory / "kubelet.sock", self.pod_resources_socket):
            socket.parent.mkdir(parents=True, exist_ok=True)
            servers.wipe_sockets(socket.parent)
        self.configuration_file.write_bytes(msgspec.json.encode(self._settings.configuration))
        self._stopping = self._registered = self._heard = False
        self._inbox = SimpleQueue()
        self._servers = [
            servers.serve_pod_resources(self.pod_resources_socket, self),
            servers.serve_registration(self.device_plugin_directory / "kubelet.sock", self),
        ]
        self._worker = Thread(target=self._work, name=f"kubelet {self.node_name}", daemon=True)
        self._worker.start()
        self._reflector = Reflector(
            self._client,
            "/api/v1/pods",
            Pod,
            field_selector=f"spec.nodeName={self.node_name}",
            on_replace=lambda pods: self._inbox.put(lambda: self._replace(pods)),
            on_event=lambda kind, pod: self._inbox.put(lambda: self._event(kind, pod)),
        )
        self._reflector.start()

    def stop(self) -> None:
        """End at once, as if killed: containers go on, and the API server hears nothing."""
        self._stopping = True
        if self._reflector is not None:
            self._reflector.stop()
        with self._lock:
            endpoints = [each for plugins in self._endpoints.values() for each in plugins]
            self._endpoints = {}
        for endpoint in endpoints:
            endpoint.close()  # cancels a call that the worker may wait for
        for server in self._servers:
            server.stop(None).wait()
        if self._worker is not None:
            self._inbox.put(lambda: None)
            self._worker.join()
        self._reflector = self._worker = None
        self._servers = []

    def reseed(self, seed: int) -> None:
        """Restart the random orders, so that a run does not depend on the one before."""
        self._manager.reseed(seed)

    def restart(self) -> None:
        """Stop and start. Running pods keep their devices and are not admitted again. Devices count
        as absent until their plugin registers again."""
        self.stop()
        self._manager.restart()
        self.start()

    # Calls from plugins (servers.PluginRegistrar)

    def register(self, resource: str, socket_name: str) -> None:
        if not _EXTENDED_RESOURCE.fullmatch(resource) or "kubernetes.io/" in resource:
            raise RegistrationError(f'the ResourceName "{resource}" is invalid')
        # Joined as strings, as in Go: an absolute path does not leave the directory.
        socket = Path(f"{self.device_plugin_directory}/{socket_name}")
        endpoint = Endpoint(resource, socket, adviser=lambda: self.adviser)
        endpoint.dial()
        with self._lock:
            if self._stopping:
                endpoint.close()
                return
            self._endpoints.setdefault(resource, []).append(endpoint)
            self._gone_since.pop(resource, None)
            self._manager.set_plugin(resource, endpoint)
        endpoint.watch(
            lambda devices: self._listed(endpoint, devices), lambda: self._gone(endpoint)
        )
        log.info("%s: plugin for %s registered at %s", self.node_name, resource, socket_name)

    def _listed(self, endpoint: Endpoint, devices: tuple[Device, ...]) -> None:
        """Take the list from any endpoint: an earlier plugin of the resource counts too."""
        with self._lock:
            if endpoint.resource in self._endpoints:
                self._manager.set_devices(endpoint.resource, devices)

    def _gone(self, endpoint: Endpoint) -> None:
        """Handle the end of a stream. If another plugin of the resource is left, it is asked, and
        the devices stay as they were listed last. Before Kubernetes 1.37 the kubelet knew plugins
        by resource alone, and the end of an earlier one's stream cut off its successor."""
        with self._lock:
            left = self._endpoints.get(endpoint.resource, [])
            if endpoint in left:
                left.remove(endpoint)
                if left:
                    self._manager.set_plugin(endpoint.resource, left[-1])
                else:
                    del self._endpoints[endpoint.resource]
                    self._gone_since[endpoint.resource] = time.monotonic()
                    self._manager.set_unhealthy(endpoint.resource)
        endpoint.close()

    # Queries of podresources (servers.Bookkeeper)

    def pod_devices(self) -> tuple[PodDevices, ...]:
        """Return which container holds which devices; of init containers, only sidecars.

        Returns nothing between a start and the first list of pods.
        """
        with self._lock:
            pods = [record.pod for record in self._pods.values()] if self._heard else []
        return tuple(
            PodDevices(
                pod.metadata.namespace,
                pod.metadata.name,
                tuple(listed_containers(pod)),
                self._manager.held(pod.metadata.uid),
            )
            for pod in pods
        )

    def devices(self) -> dict[str, tuple[Device, ...]]:
        """Return the devices of each resource."""
        return self._manager.devices()

    # The worker

    def _work(self) -> None:
        next_status = next_write = 0.0
        while not self._stopping:
            now = time.monotonic()
            if now >= next_status:
                self._write_node()
                next_status = now + self._settings.status_seconds
            self._end_phases(now)
            if now >= next_write:
                self._outbox.flush()
                next_write = now + _RETRY_SECONDS if self._outbox else now
            moments = [next_status, *(r.until for r in self._pods.values() if r.until is not None)]
            if self._outbox:
                moments.append(next_write)
            try:
                job = self._inbox.get(timeout=max(0.0, min(moments) - time.monotonic()))
            except Empty:
                continue
            try:
                job()
            except Exception:  # one odd pod must not stop the node
                log.exception("%s: left undone", self.node_name)

    def _replace(self, pods: Iterable[Pod]) -> None:
        """Handle the oldest pod first, as the kubelet sorts pods that arrive together."""
        oldest_first = sorted(pods, key=age_of)
        there = {pod.metadata.uid for pod in oldest_first}
        for pod in oldest_first:
            self._event("MODIFIED", pod)
        for record in [r for uid, r in self._pods.items() if uid not in there]:
            self._event("DELETED", record.pod)
        self._over &= there
        self._heard = True

    def _event(self, kind: str, pod: Pod) -> None:
        uid = pod.metadata.uid
        record = self._pods.get(uid)
        if record is None:
            if kind == "DELETED":
                self._over.discard(uid)
            else:
                self._meet(pod)
            return
        record.pod = pod
        if kind == "DELETED":  # forced: what still runs of it no longer counts
            self._forget(uid)
        elif pod.is_leaving:
            if record.phase is not _Phase.STOPPING:
                record.phase, record.told_to_end = _Phase.STOPPING, time.monotonic()
            seconds = seconds_in(pod, STOP_SECONDS)
            takes = self._settings.stop_seconds if seconds is None else seconds
            record.until = record.told_to_end + takes

    def _meet(self, pod: Pod) -> None:
        """Handle a pod that does not run here: it is new, or over."""
        if pod.is_leaving:
            self._outbox.delete(pod)
        # The watch may be older than the last write: do not run a pod again that has ended.
        elif not pod.has_ended and pod.metadata.uid not in self._over:
            self._admit(pod)

    def _admit(self, pod: Pod) -> None:
        # Drop resources that no plugin has listed: the pod runs without them. The real kubelet does
        # the same, unless the Node's status still names the resource.
        requests = container_requests(pod, self._manager.capacity())
        uid, record = pod.metadata.uid, _Record(pod)
        with self._lock:
            self._pods[uid] = record
        try:
            self._manager.admit(uid, requests)
        except AdmissionError as error:
            with self._lock:
                del self._pods[uid]
            if not self._stopping:  # else the restarted kubelet handles it again
                log.info("%s: %s refused: %s", self.node_name, pod.metadata.name, error)
                self._over.add(uid)
                self._outbox.say(pod, statuses.rejected(pod, error.reason, str(error), _moment()))
            return
        if self._settings.init_seconds and pod.spec.init_containers:
            record.phase = _Phase.STARTING
            record.until = time.monotonic() + self._settings.init_seconds
            self._outbox.say(pod, statuses.starting(pod, _moment()))
        else:
            self._run(record)

    def _run(self, record: _Record) -> None:
        pod = record.pod
        record.phase = _Phase.RUNNING
        seconds = seconds_in(pod, RUN_SECONDS)
        record.until = None if seconds is None else time.monotonic() + seconds
        self._outbox.say(pod, statuses.running(pod, _moment()))

    def _end_phases(self, now: float) -> None:
        over = [r for r in self._pods.values() if r.until is not None and r.until <= now]
        for record in over:
            if record.phase is _Phase.STARTING:
                self._run(record)
            else:
                self._end(record)

    def _end(self, record: _Record) -> None:
        """Free the devices before the API server hears that the containers have ended."""
        pod = record.pod
        self._forget(pod.metadata.uid)
        self._over.add(pod.metadata.uid)
        ended_well = record.phase is _Phase.RUNNING
        self._outbox.say(pod, statuses.ended(pod, _moment(), well=ended_well))
        if not ended_well:
            self._outbox.delete(pod)

    def _forget(self, uid: str) -> None:
        self._manager.release(uid)
        with self._lock:
            del self._pods[uid]

    # Writes to the Node

    def _write_node(self) -> None:
        self._forget_lost_plugins()
        devices = self._manager.capacity()
        if self._registered and devices == self._written:
            return
        status = statuses.node_status(self._settings.capacity, devices, _moment())
        path = f"/api/v1/nodes/{self.node_name}"
        try:
            if not self._registered:
                self._register_node(path, status)
            self._client.patch(f"{path}/status", {"status": status})
        except ApiError as error:
            log.warning("%s: node status: %s", self.node_name, error)
            return
        self._registered, self._written = True, devices

    def _register_node(self, path: str, status: statuses.Body) -> None:
        node = statuses.node(self.node_name, self._settings.labels, status)
        try:
            self._client.post("/api/v1/nodes", node)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            labels = {"labels": node["metadata"]["labels"]}
            self._client.patch(path, {"metadata": labels})

    def _forget_lost_plugins(self) -> None:
        limit = time.monotonic() - self._settings.endpoint_grace_seconds
        with self._lock:
            for resource, since in list(self._gone_since.items()):
                if since <= limit:
                    del self._gone_since[resource]
                    self._manager.forget_resource(resource)


def _moment() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
