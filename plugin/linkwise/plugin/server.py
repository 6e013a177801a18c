"""The kubelet's DevicePlugin service on a socket of its own: read, ask, write.

A socket file is never used twice: stopping a gRPC server removes the path it was bound to, even
when a newer server has bound the same path since.
"""

# ruff: noqa: ARG002, N802 - gRPC gives a servicer's methods their names and arguments

import logging
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import grpc

from linkwise.plugin.advisor import Advisor, Allocation
from linkwise.plugin.allocate import Answer, Question, Source, lowest
from linkwise.plugin.containers import ContainerGrant, Granting, grant
from linkwise.plugin.errors import NoDeviceFileError, UnknownDeviceError
from linkwise.plugin.health.book import DeviceBook, Devices
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    add_DevicePluginServicer_to_server,
)
from linkwise.plugin.metrics import Metrics

log = logging.getLogger(__name__)

_WORKERS = 6  # every open ListAndWatch holds one, also one that a newer stream replaces


class DevicePlugin(DevicePluginServicer):
    """`on_allocated` is called after each Allocate."""

    def __init__(
        self,
        devices: DeviceBook,
        advisor: Advisor,
        granting: Granting,
        metrics: Metrics,
        *,
        on_allocated: Callable[[], None] = lambda: None,
    ) -> None:
        self._devices, self._advisor, self._granting = devices, advisor, granting
        self._metrics, self._on_allocated = metrics, on_allocated
        self._lock = Lock()
        self._streams = 0  # opened so far; the last one counts
        self._alive = False
        self._closing = False

    @property
    def streams_opened(self) -> int:
        return self._streams

    @property
    def streaming(self) -> bool:
        """Whether the kubelet listens: the last stream it opened is still open."""
        return self._alive

    def close_streams(self) -> None:
        self._closing = True
        self._devices.wake()

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
        with self._lock:
            self._streams += 1
            stream, self._alive = self._streams, True
        self._devices.wake()  # an older stream sees that it is replaced
        if not context.add_callback(lambda: self._ended(stream)):
            self._ended(stream)
            return
        version = 0
        while True:
            now = self._devices.wait_newer(version, given_up=lambda: not self._counts(stream))
            if not self._counts(stream):
                return
            version = now.version
            yield listed(now)

    def _counts(self, stream: int) -> bool:
        return self._alive and stream == self._streams and not self._closing

    def _ended(self, stream: int) -> None:
        with self._lock:
            if stream == self._streams:
                self._alive = False
        self._devices.wake()

    def GetPreferredAllocation(
        self,
        request: wire.PreferredAllocationRequest,
        context: grpc.ServicerContext,
    ) -> wire.PreferredAllocationResponse:
        began = time.perf_counter()
        answers = [self._prefer(asked) for asked in request.container_requests]
        self._metrics.call_seconds.labels("GetPreferredAllocation").observe(
            time.perf_counter() - began
        )
        return wire.PreferredAllocationResponse(
            container_responses=[
                wire.ContainerPreferredAllocationResponse(deviceIDs=answer.gpus)
                for answer in answers
            ]
        )

    def _prefer(self, asked: wire.ContainerPreferredAllocationRequest) -> Answer:
        question = Question(
            frozenset(asked.available_deviceIDs),
            frozenset(asked.must_include_deviceIDs),
            asked.allocation_size,
        )
        machine = self._devices.now.machine
        try:
            answer = self._advisor.ask(machine, question)
        except Exception:  # an error here would fail the pod for good; any GPUs are better
            log.exception("GetPreferredAllocation of %d: lowest indices given", question.size)
            answer = Answer(lowest(machine, question), Source.FALLBACK)
        self._metrics.preferred.labels(answer.source.value).inc()
        log.info(
            "preferred %s for %s (%s)",
            [gpu.index for gpu in machine.gpus if gpu.uuid in answer.gpus],
            f"{answer.pod.key}/{answer.container}" if answer.pod else "a pod not seen yet",
            answer.source.value,
        )
        return answer

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
            self._note(devices, self._advisor.allocated(frozenset(asked.devices_ids)))
        self._on_allocated()
        self._metrics.call_seconds.labels("Allocate").observe(time.perf_counter() - began)
        return wire.AllocateResponse(container_responses=[written(each) for each in grants])

    def _note(self, devices: Devices, allocation: Allocation) -> None:
        if allocation.preferred is None:
            self._metrics.allocations.labels("unasked").inc()
        elif allocation.as_preferred:
            self._metrics.allocations.labels("as-preferred").inc()
        else:
            self._metrics.allocations.labels("mismatch").inc()
            log.warning(
                "%s: the kubelet did not take the preferred GPUs %s",
                allocation.pod or "a pod not seen yet",
                [g.index for g in devices.machine.gpus if g.uuid in allocation.preferred],
            )

    def PreStartContainer(
        self,
        request: wire.PreStartContainerRequest,
        context: grpc.ServicerContext,
    ) -> wire.PreStartContainerResponse:
        return wire.PreStartContainerResponse()


def listed(devices: Devices) -> wire.ListAndWatchResponse:
    """The whole list. A GPU whose NUMA node is not known, or -1, is sent without topology: one
    made-up node would keep all others out of aligned sets."""
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

    def __init__(self, directory: Path, resource: str, service: DevicePlugin) -> None:
        self.service = service
        # By chance and not by process id: in a container that is 1, time and again.
        self.socket = directory / f"{_stem(resource)}{secrets.token_hex(4)}.sock"
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="kubelet-call")
        self._server = grpc.server(self._workers)
        add_DevicePluginServicer_to_server(service, self._server)

    def start(self) -> None:
        """Serve. Raises OSError where the socket cannot be made."""
        try:  # grpcio would say only that it failed
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
                trial.bind(str(self.socket))
            self.socket.unlink()
        except OSError as error:
            # Without the name, which is another one each time: the same trouble, the same text.
            why = error.strerror or error
            raise OSError(f"{self.socket.parent}: no socket can be made there: {why}") from error
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """End the kubelet's stream, finish calls in flight, remove the socket."""
        self.service.close_streams()
        self._server.stop(grace=1.0).wait(3.0)
        self._workers.shutdown(wait=False)
        self.socket.unlink(missing_ok=True)


def _stem(resource: str) -> str:
    return f"linkwise-{re.sub('[^a-zA-Z0-9]+', '-', resource)}-"


def remove_dead_sockets(directory: Path, resource: str) -> None:
    """Remove what an earlier, killed process of ours left: sockets that nobody serves."""
    for path in directory.glob(f"{_stem(resource)}*.sock"):
        try:
            if not _served(path):
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: %s; left alone", path, error)


def _served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)  # of a process that is stopped the backlog may be full
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True
