"""A gang whose looks are rate-limited is bound whole, whatever happens to it half-way."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linkwise.topology import names
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.contention import given_twice
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


def create(world: SwitchWorld, rank: int) -> None:
    said = {names.GANG: "g", names.GANG_SIZE: str(MEMBERS), names.RANK: str(rank)}
    world.create(f"g-{rank}", 1, annotations=said)


def bound(world: SwitchWorld) -> list[str]:
    return [pod.metadata.name for pod in world.pods() if pod.spec.node_name]


def nothing(_world: SwitchWorld) -> None:
    pass


def kill_the_leader(world: SwitchWorld) -> None:
    before = world.pair.leader
    before.kill()
    wait_for(lambda: world.pair.other(before).status() == 200, "the other leads")


def make_some_again(world: SwitchWorld) -> None:
    """Of each eight members one goes, bound or not, and comes again."""
    for rank in range(0, MEMBERS, 8):
        world.delete(f"g-{rank}")
        create(world, rank)


def cordon_a_planned_node(world: SwitchWorld) -> None:
    waits = next(pod for pod in world.pods() if not pod.spec.node_name)
    node = waits.status.nominated_node_name or NODES[-1]
    world.client.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})


@pytest.mark.parametrize(
    "strike", [nothing, kill_the_leader, make_some_again, cordon_a_planned_node]
)
def test_a_gang_of_many_is_bound_whole(
    world: SwitchWorld, strike: Callable[[SwitchWorld], None]
) -> None:
    for rank in range(MEMBERS):
        create(world, rank)
    wait_for(lambda: len(bound(world)) >= MEMBERS // 4, "a quarter is bound")
    strike(world)
    wait_for(lambda: len(bound(world)) == MEMBERS, "all are bound", 120)
    assert not given_twice(world.pods())
    wait_for(lambda: '"phase":"running"' in world.asked("/gangs"), "it runs")
    marked = [p for p in world.pods() if names.STARTED in p.metadata.annotations]
    assert len(marked) == 1
