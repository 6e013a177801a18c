"""A kubelet small enough to be driven step by step: real gRPC sockets, no pods of its own.

The simulator has one that admits pods by itself; here each call is the test's.
"""

# ruff: noqa: ARG002, N802 - gRPC gives a servicer's methods their names and arguments

import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import grpc

from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.kubelet import podresources_pb2 as held
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from linkwise.plugin.kubelet.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)


def of_claim(pod: str, devices: Iterable[tuple[str, str, str]]) -> held.DynamicResource:
    namespace, _, name = pod.partition("/")
    return held.DynamicResource(
        claim_name=f"{name}-gpus",
        claim_namespace=namespace,
        claim_resources=[
            held.ClaimResource(driver_name=driver, pool_name=pool, device_name=device)
            for driver, pool, device in devices
        ],
    )


LOCALHOST = (("grpc.default_authority", "localhost"),)


class Plugin:
    """The kubelet's end of one registered plugin."""

    def __init__(self, socket: Path, request: api.RegisterRequest) -> None:
        self.request = request
        self.channel = grpc.insecure_channel(f"unix:{socket}", options=LOCALHOST)
        self.stub = DevicePluginStub(self.channel)
        self.options = api.DevicePluginOptions()
        self.lists: list[api.ListAndWatchResponse] = []
        self.ended = False
        self._listens = Event()
        self._cancel: Callable[[], object] | None = None
        self._thread: Thread | None = None

    def listen(self) -> None:
        """The plugin counts as ready from here on."""
        stream = self.stub.ListAndWatch(api.Empty())
        self._cancel = stream.cancel
        self._listens.set()
        thread = Thread(target=self._follow, args=(stream,), daemon=True)
        thread.start()
        self._thread = thread  # only now: a kubelet that stops meanwhile joins what has started

    def _follow(self, stream: Iterable[api.ListAndWatchResponse]) -> None:
        with suppress(grpc.RpcError):
            for message in stream:
                self.lists.append(message)
        self.ended = True

    def cancel(self) -> None:
        """End the stream, and stay connected. `listen` may be under way."""
        self._listens.wait(5)
        if self._cancel is not None:
            self._cancel()

    def close(self) -> None:
        self.cancel()
        if self._thread is not None:
            self._thread.join(5)
        self.channel.close()

    @property
    def health(self) -> dict[str, str]:
        """By device id, as last listed. All of a plugin whose list has ended are Unhealthy, as the
        real kubelet marks them."""
        if not self.lists:
            return {}
        ended = self.ended
        return {d.ID: "Unhealthy" if ended else d.health for d in self.lists[-1].devices}

    def preferred(
        self, available: Iterable[str], size: int, must: Sequence[str] = (), *, seed: int = 0
    ) -> list[str]:
        """Ask as the kubelet does: for one container, with the ids in random order."""
        ids = sorted(available)
        random.Random(seed).shuffle(ids)
        asked = api.ContainerPreferredAllocationRequest(
            available_deviceIDs=ids, must_include_deviceIDs=must, allocation_size=size
        )
        answer = self.stub.GetPreferredAllocation(
            api.PreferredAllocationRequest(container_requests=[asked]), timeout=30
        )
        return list(answer.container_responses[0].deviceIDs)

    def allocate(self, ids: Sequence[str]) -> api.ContainerAllocateResponse:
        asked = api.ContainerAllocateRequest(devices_ids=ids)
        answer = self.stub.Allocate(api.AllocateRequest(container_requests=[asked]), timeout=30)
        return answer.container_responses[0]


class FakeKubelet(RegistrationServicer, PodResourcesListerServicer):
    """`refusals` is how many registrations are refused before one is taken."""

    def __init__(self, directory: Path, *, refusals: int = 0) -> None:
        self.directory = directory
        self.socket = directory / "kubelet.sock"
        self.pod_resources_socket = directory / "pod-resources"
        self.plugins: list[Plugin] = []
        self.holds: dict[str, dict[str, list[str]]] = {}  # namespace/name -> container -> ids
        self.held_resource = "nvidia.com/gpu"
        # namespace/name -> container -> devices of DRA drivers, by driver, pool and device
        self.claimed: dict[str, dict[str, list[tuple[str, str, str]]]] = {}
        self.refusals = refusals
        self._servers: list[grpc.Server] = []

    @property
    def plugin(self) -> Plugin:
        """The one registered last."""
        return self.plugins[-1]

    def of(self, resource: str) -> list[Plugin]:
        """Those that registered for *resource*, the last one last."""
        return [each for each in self.plugins if each.request.resource_name == resource]

    def start(self) -> None:
        """As the kubelet: wipe the directory's sockets, make its own."""
        for path in self.directory.iterdir():
            if path.is_socket():
                path.unlink()
        for socket in (self.socket, self.pod_resources_socket):
            server = grpc.server(ThreadPoolExecutor(4))
            add_RegistrationServicer_to_server(self, server)
            add_PodResourcesListerServicer_to_server(self, server)
            server.add_insecure_port(f"unix:{socket}")
            server.start()
            self._servers.append(server)

    def stop(self) -> None:
        for plugin in self.plugins:
            plugin.close()
        for server in self._servers:
            server.stop(grace=0).wait(5)
        self._servers.clear()

    def restart(self) -> None:
        self.stop()
        self.start()

    def Register(self, request: api.RegisterRequest, context: grpc.ServicerContext) -> api.Empty:
        """Dials the plugin inside the call, as the real one does."""
        if self.refusals:
            self.refusals -= 1
            context.abort(grpc.StatusCode.UNKNOWN, "not now")
        self.take(request)
        return api.Empty()

    def take(self, request: api.RegisterRequest) -> None:
        plugin = Plugin(self.directory / request.endpoint, request)
        plugin.options = plugin.stub.GetDevicePluginOptions(api.Empty(), timeout=30)
        assert plugin.options == request.options
        self.plugins.append(plugin)
        plugin.listen()

    def List(
        self, request: held.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> held.ListPodResourcesResponse:
        """One entry per device, as seen of v1.36.3."""
        return held.ListPodResourcesResponse(
            pod_resources=[
                held.PodResources(
                    namespace=key.split("/")[0],
                    name=key.split("/")[1],
                    containers=[
                        held.ContainerResources(
                            name=name,
                            devices=[
                                held.ContainerDevices(
                                    resource_name=self.held_resource, device_ids=[device]
                                )
                                for device in ids
                            ],
                        )
                        for name, ids in containers.items()
                    ],
                )
                for key, containers in self.holds.items()
            ]
            + [
                held.PodResources(
                    namespace=key.split("/")[0],
                    name=key.split("/")[1],
                    containers=[
                        held.ContainerResources(
                            name=name, dynamic_resources=[of_claim(key, devices)]
                        )
                        for name, devices in containers.items()
                    ],
                )
                for key, containers in self.claimed.items()
            ]
        )

    def Get(
        self, request: held.GetPodResourcesRequest, context: grpc.ServicerContext
    ) -> held.GetPodResourcesResponse:
        raise NotImplementedError

    def GetAllocatableResources(
        self, request: held.AllocatableResourcesRequest, context: grpc.ServicerContext
    ) -> held.AllocatableResourcesResponse:
        raise NotImplementedError
