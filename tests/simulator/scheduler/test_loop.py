"""What the loop has beyond kube-scheduler, and which faults it survives.

tests/contract has what the two share, above all which calls an extender gets and when.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from linkwise.kube.client import KubeClient
from linkwise.kube.objects import Pod
from linkwise.simulator.api_server import ApiServer
from linkwise.simulator.scheduler import SchedulerLoop, SchedulerSettings
from tests.simulator.scheduler.recording_extender import RecordingExtender, refuse_all
from tests.waiting import wait_for

GPU = "nvidia.com/gpu"
HASTE = SchedulerSettings(initial_backoff_seconds=0.02, max_backoff_seconds=0.1)


class SchedulerOnApiServer:
    def __init__(self, server: ApiServer, extender: RecordingExtender) -> None:
        self.server, self.extender = server, extender
        self.client = KubeClient.load(kubeconfig=None, server=server.url)
        self.loops: list[SchedulerLoop] = []

    def start(self, *, alone: bool = False, seed: int = 0, settings: Any = HASTE) -> SchedulerLoop:
        url = None if alone else self.extender.url
        loop = SchedulerLoop(self.client, url, seed=seed, settings=settings)
        self.loops.append(loop)
        loop.start()
        return loop

    def nodes(self, *names: str, gpus: int = 8, **spec: object) -> None:
        for name in names:
            allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", GPU: str(gpus)}
            status = {"capacity": allocatable, "allocatable": allocatable}
            body = {"metadata": {"name": name}, "spec": spec, "status": status}
            self.client.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **body})
            self.client.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def create(self, name: str, gpus: int = 1, **spec: object) -> None:
        limits = {GPU: str(gpus)} if gpus else {}
        containers = [{"name": "main", "image": "x", "resources": {"limits": limits}}]
        body = {"metadata": {"name": name}, "spec": {"containers": containers, **spec}}
        self.client.post("/api/v1/namespaces/ml/pods", {"apiVersion": "v1", "kind": "Pod", **body})

    def delete(self, name: str) -> None:
        self.client.delete(f"/api/v1/namespaces/ml/pods/{name}", grace_seconds=0)

    def pod(self, name: str) -> Pod:
        return self.client.get(f"/api/v1/namespaces/ml/pods/{name}", Pod)

    def node_of(self, name: str) -> str:
        """Wait until the pod has a node, and return it."""
        wait_for(lambda: self.pod(name).spec.node_name, f"{name} bound")
        return self.pod(name).spec.node_name

    def says(self, name: str, reason: str) -> str:
        """Wait until the pod's PodScheduled condition has *reason*; return its message."""

        def messages() -> list[str]:
            conditions = self.pod(name).status.conditions
            return [
                c.message for c in conditions if c.type == "PodScheduled" and c.reason == reason
            ]

        wait_for(messages, f"{name}: {reason}")
        return messages()[0]

    def quiet(self, loop: SchedulerLoop) -> None:
        """Wait until no pod is tried any more, after the loop has seen its own condition."""
        seen: list[int] = []

        def unchanged() -> bool:
            seen.append(len(self.extender.calls) if loop.idle else -1)
            return len(seen) > 40 and len(set(seen[-40:])) == 1 and seen[-1] >= 0

        wait_for(unchanged, "quiet")


@pytest.fixture
def world() -> Iterator[SchedulerOnApiServer]:
    with ApiServer() as server, RecordingExtender() as extender:
        world = SchedulerOnApiServer(server, extender)
        yield world
        for loop in world.loops:
            loop.stop()


def test_alone_it_binds_where_the_pod_fits(world: SchedulerOnApiServer) -> None:
    world.nodes("small", gpus=1)
    world.nodes("large", gpus=8)
    world.start(alone=True)
    world.create("p", 4)
    assert world.node_of("p") == "large"
    conditions = {c.type: c.status for c in world.pod("p").status.conditions}
    assert conditions["PodScheduled"] == "True"


def test_a_pod_waits_for_its_claim_and_goes_where_the_volume_is(
    world: SchedulerOnApiServer,
) -> None:
    world.nodes("n1", "n2")
    for name in ("n1", "n2"):
        world.client.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"rack": name}}})
    world.start(alone=True)
    source = {"persistentVolumeClaim": {"claimName": "data"}}
    world.create("a", volumes=[{"name": "data", **source}])
    assert 'persistentvolumeclaim "data" not found' in world.says("a", "Unschedulable")
    rack = {"key": "rack", "operator": "In", "values": ["n2"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [rack]}]}
    volume = {"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": required}}}
    world.client.post(
        "/api/v1/persistentvolumes", {"apiVersion": "v1", "kind": "PersistentVolume", **volume}
    )
    bound = {"pv.kubernetes.io/bind-completed": "yes"}
    claim = {"metadata": {"name": "data", "annotations": bound}, "spec": {"volumeName": "pv"}}
    world.client.post(
        "/api/v1/namespaces/ml/persistentvolumeclaims",
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim},
    )
    assert world.node_of("a") == "n2"


def test_more_gpus_on_a_node_wake_it_too(world: SchedulerOnApiServer) -> None:
    world.nodes("n1", gpus=0)
    world.start(alone=True)
    world.create("p")
    world.says("p", "Unschedulable")
    world.client.patch("/api/v1/nodes/n1/status", {"status": {"allocatable": {GPU: "8"}}})
    assert world.node_of("p") == "n1"


def test_equal_nodes_are_drawn_by_the_seed(world: SchedulerOnApiServer) -> None:
    names = [f"n{number}" for number in range(8)]
    world.nodes(*names)
    drawn = []
    for seed in (1, 1, 2, 3):
        loop = world.start(alone=True, seed=seed)
        world.create("p", 0)
        drawn.append(world.node_of("p"))
        loop.stop()
        world.delete("p")
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_to_be_listed_again_wakes_nobody(world: SchedulerOnApiServer) -> None:
    world.nodes("n1")
    world.extender.answers["filter"] = refuse_all("gang waits")
    loop = world.start()
    world.create("p")
    world.quiet(loop)
    world.extender.calls.clear()
    world.server.fail_next("GET", "/api/v1/pods", 410)
    world.server.cut_watches()
    world.create("q", schedulingGates=[{"name": "x"}])
    wait_for(lambda: loop.counts().gated, "q heard, so the new list has been too")
    world.quiet(loop)
    assert world.extender.calls == []


def test_nothing_is_forgotten_when_the_api_server_goes_and_comes_back(
    world: SchedulerOnApiServer,
) -> None:
    world.nodes("n1")
    loop = world.start(alone=True)
    world.create("before", 4)
    world.node_of("before")
    world.server.pause()
    world.server.resume()
    world.create("after", 4)
    assert world.node_of("after") == "n1"
    world.create("too-much", 1)
    world.says("too-much", "Unschedulable")
    wait_for(lambda: loop.idle, "idle")
