"""The kubelet's sockets: Registration and podresources.

A servicer reads the request, calls the kubelet and writes the answer.
"""

# ruff: noqa: ARG002, N802 - gRPC gives a servicer's methods their names and arguments

import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.kubelet import podresources_pb2 as resources
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import (
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from linkwise.plugin.kubelet.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from linkwise.simulator.kubelet.devices import Device, Held

VERSION = "v1beta1"
_LONGEST_SOCKET_PATH = 107  # sun_path of a unix socket, without its final zero


class RegistrationError(Exception):
    """The kubelet refuses this plugin."""


class PluginRegistrar(Protocol):
    def register(self, resource: str, socket_name: str) -> None:
        """Take a plugin. Raises RegistrationError, DialError."""


@dataclass(frozen=True, slots=True)
class PodDevices:
    """A pod in podresources, and what its containers hold."""

    namespace: str
    name: str
    containers: tuple[str, ...]  # those that podresources lists
    held: Held


class Bookkeeper(Protocol):
    def pod_devices(self) -> Iterable[PodDevices]: ...

    def devices(self) -> dict[str, tuple[Device, ...]]: ...


def serve_registration(socket: Path, registrar: PluginRegistrar) -> grpc.Server:
    server = _server(socket)
    add_RegistrationServicer_to_server(_Registration(registrar), server)
    server.start()
    return server


def serve_pod_resources(socket: Path, bookkeeper: Bookkeeper) -> grpc.Server:
    server = _server(socket)
    add_PodResourcesListerServicer_to_server(_PodResources(bookkeeper), server)
    server.start()
    return server


def wipe_sockets(directory: Path) -> None:
    """Remove all sockets, as a starting kubelet does. Plugins notice that and register again."""
    for file in directory.iterdir():
        with suppress(FileNotFoundError):  # an ending plugin removes its own socket
            if stat.S_ISSOCK(file.lstat().st_mode):
                file.unlink()


def _server(socket: Path) -> grpc.Server:
    if len(str(socket).encode()) > _LONGEST_SOCKET_PATH:
        raise ValueError(f"{socket}: expected at most {_LONGEST_SOCKET_PATH} bytes for a socket")
    server = grpc.server(ThreadPoolExecutor(max_workers=4, thread_name_prefix=socket.name))
    server.add_insecure_port(f"unix://{socket}")
    return server


class _Registration(RegistrationServicer):
    def __init__(self, registrar: PluginRegistrar) -> None:
        self._registrar = registrar

    def Register(self, request: api.RegisterRequest, context: grpc.ServicerContext) -> api.Empty:
        if request.version != VERSION:
            refusal = f"requested API version {request.version!r} is not supported by kubelet. "
            context.abort(grpc.StatusCode.UNKNOWN, f'{refusal}Supported versions are ["{VERSION}"]')
        try:
            self._registrar.register(request.resource_name, request.endpoint)
        except Exception as error:  # Go's gRPC also turns any error of a handler into a status
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return api.Empty()


class _PodResources(PodResourcesListerServicer):
    def __init__(self, bookkeeper: Bookkeeper) -> None:
        self._bookkeeper = bookkeeper

    def List(
        self,
        request: resources.ListPodResourcesRequest,
        context: grpc.ServicerContext,
    ) -> resources.ListPodResourcesResponse:
        topology = self._topology()
        pods = [_pod(pod, topology) for pod in self._bookkeeper.pod_devices()]
        return resources.ListPodResourcesResponse(pod_resources=pods)

    def Get(
        self, request: resources.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> resources.GetPodResourcesResponse:
        wanted = (request.pod_namespace, request.pod_name)
        pods = self._bookkeeper.pod_devices()
        found = next((pod for pod in pods if (pod.namespace, pod.name) == wanted), None)
        if found is None:
            missing = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            context.abort(grpc.StatusCode.UNKNOWN, missing)
        return resources.GetPodResourcesResponse(pod_resources=_pod(found, self._topology()))

    def GetAllocatableResources(
        self,
        request: resources.AllocatableResourcesRequest,
        context: grpc.ServicerContext,
    ) -> resources.AllocatableResourcesResponse:
        return resources.AllocatableResourcesResponse(
            devices=[
                _entry(resource, device.id, device.numa_nodes)
                for resource, devices in self._bookkeeper.devices().items()
                for device in devices
                if device.healthy
            ]
        )

    def _topology(self) -> dict[str, tuple[int, ...]]:
        return {
            device.id: device.numa_nodes
            for devices in self._bookkeeper.devices().values()
            for device in devices
        }


def _pod(pod: PodDevices, topology: dict[str, tuple[int, ...]]) -> resources.PodResources:
    """Return one entry per device, not per resource, as the real kubelet does."""
    return resources.PodResources(
        name=pod.name,
        namespace=pod.namespace,
        containers=[
            resources.ContainerResources(
                name=container,
                devices=[
                    _entry(resource, device, topology.get(device, ()))
                    for resource, devices in pod.held.get(container, {}).items()
                    for device in devices
                ],
            )
            for container in pod.containers
        ],
    )


def _entry(resource: str, device: str, nodes: tuple[int, ...]) -> resources.ContainerDevices:
    topology = resources.TopologyInfo(nodes=[resources.NUMANode(ID=node) for node in nodes])
    return resources.ContainerDevices(
        resource_name=resource, device_ids=[device], topology=topology if nodes else None
    )
