"""The lives of workloads that are suspended, resized, preempted or end, the same for each kind.

At the end of each test no GPU is taken, planned or reserved (`clean`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.beside.kinds import Kind
from tests.beside.lives import HIGH, each, world_of_lives
from tests.beside.workloads import BATCH, create_job, job_template
from tests.beside.world import (
    NODES,
    Played,
    empty,
    ended,
    leave_room,
    none_bound,
    of,
    running,
    succeed,
)
from tests.cluster.support.programs.operators import selected
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_of_lives(run_directory / "lives", *selected()) as world:
        yield world


def change(world: SchedulingWorld, kind: Kind, patch: object) -> None:
    world.client.patch(f"{kind.path}/one", patch)


@each(lambda kind: kind.suspend)
def test_what_is_suspended_gives_its_gpus_to_another_and_then_waits_whole(
    world: SchedulingWorld, kind: Kind
) -> None:
    assert kind.suspend is not None
    leave_room(world, "n1", "n2")
    kind.create(world, "one", 2)
    played = Played(world)
    played.until_running("one", 2)
    create_job(world, "other")
    played.at_rest()

    change(world, kind, kind.suspend(True))
    played.until_running("other", 2)
    change(world, kind, kind.suspend(False))

    waits = Played(world, none_bound("one"))
    waits.until_waiting("one", 2)
    waits.at_rest()
    ended(world, "other")
    played.until_running("one", 2)
    played.at_rest()


@each(lambda kind: kind.grow)
def test_what_grows_keeps_its_pods_and_what_shrinks_frees_gpus(
    world: SchedulingWorld, kind: Kind
) -> None:
    assert kind.grow is not None
    leave_room(world, "n1", "n2")
    kind.create(world, "one", 2)
    played = Played(world)
    played.until_running("one", 2)

    change(world, kind, kind.grow(kind.grown))
    played.until_waiting("one", kind.grown)
    played.at_rest()
    assert running(world, "one") == 2
    for node in ("n3", "n4"):
        empty(world, node)
    played.until_running("one", kind.grown)

    change(world, kind, kind.grow(2))
    played.until(lambda: len(of(world.pods(), "one")) == 2, "it has shrunk")
    create_job(world, "other", kind.grown - 2)
    played.until_running("other", kind.grown - 2)
    assert running(world, "one") == 2
    played.at_rest()


@each(lambda kind: kind.ttl)
def test_what_has_ended_makes_room_at_once_and_is_deleted_after_its_time(
    world: SchedulingWorld, kind: Kind
) -> None:
    leave_room(world, "n1", "n2")
    kind.create(world, "one", 2)
    change(world, kind, kind.ttl)
    played = Played(world)
    played.until_running("one", 2)
    create_job(world, "other")
    played.at_rest()

    ended(world, "one")

    played.until_running("other", 2)
    played.until(lambda: "one" not in named(world, kind.path), "it is deleted")
    played.at_rest()


def named(world: SchedulingWorld, path: str) -> set[str]:
    found = world.client.get(path, dict[str, Any])["items"]
    return {item["metadata"]["name"] for item in found}


def create_important_job(world: SchedulingWorld, name: str, pods: int) -> None:
    spec = job_template(name, pods)
    spec["template"]["spec"]["priorityClassName"] = HIGH
    world.client.post(BATCH, {"metadata": {"name": name}, "spec": spec})


@each()
def test_what_is_preempted_waits_whole_and_runs_again(world: SchedulingWorld, kind: Kind) -> None:
    """Whatever its controller makes of the evictions."""
    kind.create(world, "one", 2)
    played = Played(world)
    played.until_running("one", 2)

    create_important_job(world, "other", len(NODES) - 1)
    played.until_running("other", len(NODES) - 1)
    waits = Played(world, none_bound("one"))
    waits.until_waiting("one", 2)
    waits.at_rest()

    ended(world, "other")
    played.until_running("one", 2)
    played.at_rest()


@each(lambda kind: kind.create_that_one_pod_ends)
def test_what_one_pod_ends_frees_the_gpus_of_the_others(world: SchedulingWorld, kind: Kind) -> None:
    assert kind.create_that_one_pod_ends is not None
    leave_room(world, "n1", "n2")
    kind.create_that_one_pod_ends(world, "one", 2)
    played = Played(world)
    played.until_running("one", 2)
    create_job(world, "other")
    played.at_rest()

    succeed(world, of(world.pods(), "one")[0])

    played.until_running("other", 2)
    played.at_rest()
