"""Kueue evicts a job whose pods are not ready in time (`waitForPodsReady`), and admits it again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.beside.queues import ALL, create_in_queue, create_queues
from tests.beside.workloads import create_job
from tests.beside.world import (
    Played,
    empty,
    leave_room,
    none_bound,
    of,
    running,
    world_beside,
)
from tests.cluster.support.programs.operators import KUEUE
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld

READY_SECONDS = 15
IMPATIENT = replace(
    KUEUE,
    settings={
        **KUEUE.settings,
        "waitForPodsReady": {
            "timeout": f"{READY_SECONDS}s",
            "blockAdmission": False,
            "requeuingStrategy": {"backoffBaseSeconds": 1, "backoffMaxSeconds": 1},
        },
    },
)


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "kueue-evictions", IMPATIENT) as world:
        create_queues(world)
        yield world


def uids(world: SchedulingWorld, app: str) -> set[str]:
    return {pod.metadata.uid for pod in of(world.pods(), app)}


def test_a_job_that_was_evicted_is_before_one_that_came_meanwhile(world: SchedulingWorld) -> None:
    """It waits for GPUs, so its pods are not ready."""
    leave_room(world)
    create_in_queue(world, "old", ALL)
    played = Played(world, none_bound("young"))
    played.until_waiting("old", 2)
    evicted = uids(world, "old")
    create_job(world, "young")
    played.until_waiting("young", 2)
    played.until(lambda: not uids(world, "old"), "the job is evicted", 4 * READY_SECONDS)
    played.until_waiting("old", 2)
    assert evicted.isdisjoint(uids(world, "old"))

    empty(world, "n1")
    empty(world, "n2")

    played.until_running("old", 2)
    first = uids(world, "old")
    played.settle(READY_SECONDS + 5)
    assert uids(world, "old") == first, "it is ready, and not evicted again"
    played.at_rest()
    empty(world, "n3")
    empty(world, "n4")
    Played(world).until_running("young", 2)
    assert running(world, "old") == 2
