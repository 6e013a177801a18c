"""TrainJobs with the real controllers and webhooks of Kubeflow's Trainer and of JobSet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beside.workloads import create_train_job
from tests.beside.world import (
    Played,
    empty,
    leave_room,
    none_bound,
    world_beside,
)
from tests.cluster.support.programs.operators import JOB_SET, TRAINER
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld

RUNTIME = Path("manifests/base/runtimes/deepspeed_distributed.yaml")


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "train-jobs", JOB_SET, TRAINER) as world:
        world.control.kubectl("apply", "--server-side", f"-f={TRAINER.build() / RUNTIME}")
        yield world


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
