"""Gangs that start with their minimum, lose members and wait, before the real kube-scheduler.

Only Linkwise's nomination wakes a pod here, or kube-scheduler's own flush after five minutes, so
every wait below is far shorter than that.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from linkwise.topology import names
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.claims_world import both_ways, by_plugin, world_with
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld

SOON_SECONDS = 30.0  # also on a busy machine; kube-scheduler's flush would come after 300


@pytest.fixture(scope="module")
def started(run_directory: Path, request: pytest.FixtureRequest) -> Iterator[SchedulingWorld]:
    with world_with(request.param, run_directory / "gangs-grow") as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    started.clear()


def create(
    world: SchedulingWorld,
    rank: int,
    *,
    size: int,
    gpus: int,
    least: int | None = None,
    timeout: str = "10m",
    name: str = "",
    scheduler: str = "default-scheduler",
) -> str:
    """Create a member of the gang `train`."""
    words = {names.GANG: "train", names.GANG_SIZE: str(size), names.RANK: str(rank)}
    if least is not None:
        words[names.GANG_MIN] = str(least)
    words[names.GANG_TIMEOUT] = timeout
    return world.create(name or f"train-{rank}", gpus, annotations=words, scheduler=scheduler)


def fill(world: SchedulingWorld, *pods: str) -> None:
    for pod in pods:
        world.create(pod, 8)
    world.wait_bound(pods)


def wait_running(world: SchedulingWorld, members: Sequence[str]) -> None:
    """Wait for the extender too, which may hear of the last Binding later than the test."""
    world.wait_bound(members)
    wait_for(lambda: '"phase":"running"' in world.asked("/gangs"), "the extender has seen it start")


@both_ways
def test_a_gang_starts_with_its_minimum_and_grows_as_room_comes(world: SchedulingWorld) -> None:
    fill(world, "busy-0", "busy-1")
    members = [create(world, rank, size=4, gpus=8, least=2) for rank in range(4)]

    world.wait_bound(members[:2])
    wait_for(
        lambda: any(names.STARTED in world.read(m).metadata.annotations for m in members[:2]),
        "two of four are enough to start",
    )
    world.wait_without_room(members[3])
    assert not world.node_of(members[2])

    world.delete("busy-0")
    wait_for(lambda: world.node_of(members[2]), "the third has the room", SOON_SECONDS)
    assert not world.node_of(members[3])
    world.delete("busy-1")
    wait_for(lambda: world.node_of(members[3]), "and then the fourth", SOON_SECONDS)


@both_ways
def test_members_that_come_later_go_next_to_those_that_run(world: SchedulingWorld) -> None:
    first = [create(world, rank, size=4, gpus=2, least=2) for rank in range(2)]
    world.wait_bound(first)
    node = world.node_of(first[0])

    late = [create(world, rank, size=4, gpus=2, least=2) for rank in (3, 2)]

    wait_for(lambda: all(world.node_of(member) for member in late), "all bound", SOON_SECONDS)
    assert {world.node_of(member) for member in (*first, *late)} == {node}


@both_ways
def test_a_member_made_again_has_the_gpus_of_the_one_that_died(world: SchedulingWorld) -> None:
    members = [create(world, rank, size=3, gpus=4) for rank in range(3)]
    wait_running(world, members)
    before = {member: (world.node_of(member), world.gpus_of(member)) for member in members}

    for rank in (2, 0):
        world.delete(members[rank])
    again = {rank: create(world, rank, size=3, gpus=4, name=f"again-{rank}") for rank in (0, 2)}

    wait_for(lambda: all(world.node_of(name) for name in again.values()), "bound", SOON_SECONDS)
    for rank, name in again.items():
        assert (world.node_of(name), world.gpus_of(name)) == before[members[rank]]


@both_ways
def test_a_gang_without_room_for_its_next_member_is_reported_and_goes_on(
    world: SchedulingWorld,
) -> None:
    members = [create(world, rank, size=4, gpus=8) for rank in range(4)]
    wait_running(world, members)
    node = world.node_of(members[3])
    world.delete(members[3])
    world.place("thief", node, 8)

    create(world, 3, size=4, gpus=8, name="again")

    wait_for(
        lambda: any(
            text.startswith(
                "GangCannotBeRepaired: gang ml/train: there is no room for the missing members"
            )
            for text in world.events(members[0])
        ),
        "an Event says that it cannot be repaired",
    )
    assert all(world.node_of(member) for member in members[:3])
    world.delete("thief")
    wait_for(lambda: world.node_of("again") == node, "it has the room", SOON_SECONDS)


@by_plugin
def test_what_a_plan_kept_is_room_again_the_moment_it_is_taken_back(world: SchedulingWorld) -> None:
    """No event of kube-scheduler's own says so: no pod and no node has changed."""
    members = [
        create(world, rank, size=4, gpus=8, timeout="5s", scheduler="none") for rank in range(4)
    ]  # three plans, during which the scheduler tries the single pod
    wait_for(lambda: all(world.nominated(member) for member in members), "all are planned")
    world.create("single", 8)
    world.wait_waiting("single", "linkwise:")

    wait_for(
        lambda: not any(world.nominated(member) for member in members),
        "it is given up after three plans without a binding",
    )
    began = time.monotonic()
    wait_for(lambda: world.node_of("single"), "the single pod has the room", SOON_SECONDS)
    print(f"bound {time.monotonic() - began:.1f} s after the plans were taken back")
