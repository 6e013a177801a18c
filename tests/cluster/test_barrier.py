"""No member of a gang is bound before all that must start with it have come to `bind`.

kube-scheduler keeps a member back here, past all of its filters and before `bind`: its volume is
provisioned when the test says so. Meanwhile the other members wait at `bind`. Something happens;
then the volume comes, and the gang must start whole.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from linkwise.topology import names
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

NODES = [f"n{number:03}" for number in range(4)]
# Longer than a bind call is held, and than kube-scheduler's longest back-off.
HELD_SECONDS = 15.0
STARTS_SECONDS = 30.0
LARGE, GANGS = 512, 300


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SwitchWorld]:
    with switch_world(run_directory / "barrier", NODES) as world:
        yield world


@pytest.fixture
def world(started: SwitchWorld) -> SwitchWorld:
    started.clear()
    return started


def nothing(_world: SwitchWorld) -> None:
    pass


def kill_the_leader(world: SwitchWorld) -> None:
    before = world.pair.leader
    before.kill()
    wait_for(lambda: world.pair.other(before).status() == 200, "the other leads")
    before.start()


def hang_the_api_server(world: SwitchWorld) -> None:
    """For the leader, until it is the leader no more."""
    before = world.pair.leader
    world.pair.wires[before.name].cut()
    wait_for(lambda: world.pair.other(before).status() == 200, "the other leads")
    world.pair.wires[before.name].mend()


def restart_the_scheduler(world: SwitchWorld) -> None:
    assert world.scheduler is not None
    world.scheduler.kill()
    world.scheduler.start()


def delete_one_that_waits(world: SwitchWorld) -> None:
    world.delete("g-1")
    create_members(world, "g", [pod_spec(4)], size=4, first=1)


STRIKES = [
    nothing,
    kill_the_leader,
    hang_the_api_server,
    restart_the_scheduler,
    delete_one_that_waits,
]


@pytest.mark.parametrize("strike", STRIKES)
def test_members_wait_for_the_last_one_whatever_happens(
    world: SwitchWorld, strike: Callable[[SwitchWorld], None]
) -> None:
    claim, look = f"data-{strike.__name__.replace('_', '-')}", Look(world)
    members = create_held(world, "g", claim)
    look.none_bound(members, 3.0)
    strike(world)
    look.none_bound(members, HELD_SECONDS)
    provision(world, claim)
    took = look.until_bound(members, STARTS_SECONDS)
    print(f"{strike.__name__}: whole {took:.1f} s after the last member could come")
    assert not given_twice(world.pods())


def test_a_gang_that_waits_keeps_no_other_gang_waiting(world: SwitchWorld) -> None:
    look = Look(world)
    first = create_held(world, "a", "data-a", size=2)
    second = create_held(world, "b", "data-b", size=2)
    third = create_members(world, "c", [pod_spec(4)] * 2)
    look.until_bound(third, STARTS_SECONDS)
    look.none_bound([*first, *second], HELD_SECONDS)
    provision(world, "data-b")
    look.until_bound(second, STARTS_SECONDS)
    look.none_bound(first, 3.0)
    provision(world, "data-a")
    look.until_bound(first, STARTS_SECONDS)


def test_of_two_gangs_that_want_each_others_nodes_one_starts_and_then_the_other(
    world: SwitchWorld,
) -> None:
    """Each has a member on every node, and none beside one of the other gang."""
    look, size = Look(world), len(NODES)
    label = {"app": "a"}, {"app": "b"}
    specs = [pod_spec(4, apart_from=other) for other in reversed(label)]
    gangs = [[f"{name}-{rank}" for rank in range(size)] for name in ("a", "b")]
    for rank in range(size):  # their members come in turns
        for name, spec in zip(("a", "b"), specs, strict=True):
            create_members(world, name, [spec], size=size, first=rank)
    wait_for(lambda: any(map(look.once().issuperset, gangs)), "a gang starts", STARTS_SECONDS)
    first = next(gang for gang in gangs if look.once().issuperset(gang))
    second = next(gang for gang in gangs if gang is not first)
    if look.once().isdisjoint(second):  # unless both found nodes of their own
        for name in first:
            world.delete(name)
    look.until_bound(second, STARTS_SECONDS)


def test_members_beyond_the_minimum_are_not_waited_for(world: SwitchWorld) -> None:
    look = Look(world)
    members = create_held(world, "g", "data-min", annotations={names.GANG_MIN: "3"})
    look.until_bound(members[:3], STARTS_SECONDS)
    assert members[3] not in look.once()
    provision(world, "data-min")
    look.until_bound(members, STARTS_SECONDS)


def test_members_that_come_later_are_waited_for_up_to_the_minimum(world: SwitchWorld) -> None:
    look, said = Look(world), {names.GANG_MIN: "3"}
    members = create_members(world, "g", [pod_spec(4)] * 2, size=4, annotations=said)
    look.none_bound(members, 5.0)
    members += create_members(world, "g", [pod_spec(4)], size=4, first=2, annotations=said)
    look.until_bound(members, STARTS_SECONDS)
    members += create_members(world, "g", [pod_spec(4)], size=4, first=3, annotations=said)
    look.until_bound(members, STARTS_SECONDS)


@pytest.fixture(scope="module")
def large(run_directory: Path) -> Iterator[SwitchWorld]:
    nodes = [f"n{number:03}" for number in range(GANGS * 4 // 8 + 1)]
    with switch_world(run_directory / "barrier-large", nodes) as world:
        yield world


def test_a_gang_of_512_starts_whole(large: SwitchWorld) -> None:
    large.clear()
    look = Look(large, grace_seconds=30.0)
    members = create_held(large, "g", "data-g", size=LARGE, gpus=1)
    look.none_bound(members, HELD_SECONDS)
    provision(large, "data-g")
    took = look.until_bound(members, 240.0)
    print(f"{LARGE} members: bound after {took:.1f} s, partial for {look.law.partial:.1f} s")
    assert not given_twice(large.pods())


def test_300_gangs_at_once_start_whole(large: SwitchWorld) -> None:
    large.clear()
    look = Look(large, grace_seconds=5.0)
    members: list[str] = []
    for number in range(GANGS):
        members += create_members(large, f"g{number}", [pod_spec(1)] * 4)
    took = look.until_bound(members, 180.0)
    print(f"{GANGS} gangs: bound after {took:.1f} s, partial for {look.law.partial:.1f} s at most")
    assert not given_twice(large.pods())
