"""JobSets with the operator's real controller and webhooks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beside.world import Played, clean, leave_room, one_at_a_time, running, world_beside
from tests.beside.workloads import JOB_SETS, create_in_order, delete
from tests.cluster.support.programs.operators import JOB_SET
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "job-sets", JOB_SET) as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    clean(started)


def test_of_two_sets_in_order_one_runs_whole_and_the_other_waits_whole(
    world: SchedulingWorld,
) -> None:
    leave_room(world, "n1", "n2")
    played = Played(world, one_at_a_time("one", "two"))
    create_in_order(world, "one")
    create_in_order(world, "two")
    played.until(lambda: 2 in (running(world, "one"), running(world, "two")), "one runs whole")
    played.settle()

    first, second = ("one", "two") if running(world, "one") else ("two", "one")
    delete(world, JOB_SETS, first)

    Played(world).until_running(second, 2)
