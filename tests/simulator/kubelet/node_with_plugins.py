"""One simulated node with an API server, a kubelet, and the plugins that a test starts."""

from pathlib import Path

import grpc

from linkwise.kube.client import ApiError, KubeClient
from linkwise.kube.objects import Node, Pod
from linkwise.plugin.kubelet import podresources_pb2 as resources
from linkwise.plugin.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.kubelet import Kubelet, KubeletSettings
from tests.simulator.kubelet.tiny_plugin import RESOURCE, TinyPlugin
from tests.waiting import wait_for

EIGHT = tuple(f"GPU-{n}" for n in range(8))
HASTE = KubeletSettings(status_seconds=0.02, stop_seconds=0.0)


class NodeWithPlugins:
    """The API server, the kubelet, and the plugins that a test starts."""

    def __init__(self, server: ApiServer, directory: Path, settings: KubeletSettings) -> None:
        self.server = server
        self.client = client = KubeClient.load(kubeconfig=None, server=server.url)
        self.kubelet = Kubelet("n1", directory, client, seed=7, settings=settings)
        self.plugins: list[TinyPlugin] = []

    def plugin(self, devices: tuple[str, ...] = EIGHT, **more: object) -> TinyPlugin:
        plugin = TinyPlugin(self.kubelet.device_plugin_directory, devices, **more)  # type: ignore[arg-type]
        self.plugins.append(plugin)
        plugin.start()
        return plugin

    def node(self) -> Node:
        return self.client.get("/api/v1/nodes/n1", Node)

    def devices_are(self, capacity: int, allocatable: int) -> None:
        self.registered()

        def shown() -> bool:
            status = self.node().status
            found = (status.capacity.get(RESOURCE), status.allocatable.get(RESOURCE))
            return found == (str(capacity), str(allocatable))

        wait_for(shown, f"node with {capacity} devices, {allocatable} of them allocatable")

    def registered(self) -> None:
        def there() -> bool:
            try:
                return bool(self.node().status.conditions)
            except ApiError:
                return False

        wait_for(there, "the node")

    def create(self, name: str, gpus: int = 0, **more: object) -> None:
        limits = {RESOURCE: str(gpus)} if gpus else {}
        spec = {
            "nodeName": "n1",
            "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        body["metadata"] = {"name": name, **more}
        self.client.post("/api/v1/namespaces/ml/pods", body)

    def pod(self, name: str) -> Pod:
        return self.client.get(f"/api/v1/namespaces/ml/pods/{name}", Pod)

    def phase_is(self, name: str, phase: str) -> Pod:
        wait_for(lambda: self.pod(name).status.phase == phase, f"{name} {phase}")
        return self.pod(name)

    def gone(self, name: str) -> bool:
        try:
            self.pod(name)
        except ApiError as error:
            return error.status == 404
        return False

    def delete(self, name: str) -> None:
        self.client.delete(f"/api/v1/namespaces/ml/pods/{name}")

    def held(self) -> dict[str, dict[str, set[str]]]:
        """Return pod -> container -> devices, as podresources lists them."""
        with self.pod_resources() as lister:
            pods = lister.List(resources.ListPodResourcesRequest()).pod_resources
        return {
            pod.name: {
                container.name: {d for entry in container.devices for d in entry.device_ids}
                for container in pod.containers
            }
            for pod in pods
        }

    def pod_resources(self) -> "_Lister":
        return _Lister(self.kubelet.pod_resources_socket)


class _Lister:
    def __init__(self, socket: Path) -> None:
        options = [("grpc.default_authority", "localhost")]
        self._channel = grpc.insecure_channel(f"unix://{socket}", options=options)

    def __enter__(self) -> PodResourcesListerStub:
        return PodResourcesListerStub(self._channel)

    def __exit__(self, *_: object) -> None:
        self._channel.close()
