"""MPIJobs of Kubeflow's MPI operator, with and without GPUs for the launcher."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beside.workloads import MPI_JOBS, create_job, create_mpi_job
from tests.beside.world import (
    Played,
    ended,
    fail,
    leave_room,
    none_bound,
    of,
    of_two_one_runs_whole,
    world_beside,
)
from tests.cluster.support.programs.operators import MPI_OPERATOR
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld

LATE = {"launcherCreationPolicy": "WaitForWorkersReady"}


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    flags = ("--replacement-timeout=5s",)
    with world_beside(run_directory / "mpi", MPI_OPERATOR, extender_flags=flags) as world:
        yield world


def test_of_two_one_runs_whole_and_the_other_waits_whole(world: SchedulingWorld) -> None:
    of_two_one_runs_whole(world, lambda name: create_mpi_job(world, name, 2))


def test_no_worker_starts_without_room_for_the_launcher_that_comes_later(
    world: SchedulingWorld,
) -> None:
    of_two_one_runs_whole(
        world, lambda name: create_mpi_job(world, name, 1, launcher_gpus=8, **LATE)
    )


def test_the_place_of_a_worker_that_is_not_replaced_is_given_to_another_after_a_while(
    world: SchedulingWorld,
) -> None:
    """The operator leaves a failed worker as it is, and waits for the launcher's end."""
    leave_room(world, "n1", "n2")
    create_mpi_job(world, "one", 2)
    played = Played(world)
    played.until_running("one", 2)
    world.create("waiter")
    world.wait_without_room("waiter")

    failed = of(world.pods(), "one")[1]
    fail(world, failed)

    def gets_it() -> bool:
        (waiter,) = (pod for pod in world.pods() if pod.metadata.name == "waiter")
        return waiter.spec.node_name == failed.spec.node_name

    played.until(gets_it, "the waiter gets the place")


def test_what_is_suspended_gives_its_gpus_to_another_and_then_waits_whole(
    world: SchedulingWorld,
) -> None:
    leave_room(world, "n1", "n2")
    create_mpi_job(world, "one", 2)
    played = Played(world)
    played.until_running("one", 2)
    create_job(world, "other")
    played.at_rest()

    world.client.patch(f"{MPI_JOBS}/one", {"spec": {"runPolicy": {"suspend": True}}})
    played.until_running("other", 2)
    world.client.patch(f"{MPI_JOBS}/one", {"spec": {"runPolicy": {"suspend": False}}})

    waits = Played(world, none_bound("one"))
    waits.until_waiting("one", 2)
    waits.at_rest()
    ended(world, "other")
    played.until_running("one", 2)
    played.at_rest()
