"""A kubelet with a tiny device plugin beside it: the stand-in, or the real one with containers.

Each scenario has a resource and a namespace of its own, as a real kubelet is too slow to have one
for each. What a container does, how long it runs and how long it takes to end, is said here once
for both: a real one gets a shell that does it, the stand-in reads it from annotations.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from linkwise.plugin.kubelet import podresources_pb2 as resources
from linkwise.plugin.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from linkwise.simulator.manifests.object_reader import RUN_SECONDS, STOP_SECONDS
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.programs.busybox import WORKLOAD
from tests.contract.api_world import NODES, Api, Object
from tests.simulator.kubelet.tiny_plugin import TinyPlugin

EIGHT = tuple(f"GPU-{number}" for number in range(8))
INIT_SECONDS = 3.0


@dataclass(frozen=True)
class Kubelet:
    """A running kubelet, as its node's other programs see it."""

    api: Api
    node: str
    device_plugins: Path
    pod_resources: Path
    restart: Callable[[], None]
    status_seconds: float  # how long until the Node shows a change, at most


@dataclass
class KubeletNode:
    kubelet: Kubelet
    plugins: list[TinyPlugin] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = self.kubelet.api
        self.resource = f"nvidia.com/gpu-{self.api.namespace}"

    # The plugin's side

    def plugin(self, devices: Sequence[str] = EIGHT, **more: object) -> TinyPlugin:
        plugin = self.unregistered(devices, **more)
        plugin.start()
        return plugin

    def unregistered(self, devices: Sequence[str] = EIGHT, **more: object) -> TinyPlugin:
        names = {"socket": f"{self.api.namespace}-{len(self.plugins)}", "resource": self.resource}
        plugin = TinyPlugin(self.kubelet.device_plugins, devices, **(names | more))  # type: ignore[arg-type]
        self.plugins.append(plugin)
        return plugin

    @contextmanager
    def lister(self) -> Iterator[PodResourcesListerStub]:
        options = [("grpc.default_authority", "localhost")]
        address = f"unix://{self.kubelet.pod_resources}"
        with grpc.insecure_channel(address, options=options) as channel:
            yield PodResourcesListerStub(channel)

    def held(self) -> dict[str, dict[str, set[str]]]:
        """pod -> container -> devices, as podresources lists those of this scenario."""
        with self.lister() as lister:
            pods = lister.List(resources.ListPodResourcesRequest()).pod_resources
        return {
            pod.name: {
                container.name: {d for entry in container.devices for d in entry.device_ids}
                for container in pod.containers
            }
            for pod in pods
            if pod.namespace == self.api.namespace
        }

    def offers(self, count: int) -> bool:
        """Whether the kubelet has heard of *count* devices; the Node may show them later."""
        with self.lister() as lister:
            answer = lister.GetAllocatableResources(resources.AllocatableResourcesRequest())
        of_ours = (entry for entry in answer.devices if entry.resource_name == self.resource)
        return sum(len(entry.device_ids) for entry in of_ours) == count

    # The API server's side

    def devices(self) -> tuple[str, str]:
        """What the Node shows of the resource: capacity and allocatable."""
        answer = self.api.ask("GET", f"{NODES}/{self.kubelet.node}")
        if answer.status == 404:  # the kubelet has not made it yet
            return "", ""
        status = answer.object["status"]
        capacity, allocatable = status.get("capacity", {}), status.get("allocatable", {})
        return capacity.get(self.resource, ""), allocatable.get(self.resource, "")

    def devices_are(self, capacity: int, allocatable: int) -> None:
        wanted = (str(capacity), str(allocatable))
        wait_for(lambda: self.devices() == wanted, f"{capacity} devices, {allocatable} allocatable")

    def container(
        self, name: str, gpus: int = 0, *, seconds: float | None = None, stop: float = 0
    ) -> Object:
        """One that runs for *seconds*, or until SIGTERM; then it takes *stop* seconds."""
        limits = {self.resource: str(gpus)} if gpus else {}
        lasts = 2147483647 if seconds is None else seconds
        script = f"trap 'sleep {stop}; exit 0' TERM; sleep {lasts} & wait"
        return {
            "name": name,
            "image": WORKLOAD,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
            "resources": {"limits": limits},
        }

    def sidecar(self, name: str, gpus: int = 0) -> Object:
        return self.container(name, gpus) | {"restartPolicy": "Always"}

    def create(
        self, name: str, gpus: int = 0, *, seconds: float | None = None, stop: float = 0
    ) -> None:
        main = self.container("main", gpus, seconds=seconds, stop=stop)
        annotations = {STOP_SECONDS: str(stop)}
        if seconds is not None:
            annotations[RUN_SECONDS] = str(seconds)
        self.create_of(name, [main], metadata={"annotations": annotations})

    def create_of(
        self, name: str, containers: Sequence[Object], init: Sequence[Object] = (), **more: object
    ) -> None:
        self.api.pod(
            name,
            nodeName=self.kubelet.node,
            restartPolicy="Never",
            automountServiceAccountToken=False,
            containers=containers,
            initContainers=init,
            **more,
        )

    def pod(self, name: str) -> Object:
        return self.api.get(f"{self.api.pods}/{name}")

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"]["phase"])

    def phase_is(self, name: str, phase: str) -> Object:
        """Waits for it; the pod's status."""
        wait_for(lambda: self.phase(name) == phase, f"{name} {phase}")
        return dict(self.pod(name)["status"])

    def delete(self, name: str, **options: object) -> None:
        self.api.ask("DELETE", f"{self.api.pods}/{name}", options)

    def exists(self, name: str) -> bool:
        return self.api.ask("GET", f"{self.api.pods}/{name}").status == 200

    def leave_nothing(self) -> None:
        for pod in self.api.get(self.api.pods)["items"]:
            self.delete(pod["metadata"]["name"], gracePeriodSeconds=1)
        wait_for(lambda: not self.api.get(self.api.pods)["items"], "all pods gone")
        for plugin in self.plugins:
            plugin.stop()
