"""The smallest device plugin that a kubelet accepts; it records every call."""

# ruff: noqa: ARG002, N802 - gRPC gives a servicer's methods their names and arguments

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import grpc

from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)

RESOURCE = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class PreferCall:
    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class AllocateCall:
    devices: tuple[str, ...]


Call = PreferCall | AllocateCall
Prefer = Callable[[PreferCall], Sequence[str]]


def highest(asked: PreferCall) -> Sequence[str]:
    """Prefer what must be included, then the highest ids, as the recorded plugin did."""
    rest = sorted(set(asked.available) - set(asked.must_include), reverse=True)
    return [*asked.must_include, *rest][: asked.size]


class TinyPlugin(DevicePluginServicer):
    """`devices` are ids, all healthy unless they begin with `bad`.

    Its registration claims the opposite of its options. The kubelet must use the options that it
    asks for.
    """

    def __init__(
        self,
        directory: Path,
        devices: Sequence[str],
        *,
        socket: str = "tiny.sock",
        resource: str = RESOURCE,
        version: str = "v1beta1",
        prefer: Prefer | None = highest,
        allocate: Callable[[Sequence[str]], None] = lambda _: None,
        numa_node: int | None = None,
        numa_node_of: Callable[[str], int] | None = None,
    ) -> None:
        self.calls: list[Call] = []
        self.options_asked = 0
        self.stream_over = Event()
        self._directory, self.socket = directory, socket
        self._resource, self._version = resource, version
        self._prefer, self._allocate, self._numa_node = prefer, allocate, numa_node
        self._numa_node_of = numa_node_of
        self._lists: SimpleQueue[Sequence[str] | None] = SimpleQueue()
        self._lists.put(devices)
        self._server = grpc.server(ThreadPoolExecutor(max_workers=6))

    def start(self) -> None:
        """Serve, then register."""
        add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{self._directory / self.socket}")
        self._server.start()
        self.register()

    def register(self) -> None:
        options = [("grpc.default_authority", "localhost")]
        kubelet = f"unix://{self._directory / 'kubelet.sock'}"
        with grpc.insecure_channel(kubelet, options=options) as channel:
            request = api.RegisterRequest(
                version=self._version,
                endpoint=self.socket,
                resource_name=self._resource,
                options=api.DevicePluginOptions(
                    get_preferred_allocation_available=not self._prefer
                ),
            )
            RegistrationStub(channel).Register(request, timeout=10)

    def list_devices(self, devices: Sequence[str]) -> None:
        """Send a new list to the kubelet."""
        self._lists.put(devices)

    def end_stream(self) -> None:
        self._lists.put(None)

    def stop(self) -> None:
        self._lists.put(None)
        self._server.stop(None).wait()

    def GetDevicePluginOptions(
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> api.DevicePluginOptions:
        self.options_asked += 1
        return api.DevicePluginOptions(get_preferred_allocation_available=bool(self._prefer))

    def ListAndWatch(
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        context.add_callback(self.stream_over.set)
        while (devices := self._lists.get()) is not None:
            yield api.ListAndWatchResponse(devices=[self._device(device) for device in devices])

    def _device(self, device: str) -> api.Device:
        health = "Unhealthy" if device.startswith("bad") else "Healthy"
        node = self._numa_node if self._numa_node_of is None else self._numa_node_of(device)
        nodes = [] if node is None else [api.NUMANode(ID=node)]
        topology = api.TopologyInfo(nodes=nodes) if nodes else None
        return api.Device(ID=device, health=health, topology=topology)

    def GetPreferredAllocation(
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        (container,) = request.container_requests
        asked = PreferCall(
            tuple(container.available_deviceIDs),
            tuple(container.must_include_deviceIDs),
            container.allocation_size,
        )
        self.calls.append(asked)
        assert self._prefer is not None, "asked for what was not offered"
        answer = api.ContainerPreferredAllocationResponse(deviceIDs=self._prefer(asked))
        return api.PreferredAllocationResponse(container_responses=[answer])

    def Allocate(
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        (container,) = request.container_requests
        self.calls.append(AllocateCall(tuple(container.devices_ids)))
        self._allocate(container.devices_ids)
        return api.AllocateResponse(container_responses=[api.ContainerAllocateResponse()])

    def PreStartContainer(
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        raise AssertionError("asked for what was not offered")
