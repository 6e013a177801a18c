"""PyTorchJobs with the real controller and webhooks of Kubeflow's training operator."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beside.workloads import create_pytorch_job
from tests.beside.world import (
    Played,
    clean,
    empty,
    leave_room,
    one_at_a_time,
    one_that_fails_gets_its_place_back,
    running,
    world_beside,
)
from tests.cluster.support.programs.operators import TRAINING_OPERATOR
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "pytorch-jobs", TRAINING_OPERATOR) as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    clean(started)


def test_of_two_jobs_one_runs_whole_and_the_other_waits_whole(world: SchedulingWorld) -> None:
    leave_room(world, "n1", "n2")
    played = Played(world, one_at_a_time("one", "two"))
    for name in ("one", "two"):
        create_pytorch_job(world, name)
    played.until(lambda: 2 in (running(world, "one"), running(world, "two")), "one runs whole")
    played.settle()

    empty(world, "n3")
    empty(world, "n4")

    played = Played(world)
    for name in ("one", "two"):
        played.until_running(name, 2)


@pytest.mark.parametrize("failing", [0, 1], ids=["master", "worker"])
def test_a_pod_that_failed_gets_its_place_back_before_one_that_waits(
    world: SchedulingWorld, failing: int
) -> None:
    """The operator replaces it at once."""
    leave_room(world, "n1", "n2")
    create_pytorch_job(world, "one")
    one_that_fails_gets_its_place_back(world, failing)
