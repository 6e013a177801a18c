"""The GPU that a container gets is the GPU that the planner chose, through all the programs."""

from collections.abc import Iterator

import pytest

from linkwise.topology import names
from linkwise.topology.annotations.plan import read_gpus
from tests.end_to_end import manifests, promises
from tests.end_to_end.world import World, running_world
from tests.waiting import wait_for


@pytest.fixture
def world() -> Iterator[World]:
    with running_world(["dgx2-v100"], seed=1) as world:
        yield world


def planned(world: World, name: str) -> dict[str, frozenset[str]]:
    notes = world.pod(name).metadata.annotations
    return {c: frozenset(gpus) for c, gpus in read_gpus(notes.get(names.GPUS, "{}")).items()}


def settle(world: World) -> None:
    wait_for(lambda: not promises.unsettled(world), "all is as it should be")


def swaps_told(world: World) -> int:
    return [event["reason"] for event in world.events()].count("GpuSwap")


def test_a_swap_is_noticed_counted_and_repaired_and_nothing_is_killed(world: World) -> None:
    world.submit(manifests.pod("before", 2))
    wait_for(lambda: world.pod("before").status.phase == "Running", "the first pod runs")
    world.nodes["n1"].swap_next()

    for name in ("a", "b"):
        world.submit(manifests.pod(name, 2))
    wait_for(lambda: world.counted_by_all("swaps") >= 1, "the swap is counted")
    settle(world)

    held = world.nodes["n1"].held()
    assert held == {f"ml/{name}": planned(world, name) for name in ("before", "a", "b")}
    assert all(world.pod(name).status.phase == "Running" for name in ("before", "a", "b"))
    wait_for(lambda: swaps_told(world) == world.counted_by_all("swaps"), "each is told")


def test_a_gang_whose_plan_was_swapped_away_is_planned_again(world: World) -> None:
    """The kubelet gives a single pod the GPUs of a gang that is planned and not yet bound."""
    world.nodes["n1"].swap_next()
    for body in (*manifests.gang("g", 2, 4), manifests.pod("single", 4)):
        world.submit(body)
    pods = ["g-0", "g-1", "single"]
    wait_for(lambda: all(world.pod(name).status.phase == "Running" for name in pods), "all run")
    settle(world)
    held = world.nodes["n1"].held()
    assert held == {f"ml/{name}": planned(world, name) for name in pods}
