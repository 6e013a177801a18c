"""All stand-ins together, without Linkwise: manifests go in, pods run with devices, jobs end."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Node, Pod
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.jobs.controller import JobController
from linkwise.simulator.kubelet import Kubelet, KubeletSettings
from linkwise.simulator.manifests.read_manifests import read_manifests
from linkwise.simulator.scheduler import SchedulerLoop, SchedulerSettings
from tests.simulator.kubelet.tiny_plugin import RESOURCE, TinyPlugin
from tests.waiting import wait_for

GANG = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  template:
    metadata:
      annotations: {simulator.linkwise.dev/run-seconds: "%s"}
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: x
          resources: {limits: {nvidia.com/gpu: 8}}
"""


class _Pods(msgspec.Struct):
    items: list[Pod]


class TwoNodes:
    def __init__(self, server: ApiServer, directory: Path) -> None:
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        haste = KubeletSettings(status_seconds=0.02, stop_seconds=0.0)
        self.kubelets = [
            Kubelet(name, directory / name, self.client, settings=haste) for name in ("n1", "n2")
        ]
        self.plugins: list[TinyPlugin] = []
        settings = SchedulerSettings(initial_backoff_seconds=0.02, max_backoff_seconds=0.1)
        self.loop = SchedulerLoop(self.client, settings=settings)
        self.controller = JobController(self.client, failure_backoff_seconds=0.05)

    def start(self) -> None:
        for kubelet in self.kubelets:
            kubelet.start()
            ids = [f"{kubelet.node_name}-{number}" for number in range(8)]
            plugin = TinyPlugin(kubelet.device_plugin_directory, ids)
            plugin.start()
            self.plugins.append(plugin)
        self.loop.start()
        self.controller.start()
        wait_for(lambda: all(self.allocatable(k.node_name) == "8" for k in self.kubelets), "GPUs")

    def stop(self) -> None:
        self.controller.stop()
        self.loop.stop()
        for kubelet in self.kubelets:
            kubelet.stop()
        for plugin in self.plugins:
            plugin.stop()

    def allocatable(self, name: str) -> str:
        class Nodes(msgspec.Struct):
            items: list[Node]

        nodes = self.client.get("/api/v1/nodes", Nodes).items
        found = [n.status.allocatable.get(RESOURCE) for n in nodes if n.metadata.name == name]
        return str(found[0]) if found else ""

    def submit(self, text: str) -> None:
        for manifest in read_manifests(text):
            self.client.post(manifest.collection, manifest.body)

    def running(self) -> list[Pod]:
        pods = self.client.get("/api/v1/pods", _Pods).items
        return [pod for pod in pods if pod.status.phase == "Running"]

    def job(self) -> Any:
        path = "/apis/batch/v1/namespaces/default/jobs/train"
        return self.client.get(path, dict[str, Any])


@pytest.fixture
def world() -> Iterator[TwoNodes]:
    directory = Path(tempfile.mkdtemp(prefix="lw"))  # pytest's own path is too long for a socket
    with ApiServer() as server:
        world = TwoNodes(server, directory)
        world.start()
        yield world
        world.stop()
    shutil.rmtree(directory)


def test_a_gang_runs_on_both_nodes_and_its_job_completes(world: TwoNodes) -> None:
    world.submit(GANG % "0.2")
    wait_for(lambda: len(world.running()) == 2, "both run")
    held = {
        device[:2]
        for kubelet in world.kubelets
        for pod in kubelet.pod_devices()
        for devices in pod.held["main"].values()
        for device in devices
    }
    assert held <= {"n1", "n2"}
    wait_for(lambda: "completionTime" in world.job()["status"], "the job's end")
    assert world.job()["status"]["succeeded"] == 2
    assert [kubelet.pod_devices() for kubelet in world.kubelets] == [(), ()]


def test_a_member_that_is_deleted_comes_back_on_the_gpus_it_left(world: TwoNodes) -> None:
    world.submit(GANG % "3600")
    wait_for(lambda: len(world.running()) == 2, "both run")
    first = world.running()[0]
    world.client.delete(f"/api/v1/namespaces/default/pods/{first.metadata.name}")

    def replaced() -> bool:
        running = world.running()
        uids = {pod.metadata.uid for pod in running}
        return len(running) == 2 and first.metadata.uid not in uids

    wait_for(replaced, "its replacement runs")
    nodes = {pod.spec.node_name for pod in world.running()}
    assert nodes == {"n1", "n2"}
