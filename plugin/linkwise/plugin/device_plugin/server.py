"""The kubelet's DevicePlugin service on a socket of its own: read, ask, write.

No socket file is used twice: a gRPC server that stops removes the path that it was bound to, even
if a newer server has bound the same path since.
"""

# ruff: noqa: ARG002, N802 - gRPC gives a servicer's methods their names and arguments

import logging
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Protocol

import grpc

from linkwise.plugin.device_plugin.allocate import Answer, Question, Source, lowest
from linkwise.plugin.device_plugin.containers import ContainerGrant, Granting, grant
from linkwise.plugin.device_plugin.preferred_allocation import Advisor
from linkwise.plugin.errors import NoDeviceFileError, UnknownDeviceError
from linkwise.plugin.health.book import DeviceBook, Devices
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    add_DevicePluginServicer_to_server,
)
from linkwise.plugin.metrics import Metrics
from linkwise.topology.machine.model import Machine

log = logging.getLogger(__name__)

_WORKERS = 6  # every open ListAndWatch holds one, also one that a newer stream replaces


class Streams:
    """The kubelet's ListAndWatch calls, of which the one opened last counts. *wake* makes waiting
    calls check again whether they still count."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = Lock()
        self._opened = 0
        self._alive = False
        self._closing = False

    @property
    def opened(self) -> int:
        """How many streams the kubelet has opened so far."""
        return self._opened

    @property
    def alive(self) -> bool:
        """Whether the kubelet listens: the last stream it opened is still open."""
        return self._alive

    def open(self, context: grpc.ServicerContext) -> int:
        """The number of a new stream, which replaces the older ones."""
        with self._lock:
            self._opened += 1
            stream, self._alive = self._opened, True
        self._wake()
        if not context.add_callback(lambda: self._ended(stream)):
            self._ended(stream)
        return stream

    def count(self, stream: int) -> bool:
        """Whether this stream is the one that counts."""
        return self._alive and stream == self._opened and not self._closing

    def close(self) -> None:
        self._closing = True
        self._wake()

    def _ended(self, stream: int) -> None:
        with self._lock:
            if stream == self._opened:
                self._alive = False
        self._wake()


class Service(Protocol):
    """What a `PluginServer` serves to the kubelet."""

    @property
    def streams(self) -> Streams: ...

    def add_to(self, server: grpc.Server) -> None: ...


class Advice:
    """Asks the advisor which GPUs the kubelet should take, and counts and logs that and what the
    kubelet took."""

    def __init__(self, advisor: Advisor, metrics: Metrics) -> None:
        self._advisor, self._metrics = advisor, metrics

    def prefer(
        self,
        machine: Machine,
        question: Question,
        *,
        other: Callable[[], Sequence[str]] | None = None,
    ) -> Answer:
        """The GPUs to prefer. If the answer follows no plan, *other* gives another answer, which
        counts if it is better. Never raises."""
        try:
            answer = self._advisor.ask(machine, question)
            if other is not None and answer.source is not Source.PLAN:
                answer = self._advisor.compare(machine, question, answer, other())
        except Exception:  # an error here would fail the pod for good; any GPUs are better
            log.exception("GetPreferredAllocation of %d: lowest indices given", question.size)
            answer = Answer(lowest(machine, question), Source.FALLBACK)
        self._metrics.preferred.labels(answer.source.value).inc()
        log.info(
            "preferred %s for %s (%s)",
            [gpu.index for gpu in machine.gpus if gpu.uuid in answer.gpus],
            f"{answer.pod.key}/{answer.container}" if answer.pod else "a pod not seen yet",
            answer.source.value,
            extra={"pod": answer.pod.key} if answer.pod else {},
        )
        return answer

    def allocated(self, machine: Machine, gpus: frozenset[str]) -> None:
        """A container has received *gpus*."""
        allocation = self._advisor.allocated(gpus)
        if allocation.preferred is None:
            self._metrics.allocations.labels("unasked").inc()
        elif allocation.as_preferred:
            self._metrics.allocations.labels("as-preferred").inc()
        else:
            self._metrics.allocations.labels("mismatch").inc()
            log.warning(
                "%s: the kubelet did not take the preferred GPUs %s",
                allocation.pod or "a pod not seen yet",
                [gpu.index for gpu in machine.gpus if gpu.uuid in allocation.preferred],
            )


def question_of(asked: wire.ContainerPreferredAllocationRequest) -> Question:
    return Question(
        frozenset(asked.available_deviceIDs),
        frozenset(asked.must_include_deviceIDs),
        asked.allocation_size,
    )


class DevicePlugin(DevicePluginServicer):
    """Each Allocate ends by calling `on_allocated`."""

    def __init__(
        self,
        devices: DeviceBook,
        advice: Advice,
        granting: Granting,
        metrics: Metrics,
        *,
        on_allocated: Callable[[], None] = lambda: None,
    ) -> None:
        self._devices, self._advice, self._granting = devices, advice, granting
        self._metrics, self._on_allocated = metrics, on_allocated
        self.streams = Streams(devices.wake)

    def add_to(self, server: grpc.Server) -> None:
        add_DevicePluginServicer_to_server(self, server)

    def GetDevicePluginOptions(
        self,
        request: wire.Empty,
        context: grpc.ServicerContext,
    ) -> wire.DevicePluginOptions:
        return wire.DevicePluginOptions(get_preferred_allocation_available=True)

    def ListAndWatch(
        self,
        request: wire.Empty,
        context: grpc.ServicerContext,
    ) -> Iterator[wire.ListAndWatchResponse]:
        stream = self.streams.open(context)
        version = 0
        while True:
            now = self._devices.wait_newer(version, given_up=lambda: not self.streams.count(stream))
            if not self.streams.count(stream):
                return
            version = now.version
            yield listed(now)

    def GetPreferredAllocation(
        self,
        request: wire.PreferredAllocationRequest,
        context: grpc.ServicerContext,
    ) -> wire.PreferredAllocationResponse:
        began = time.perf_counter()
        machine = self._devices.now.machine
        answers = [
            self._advice.prefer(machine, question_of(asked)) for asked in request.container_requests
        ]
        self._metrics.call_seconds.labels("GetPreferredAllocation").observe(
            time.perf_counter() - began
        )
        return preferred(answer.gpus for answer in answers)

    def Allocate(
        self, request: wire.AllocateRequest, context: grpc.ServicerContext
    ) -> wire.AllocateResponse:
        began = time.perf_counter()
        devices = self._devices.now
        try:
            grants = [
                grant(devices, tuple(asked.devices_ids), self._granting)
                for asked in request.container_requests
            ]
        except (UnknownDeviceError, NoDeviceFileError) as error:
            self._metrics.allocations.labels("refused").inc()
            log.error("Allocate: %s", error)
            unknown = isinstance(error, UnknownDeviceError)
            code = grpc.StatusCode.INVALID_ARGUMENT if unknown else grpc.StatusCode.UNAVAILABLE
            context.abort(code, str(error))
        for asked in request.container_requests:
            self._advice.allocated(devices.machine, frozenset(asked.devices_ids))
        self._on_allocated()
        self._metrics.call_seconds.labels("Allocate").observe(time.perf_counter() - began)
        return wire.AllocateResponse(container_responses=[written(each) for each in grants])

    def PreStartContainer(
        self,
        request: wire.PreStartContainerRequest,
        context: grpc.ServicerContext,
    ) -> wire.PreStartContainerResponse:
        return wire.PreStartContainerResponse()


def listed(devices: Devices) -> wire.ListAndWatchResponse:
    """The whole list. A GPU whose NUMA node is unknown, or -1, has no topology in it: one made-up
    node would keep all others out of aligned sets."""
    return wire.ListAndWatchResponse(
        devices=[
            wire.Device(
                ID=gpu.uuid,
                health="Healthy" if gpu.healthy else "Unhealthy",
                topology=wire.TopologyInfo(
                    nodes=[wire.NUMANode(ID=node) for node in gpu.numa_nodes if node >= 0]
                )
                if any(node >= 0 for node in gpu.numa_nodes)
                else None,
            )
            for gpu in devices.machine.gpus
        ]
    )


def preferred(answers: Iterable[Sequence[str]]) -> wire.PreferredAllocationResponse:
    """One answer for each container."""
    return wire.PreferredAllocationResponse(
        container_responses=[
            wire.ContainerPreferredAllocationResponse(deviceIDs=gpus) for gpus in answers
        ]
    )


def written(grant: ContainerGrant) -> wire.ContainerAllocateResponse:
    return wire.ContainerAllocateResponse(
        envs=grant.envs,
        devices=[
            wire.DeviceSpec(container_path=path, host_path=path, permissions="rw")
            for path in grant.device_paths
        ],
        cdi_devices=[wire.CDIDevice(name=name) for name in grant.cdi_names],
    )


class PluginServer:
    """One life of the service: one socket, from start to stop."""

    def __init__(self, directory: Path, resource: str, service: Service) -> None:
        self.service = service
        # A random name, not the process id: in a container that is always 1.
        self.socket = directory / f"{_stem(resource)}{secrets.token_hex(4)}.sock"
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="kubelet-call")
        self._server = grpc.server(self._workers)
        service.add_to(self._server)

    def start(self) -> None:
        """Serve. Raises OSError if the socket cannot be made."""
        try_socket(self.socket)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """End the kubelet's stream, finish calls in flight, remove the socket."""
        self.service.streams.close()
        self._server.stop(grace=1.0).wait(3.0)
        self._workers.shutdown(wait=False)
        self.socket.unlink(missing_ok=True)


def try_socket(path: Path) -> None:
    """Raises OSError with the reason if no socket can be made there; grpcio gives no reason."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
            trial.bind(str(path))
        path.unlink()
    except OSError as error:
        # The text lacks the name, which always differs: the same trouble gives the same text.
        why = error.strerror or error
        raise OSError(f"{path.parent}: no socket can be made there: {why}") from error


def _stem(resource: str) -> str:
    return f"linkwise-{re.sub('[^a-zA-Z0-9]+', '-', resource)}-"


def remove_dead_sockets(directory: Path, resource: str) -> None:
    """Remove what an earlier, killed plugin left: sockets that no process serves."""
    ours = re.compile(f"{_stem(resource)}[0-9a-f]+[.]sock")  # not of resources with longer names
    for path in directory.glob("linkwise-*.sock"):
        try:
            if ours.fullmatch(path.name) and not _served(path):
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: %s; left alone", path, error)


def _served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)  # the backlog of a stopped process may be full
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True
