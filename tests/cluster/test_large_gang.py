"""A gang whose looks are rate-limited is bound whole, whatever happens to it half-way.

Its last member is held back past all filters, so the others have plans and wait at `bind`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linkwise.kube.objects import Pod
from linkwise.topology import names
from linkwise.topology.annotations.plan import read_plan
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.contention import given_twice
from tests.cluster.support.scheduling.job_pods import (
    Look,
    create_held,
    create_members,
    pod_spec,
    provision,
)
from tests.cluster.support.scheduling.two_extenders import SwitchWorld, switch_world

MEMBERS = 128
NODES = [f"n{number:02}" for number in range(MEMBERS // 8 + 1)]  # one to spare


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SwitchWorld]:
    with switch_world(run_directory / "large-gang", NODES) as world:
        yield world


@pytest.fixture
def world(started: SwitchWorld) -> SwitchWorld:
    started.clear()
    for node in NODES:
        started.client.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
    return started


def planned(world: SwitchWorld) -> list[str]:
    return [pod.metadata.name for pod in world.pods() if names.PLAN in pod.metadata.annotations]


def nothing(_world: SwitchWorld) -> None:
    pass


def kill_the_leader(world: SwitchWorld) -> None:
    before = world.pair.leader
    before.kill()
    wait_for(lambda: world.pair.other(before).status() == 200, "the other leads")


def make_some_again(world: SwitchWorld) -> None:
    """Of each eight members one goes and comes again."""
    for rank in range(0, MEMBERS, 8):
        world.delete(f"g-{rank}")
        create_members(world, "g", [pod_spec(1)], size=MEMBERS, first=rank)


def cordon_a_planned_node(world: SwitchWorld) -> None:
    node = read_plan(world.pods()[0].metadata.annotations[names.PLAN]).node
    world.client.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})


def marked(world: SwitchWorld) -> list[Pod]:
    return [pod for pod in world.pods() if names.STARTED in pod.metadata.annotations]


@pytest.mark.parametrize(
    "strike", [nothing, kill_the_leader, make_some_again, cordon_a_planned_node]
)
def test_a_gang_of_many_is_bound_whole(
    world: SwitchWorld, strike: Callable[[SwitchWorld], None]
) -> None:
    claim, look = f"data-{strike.__name__.replace('_', '-')}", Look(world, grace_seconds=15.0)
    members = create_held(world, "g", claim, size=MEMBERS, gpus=1)
    wait_for(lambda: len(planned(world)) == MEMBERS, "all have plans")
    look.none_bound(members, 1.0)
    strike(world)
    look.none_bound(members, 5.0)
    provision(world, claim)
    look.until_bound(members, 120.0)
    assert not given_twice(world.pods())
    wait_for(lambda: '"phase":"running"' in world.asked("/gangs"), "it runs")
    wait_for(lambda: marked(world), "the extender has written that it started")
    assert len(marked(world)) == 1
