"""A node with the simulator's kubelet and the whole plugin."""

import random
from pathlib import Path
from threading import Thread

import msgspec

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node, Pod
from linkwise.plugin.gpus.recorded import RecordedInventory
from linkwise.plugin.node.in_use import PodResources
from linkwise.plugin.program import Program
from linkwise.plugin.settings import Settings
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.kubelet import Kubelet, KubeletSettings
from linkwise.topology import names
from linkwise.topology.annotations.plan import ContainerGpus, read_in_use
from linkwise.topology.machine.recorded import recorded_machine
from tests.plugin.pods import RESOURCE, bind, manifest
from tests.waiting import wait_for

MACHINE = "dgx2-v100"
UUIDS = tuple(gpu.uuid for gpu in recorded_machine(MACHINE, node="n1").gpus)  # 16


class PodList(msgspec.Struct):
    items: tuple[Pod, ...]


class PluginNode:
    """One node: API server, kubelet, plugin."""

    def __init__(self, directory: Path, server: ApiServer, seed: int) -> None:
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        self.kubelet = Kubelet(
            "n1", directory, self.client, seed=seed, settings=KubeletSettings(status_seconds=0.02)
        )
        self.resources = PodResources(self.kubelet.pod_resources_socket, RESOURCE)
        self.settings = Settings(
            node_name="n1",
            kubelet_dir=self.kubelet.device_plugin_directory,
            pod_resources_socket=self.kubelet.pod_resources_socket,
            listen_address="127.0.0.1",
            listen_port=0,
            in_use_seconds=0.05,
        )
        self.kubelet.start()
        self.start_plugin()

    def start_plugin(self) -> None:
        inventory = RecordedInventory.named(MACHINE, node="n1")
        self.run(inventory)

    def run(self, inventory: RecordedInventory) -> None:
        self.program = Program(self.settings, inventory, self.client)
        self.thread = Thread(target=self.program.run)
        self.thread.start()
        self.wait_for_gpus()

    def stop_plugin(self) -> None:
        self.program.stop()
        self.thread.join(20)

    def wait_for_gpus(self) -> None:
        wait_for(lambda: self.program.not_ready() == "", "a ready plugin")
        wait_for(lambda: self.node().status.allocatable.get(RESOURCE) in (16, "16"), "16 GPUs")

    def stop(self) -> None:
        self.stop_plugin()
        self.kubelet.stop()
        self.resources.close()

    def node(self) -> Node:
        return self.client.get("/api/v1/nodes/n1", Node)

    def in_use(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """As the Node says."""
        notes = self.node().metadata.annotations
        return read_in_use(notes[names.IN_USE]).pods if names.IN_USE in notes else {}

    def phases(self) -> list[str]:
        return [pod.status.phase for pod in self.client.get("/api/v1/pods", PodList).items]

    def submit(self, name: str, gpus: ContainerGpus, **containers: int) -> None:
        """A pod with a plan, bound, as the extender's Binding leaves it."""
        sizes = containers or {container: len(held) for container, held in gpus.items()}
        body = manifest(name, *((c, str(n)) for c, n in sizes.items()))
        bind(self.client, body, gpus)

    def wait_for_running(self, count: int) -> None:
        wait_for(lambda: self.phases().count("Running") == count, f"{count} running pods")


def shuffled_plans(seed: int, sizes: list[int]) -> dict[str, ContainerGpus]:
    order = list(UUIDS)
    random.Random(seed).shuffle(order)
    plans: dict[str, ContainerGpus] = {}
    for number, size in enumerate(sizes):
        plans[f"w{number}"] = {"main": tuple(order[:size])}
        order = order[size:]
    return plans


def as_held(plans: dict[str, ContainerGpus]) -> dict[str, dict[str, tuple[str, ...]]]:
    return {
        f"ml/{name}": {container: tuple(sorted(gpus)) for container, gpus in plan.items()}
        for name, plan in plans.items()
    }
