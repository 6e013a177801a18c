"""TrainJobs with the real controllers and webhooks of Kubeflow's Trainer and of JobSet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beside.workloads import create_train_job
from tests.beside.world import (
    Played,
    clean,
    empty,
    leave_room,
    none_bound,
    one_at_a_time,
    one_that_fails_gets_its_place_back,
    running,
    world_beside,
)
from tests.cluster.support.programs.operators import JOB_SET, TRAINER
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld

RUNTIMES = "torch_distributed.yaml", "deepspeed_distributed.yaml"


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "train-jobs", JOB_SET, TRAINER) as world:
        for runtime in RUNTIMES:
            file = TRAINER.build() / "manifests" / "base" / "runtimes" / runtime
            world.control.kubectl("apply", "--server-side", f"-f={file}")
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    clean(started)


def create_torch(world: SchedulingWorld, name: str) -> None:
    create_train_job(world, name, 2, runtime="torch-distributed", roles=["node"])


def test_of_two_jobs_one_runs_whole_and_the_other_waits_whole(world: SchedulingWorld) -> None:
    leave_room(world, "n1", "n2")
    played = Played(world, one_at_a_time("one", "two"))
    for name in ("one", "two"):
        create_torch(world, name)
    played.until(lambda: 2 in (running(world, "one"), running(world, "two")), "one runs whole")
    played.settle()

    empty(world, "n3")
    empty(world, "n4")

    played = Played(world)
    for name in ("one", "two"):
        played.until_running(name, 2)


def test_a_node_that_failed_gets_its_place_back_before_one_that_waits(
    world: SchedulingWorld,
) -> None:
    """The Job controller waits for 10 s before it replaces a pod that failed."""
    leave_room(world, "n1", "n2")
    create_torch(world, "one")
    one_that_fails_gets_its_place_back(world)


def test_nodes_wait_until_there_is_room_for_the_launcher_that_comes_after_them(
    world: SchedulingWorld,
) -> None:
    """The launcher is one of the four nodes, and is created once the others are ready."""
    leave_room(world, "n1", "n2", "n3")
    played = Played(world, none_bound("one"))
    roles = ["node", "launcher"]
    create_train_job(world, "one", 4, runtime="deepspeed-distributed", roles=roles)
    played.until_waiting("one", 3)
    played.settle()

    empty(world, "n4")

    Played(world).until_running("one", 4)
