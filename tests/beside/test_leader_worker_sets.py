"""LeaderWorkerSets with the operator's real controller and webhooks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from linkwise.kube.objects import Pod
from tests.beside.workloads import LEADER_WORKER_SETS, create_leader_worker_set, delete
from tests.beside.world import (
    RACK,
    RACKS,
    Played,
    empty,
    leave_room,
    none_bound,
    none_on,
    of,
    one_at_a_time,
    places,
    racks,
    running,
    still_waits,
    world_beside,
)
from tests.cluster.support.programs.operators import LEADER_WORKER_SET
from tests.cluster.support.scheduling.scheduling_world import PODS, SchedulingWorld

EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
GROUP = "leaderworkerset.sigs.k8s.io/group-index"


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "leader-worker-sets", LEADER_WORKER_SET) as world:
        yield world


def test_of_two_whose_leaders_start_first_one_runs_whole_and_the_other_waits_whole(
    world: SchedulingWorld,
) -> None:
    leave_room(world, "n1", "n2")
    played = Played(world, one_at_a_time("one", "two"))
    for name in ("one", "two"):
        create_leader_worker_set(world, name, startup="LeaderReady")
    played.until(lambda: 2 in (running(world, "one"), running(world, "two")), "one runs whole")
    played.settle()

    first, second = ("one", "two") if running(world, "one") else ("two", "one")
    delete(world, LEADER_WORKER_SETS, first)

    Played(world).until_running(second, 2)


def test_of_two_groups_of_one_set_one_runs_whole_and_the_other_waits_whole(
    world: SchedulingWorld,
) -> None:
    leave_room(world, "n1", "n2")
    played = Played(world, one_group)
    create_leader_worker_set(world, "one", replicas=2, startup="LeaderReady")
    played.until_running("one", 2)
    played.settle()

    empty(world, "n3")
    empty(world, "n4")

    Played(world).until_running("one", 4)


def one_group(pods: Sequence[Pod]) -> str:
    groups = {pod.metadata.labels[GROUP] for pod in of(pods, "one") if pod.spec.node_name}
    return f"there is room for one, and groups {groups} have started" if len(groups) > 1 else ""


def test_the_leader_of_an_exclusive_group_goes_to_a_rack_with_room_for_the_group(
    world: SchedulingWorld,
) -> None:
    """The operator creates the worker once the leader is bound, for the leader's rack."""
    leave_room(world, "n2", "n3", "n4", "n5")
    played = Played(world, none_on("n2", "one"), none_on("n5", "one"))
    create_leader_worker_set(world, "one", annotations={EXCLUSIVE: RACK})

    played.until_running("one", 2)

    assert racks(world, "one") == {"r2"}


def test_two_exclusive_groups_are_on_two_racks(world: SchedulingWorld) -> None:
    played = Played(world, none_on("n5", "one"))
    create_leader_worker_set(world, "one", replicas=2, annotations={EXCLUSIVE: RACK})

    played.until_running("one", 4)

    by_group: dict[str, set[str]] = {}
    for pod in of(world.pods(), "one"):
        by_group.setdefault(pod.metadata.labels[GROUP], set()).add(RACKS[pod.spec.node_name])
    assert sorted(map(sorted, by_group.values())) == [["r1"], ["r2"]]


def test_an_exclusive_group_waits_whole_until_a_rack_has_room_for_it(
    world: SchedulingWorld,
) -> None:
    leave_room(world, "n2", "n3", "n5")
    played = Played(world, none_bound("one"))
    create_leader_worker_set(world, "one", annotations={EXCLUSIVE: RACK})
    played.until_waiting("one", 1)
    played.settle()

    empty(world, "n4")

    Played(world).until_running("one", 2)
    assert racks(world, "one") == {"r2"}


@pytest.mark.parametrize("startup", ["LeaderCreated", "LeaderReady"])
def test_a_group_that_is_recreated_keeps_its_places_before_one_that_waits(
    world: SchedulingWorld, startup: str
) -> None:
    leave_room(world, "n1", "n2")
    create_leader_worker_set(world, "one", startup=startup)
    played = Played(world)
    played.until_running("one", 2)
    before = places(world, "one")
    old = {pod.metadata.uid for pod in of(world.pods(), "one")}
    world.create("waiter")
    world.wait_without_room("waiter")
    played = Played(world, still_waits("waiter"))
    played.settle()

    world.client.delete(f"{PODS}/{of(world.pods(), 'one')[1].metadata.name}")

    played.until(
        lambda: (
            old.isdisjoint(pod.metadata.uid for pod in of(world.pods(), "one"))
            and running(world, "one") == 2
        ),
        "all are recreated and run",
    )
    assert places(world, "one") == before
