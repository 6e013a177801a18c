"""Adoption in steps with the real kube-scheduler: observe, canary, and back.

`n1` and `n2` publish their topology. `bare` has GPUs and no topology: a vendor's plugin runs there
alone.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from linkwise.kube.objects import Pod
from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import (
    ADMISSION_OFF,
    GPU,
    ExtenderProcess,
    allow_extender,
    gpu_node,
    guard_plans,
    scheduler_config,
    scheduler_env,
)

CANARY, OTHERS = "canary", "others"
OURS = {names.PLAN, names.GPUS}


class Adopting:
    """One control plane; the extender and kube-scheduler start again with each step."""

    def __init__(self, control: ControlPlane) -> None:
        self.control, self.client = control, control.client()
        for namespace in (CANARY, OTHERS):
            control.kubectl("create", "namespace", namespace)
        allow_extender(control)
        guard_plans(control)
        for name in ("n1", "n2"):
            self.client.post("/api/v1/nodes", gpu_node(name))
        bare = gpu_node("bare")
        bare["metadata"]["annotations"] = {}
        self.client.post("/api/v1/nodes", bare)
        self.extender = ExtenderProcess(control)
        self.extender.start()
        self.scheduler = control.start_scheduler()

    def step(self, *flags: str, called: bool) -> None:
        """Both programs with another configuration. *called*: kube-scheduler calls the extender."""
        self.scheduler.stop()
        self.extender.process.stop()
        self.extender = ExtenderProcess(self.control, *flags)
        self.extender.start()
        config = scheduler_config(self.control, self.extender.calls) if called else None
        self.scheduler = self.control.start_scheduler(config, env=scheduler_env())

    def stop(self) -> None:
        self.scheduler.stop()
        self.extender.process.stop()
        self.control.stop()

    def create(
        self,
        namespace: str,
        name: str,
        gpus: int,
        said: Mapping[str, str] | None = None,
        *,
        gated: bool = False,
    ) -> None:
        limits = {"limits": {GPU: str(gpus)}}
        spec: dict[str, Any] = {
            "containers": [{"name": "main", "image": "none", "resources": limits}],
            "restartPolicy": "Never",
        }
        if gated:
            spec["schedulingGates"] = [{"name": names.GATE}]
        metadata = {"name": name, "annotations": dict(said or {})}
        pods = f"/api/v1/namespaces/{namespace}/pods"
        self.client.post(pods, {"metadata": metadata, "spec": spec})

    def read(self, namespace: str, name: str) -> Pod:
        return self.client.get(f"/api/v1/namespaces/{namespace}/pods/{name}", Pod)

    def delete(self, namespace: str, name: str) -> None:
        self.client.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", grace_seconds=0)

    def wait_bound(self, namespace: str, name: str) -> Pod:
        wait_for(lambda: self.read(namespace, name).spec.node_name, f"{name} is bound", 60)
        return self.read(namespace, name)

    def view(self, path: str) -> Any:
        return json.loads(self.extender.get(path))

    def in_use(self) -> dict[str, int]:
        """By node: how many GPUs the extender counts as not free."""
        counted = {view["name"]: view["by_count"] for view in self.view("/nodes")}
        return {
            view["name"]: counted[view["name"]]["used"]
            if counted[view["name"]]
            else sum(gpu["state"] != "free" for gpu in view["gpus"])
            for view in self.view("/nodes")
        }


def ours(pod: Pod) -> set[str]:
    """What the extender wrote on the pod."""
    return OURS & set(pod.metadata.annotations)


@pytest.fixture(scope="module")
def world(run_directory: Path) -> Iterator[Adopting]:
    directory = run_directory / "adoption"
    control = ControlPlane(directory, controllers=False, disable_admission=ADMISSION_OFF)
    control.start()
    adopting = Adopting(control)
    try:
        yield adopting
    finally:
        adopting.stop()
    shutil.rmtree(directory, ignore_errors=True)


def test_observe_canary_and_back(world: Adopting) -> None:
    # Observe: pods are kube-scheduler's, and the extender sees them.
    world.create(OTHERS, "before", 3)
    before = world.wait_bound(OTHERS, "before")
    assert not ours(before)
    assert world.view("/state")["calls"] == {}
    wait_for(lambda: sum(world.in_use().values()) == 3, "the extender counts its GPUs")
    world.create(OTHERS, "gated", 1, gated=True)  # as a webhook of ours would leave it
    wait_for(lambda: world.read(OTHERS, "gated").spec.node_name, "its gate is lifted", 60)
    world.delete(OTHERS, "gated")

    # Canary: kube-scheduler asks about all; one namespace is planned.
    world.step(f"--namespace={CANARY}", called=True)
    world.create(CANARY, "ours", 4)
    planned = world.wait_bound(CANARY, "ours")
    assert ours(planned) == OURS
    assert planned.spec.node_name in ("n1", "n2")
    asked = world.view("/state")["calls"]["default-scheduler"]
    said = {names.REQUIRE_LINK: "nvlink", names.GANG: "g", names.GANG_SIZE: "7"}
    world.create(OTHERS, "theirs", 2, said)
    assert not ours(world.wait_bound(OTHERS, "theirs"))
    assert world.view("/state")["calls"]["default-scheduler"] > asked
    world.create(OTHERS, "their-gate", 1, gated=True)
    assert not ours(world.wait_bound(OTHERS, "their-gate"))
    assert world.view("/gangs") == []
    for rank in range(2):
        world.create(CANARY, f"g-{rank}", 2, {names.GANG: "g", names.GANG_SIZE: "2"})
    for rank in range(2):
        assert ours(world.wait_bound(CANARY, f"g-{rank}")) == OURS
    wait_for(lambda: sum(world.in_use().values()) == 14, "all are counted, once")

    # A node without topology takes by count what fits nowhere else, if it requires nothing.
    free = {name: 8 - used for name, used in world.in_use().items()}
    for node in ("n1", "n2"):
        if free[node]:
            world.create(CANARY, f"fills-{node}", free[node])
    for node in ("n1", "n2"):
        if free[node]:
            assert world.wait_bound(CANARY, f"fills-{node}").spec.node_name
    world.create(CANARY, "picky", 1, {names.REQUIRE_LINK: "nvlink"})
    world.create(CANARY, "by-count", 1)
    counted = world.wait_bound(CANARY, "by-count")
    assert counted.spec.node_name == "bare"
    assert not ours(counted)
    reason = "linkwise: no topology published"
    wait_for(lambda: reason in why(world.read(CANARY, "picky")), "the picky pod's reason", 60)
    assert world.view("/explain/canary/by-count")["by_count"]

    # Back: kube-scheduler alone again; nothing is left that would hold a pod up.
    world.step(called=False)
    world.delete(CANARY, "ours")
    world.create(CANARY, "after", 1)
    assert not ours(world.wait_bound(CANARY, "after"))
    assert world.wait_bound(CANARY, "picky").spec.node_name
    assert world.view("/state")["calls"].keys() <= {"default-scheduler"}


def why(pod: Pod) -> str:
    return " ".join(each.message for each in pod.status.conditions if each.type == "PodScheduled")
