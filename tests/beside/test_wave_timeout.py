"""A gang whose next wave never comes keeps its places for `--wave-timeout`, once it could come."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beside.workloads import create_in_order
from tests.beside.world import Played, leave_room, still_waits, world_beside
from tests.cluster.support.programs.operators import JOB_SET
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld

WAVE_TIMEOUT_SECONDS = 5.0


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    flags = (f"--wave-timeout={WAVE_TIMEOUT_SECONDS:g}s",)
    with world_beside(run_directory / "wave-timeout", JOB_SET, extender_flags=flags) as world:
        yield world


def test_places_of_a_wave_that_never_comes_are_given_to_others_in_the_end(
    world: SchedulingWorld,
) -> None:
    """They are kept while the first pod is not ready, however long, as its operator waits too. The
    gang starts whole when there is room again."""
    leave_room(world, "n1", "n2")
    played = Played(world, unready=["one"])
    create_in_order(world, "one")
    played.until_running("one", 1)
    waiter = world.create("waiter")
    Played(world, still_waits(waiter), unready=["one"]).settle(2 * WAVE_TIMEOUT_SECONDS)

    operator = world.control.parts[JOB_SET.name]
    operator.pause()
    try:
        played.unready.clear()
        played.until(lambda: world.node_of(waiter), "the waiter gets the place")
    finally:
        operator.resume()
    played.settle()
    world.delete(waiter)

    played.until_running("one", 2)
