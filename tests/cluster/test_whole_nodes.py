"""Nodes are kept whole by moves, with the real API server and its Eviction API, kube-scheduler, and
the controllers of Deployments."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.claims_world import both_ways, world_with
from tests.cluster.support.scheduling.contention import given_twice
from tests.cluster.support.scheduling.movable_pods import (
    CONSENT,
    COSTLIER,
    create_deployment,
    label_nodes,
    moved,
    of,
    run,
    runs,
    terminating,
    wait_while_played,
    was_moved,
)
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld
from tests.cluster.support.scheduling.workload_pods import CONTROLLERS

CHEAP = {"web", "api"}
# Their moves lose 0.4 GPU seconds together. Those of the next node would lose 0.8 more.
COST = "--whole-nodes-cost=1s"
ROUNDS = "linkwise_extender_decide_seconds_count "

pytestmark = both_ways


@pytest.fixture
def started(run_directory: Path, request: pytest.FixtureRequest) -> Iterator[SchedulingWorld]:
    with world_with(
        request.param,
        run_directory / "whole-nodes",
        controllers=(CONTROLLERS,),
        extender_flags=("--moves=consent", "--move-cost=100ms", "--whole-nodes=2", COST),
    ) as world:
        yield world


def test_the_node_whose_moves_lose_least_is_emptied_and_stays_whole(
    started: SchedulingWorld,
) -> None:
    """One pod of n3 does not consent, nor does that of n4."""
    world = started
    for app in sorted(CHEAP):
        create_deployment(world, app, "n1", **CONSENT)
    for app in ("dear", "dearer"):
        create_deployment(world, app, "n2", **COSTLIER)
    create_deployment(world, "alone", "n3", **CONSENT)
    create_deployment(world, "silent", "n3", move_cost="100ms")
    create_deployment(world, "quiet", "n4", move_cost="100ms")
    places = {"n1": CHEAP, "n2": ("dear", "dearer"), "n3": ("alone", "silent"), "n4": ("quiet",)}
    before = run(world, {app: node for node, apps in places.items() for app in apps})

    # Else n2 could not be emptied next: a pod that was moved stays.
    for app in CHEAP:
        label_nodes(world, app, ("n1", "n3", "n4"))

    look_at_once(world)
    wait_while_played(world, lambda: terminating(world) == CHEAP, "they go", spare=CHEAP)
    wait_while_played(world, lambda: all(runs(world, app) for app in CHEAP), "all run again")
    after = {app: pod for app in before for pod in of(world, app)}
    assert {app for app, uid in before.items() if after[app].metadata.uid != uid} == CHEAP
    assert all(was_moved(after[app]) for app in CHEAP)
    wait_for(lambda: len(moved(world, before)) >= len(CHEAP), "the Events are written")
    assert moved(world, before) == {
        app: "evicted to empty node n1: this pod's next place is reserved on "
        f"{after[app].spec.node_name}"
        for app in CHEAP
    }
    wait_while_played(world, lambda: is_whole(world, "n1"), "the node is whole")

    look_at_once(world)
    assert being_emptied(world) == []
    others = [world.create(f"small-{each}", gpus=2) for each in range(4)]
    world.wait_bound(others)
    assert is_whole(world, "n1")
    large = world.create("large", gated=True)
    world.wait_bound([large])
    assert world.node_of(large) == "n1"
    assert moved(world, before).keys() == CHEAP
    assert not given_twice(world.pods())


def look_at_once(world: SchedulingWorld) -> None:
    """A new leader counts the whole nodes in its first round, the same one only once a minute."""
    world.extender.process.stop()
    world.extender.start()
    wait_for(lambda: rounds(world) > 0, "a round is over")


def rounds(world: SchedulingWorld) -> float:
    lines = world.asked("/metrics").splitlines()
    return sum(float(line.removeprefix(ROUNDS)) for line in lines if line.startswith(ROUNDS))


def being_emptied(world: SchedulingWorld) -> list[str]:
    plans = json.loads(world.asked("/moves"))["plans"]
    return [plan["for_whom"] for plan in plans if plan["for_whom"].startswith("node ")]


def is_whole(world: SchedulingWorld, node: str) -> bool:
    return not any(gpu.startswith(f"{node}/") for gpu in world.taken())
