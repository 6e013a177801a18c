"""GPUs from claims: kube-scheduler allocates them, and the extender shows who has which.

The slices are published by hand, as a DRA driver would; nodes are only objects.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.dra import add_nodes, create_claim, pod_with, uuids
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    PODS,
    SchedulingWorld,
    started_world,
)

UUIDS = uuids("c1")


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
        add_nodes(world, "c1")
        wait_for(lambda: bool(view(world, "c1").get("gpus")), "the slice has been seen")
        yield world
    shutil.rmtree(directory, ignore_errors=True)


def view(world: SchedulingWorld, node: str) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = msgspec.json.decode(world.asked("/nodes"))
    return next((each for each in nodes if each["name"] == node), {})


def holders(world: SchedulingWorld, node: str) -> dict[int, str]:
    """By index, of the GPUs that are in use."""
    gpus = view(world, node)["gpus"]
    return {gpu["index"]: gpu["holder"] for gpu in gpus if gpu["state"] == "used"}


def create(world: SchedulingWorld, name: str, *indices: int) -> None:
    """A pod with a claim for just these GPUs."""
    claim = f"{name}-gpus"
    create_claim(world, claim, len(indices), [UUIDS[index] for index in indices])
    world.client.post(PODS, {"metadata": {"name": name}, "spec": pod_with(claim)})


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
