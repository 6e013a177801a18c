"""GPUs from claims: kube-scheduler allocates them, and the extender shows who has which.

The slices are published by hand, as a DRA driver would; nodes are only objects.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkwise.topology.machine.recorded import recorded_machine
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF, GPU, gpu_node
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    PODS,
    SchedulingWorld,
    started_world,
)

MACHINE = "hgx-h100"
DRIVER = "gpu.nvidia.com"
DEVICES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{DEVICES}/namespaces/{NAMESPACE}/resourceclaims"
UUIDS = [gpu.uuid for gpu in recorded_machine(MACHINE, node="c1").gpus]


@pytest.fixture(scope="module")
def world(run_directory: Path) -> Iterator[SchedulingWorld]:
    directory = run_directory / "claims"
    control = ControlPlane(
        directory,
        disable_admission=ADMISSION_OFF,
        controller_flags=("--controllers=resourceclaim-controller",),
    )
    control.start()
    with started_world(SchedulingWorld(control), ("n1",)) as world:
        client = world.client
        by_claims = gpu_node("c1", MACHINE)
        for amounts in (by_claims["status"]["capacity"], by_claims["status"]["allocatable"]):
            amounts.pop(GPU, None)
        client.post("/api/v1/nodes", by_claims)
        client.post(f"{DEVICES}/resourceslices", slice_of("c1"))
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        device_class = {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}}
        client.post(f"{DEVICES}/deviceclasses", device_class)
        wait_for(lambda: bool(view(world, "c1").get("gpus")), "the slice has been seen")
        yield world
    shutil.rmtree(directory, ignore_errors=True)


def slice_of(node: str) -> dict[str, Any]:
    devices = [
        {
            "name": f"gpu-{index}",
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}},
        }
        for index, uuid in enumerate(UUIDS)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-{DRIVER}"}, "spec": spec}


def view(world: SchedulingWorld, node: str) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = msgspec.json.decode(world.asked("/nodes"))
    return next((each for each in nodes if each["name"] == node), {})


def holders(world: SchedulingWorld, node: str) -> dict[int, str]:
    """By index, of the GPUs that are in use."""
    gpus = view(world, node)["gpus"]
    return {gpu["index"]: gpu["holder"] for gpu in gpus if gpu["state"] == "used"}


def create(world: SchedulingWorld, name: str, *indices: int) -> None:
    """A pod with a claim for just these GPUs."""
    named = ", ".join(f'"{UUIDS[index]}"' for index in indices)
    selector = {"cel": {"expression": f'device.attributes["{DRIVER}"].uuid in [{named}]'}}
    exactly = {"deviceClassName": DRIVER, "count": len(indices), "selectors": [selector]}
    requests = [{"name": "gpus", "exactly": exactly}]
    claim = {"metadata": {"name": f"{name}-gpus"}, "spec": {"devices": {"requests": requests}}}
    world.client.post(CLAIMS, claim)
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "gpus"}]}}
    spec = {
        "containers": [container],
        "resourceClaims": [{"name": "gpus", "resourceClaimName": f"{name}-gpus"}],
        "restartPolicy": "Never",
    }
    world.client.post(PODS, {"metadata": {"name": name}, "spec": spec})


def test_the_gpus_that_kube_scheduler_allocates_are_in_use_by_the_pod(
    world: SchedulingWorld,
) -> None:
    create(world, "train", 2, 5)
    world.wait_bound(["train"])
    assert world.node_of("train") == "c1"
    mine = {2: "ml/train", 5: "ml/train"}
    wait_for(lambda: holders(world, "c1") == mine, "the allocated GPUs are in use")
    assert holders(world, "n1") == {}
    told = world.extender.explain(NAMESPACE, "train")
    for index in (2, 5):
        assert f"claim ml/train-gpus: {index} ({UUIDS[index]})" in told
    assert "GB/s estimated" in told

    create(world, "late", 5)
    world.wait_waiting("late", "cannot allocate all claims")
    assert "resource claims" in world.extender.explain(NAMESPACE, "late")

    world.delete("train")
    world.wait_bound(["late"])
    wait_for(lambda: holders(world, "c1") == {5: "ml/late"}, "the GPU has changed hands")
    world.delete("late")
    wait_for(lambda: holders(world, "c1") == {}, "all GPUs are free")


def test_pods_of_device_plugins_go_to_their_own_nodes(world: SchedulingWorld) -> None:
    world.create("single", 8)
    world.wait_bound(["single"])
    assert world.node_of("single") == "n1"
    world.create("second", 8)
    world.wait_waiting("second", "Insufficient nvidia.com/gpu")
    told = world.extender.explain(NAMESPACE, "second")
    assert "a DRA driver gives out its GPUs" in told
