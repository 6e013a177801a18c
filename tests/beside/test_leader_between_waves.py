"""The leading extender dies between two waves of a gang."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.beside.workloads import create_in_order
from tests.beside.world import NODES, Played, clean, control_with, leave_room, still_waits
from tests.cluster.support.programs.operators import JOB_SET
from tests.cluster.support.scheduling.two_extenders import SwitchWorld, started_pair


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SwitchWorld]:
    control = control_with(run_directory / "leader-between-waves", JOB_SET)
    with started_pair(SwitchWorld(control), NODES) as world:
        yield world


@pytest.fixture
def world(started: SwitchWorld) -> Iterator[SwitchWorld]:
    yield started
    clean(started)
    started.pair.renew()


def test_the_next_leader_keeps_the_places_of_waves_to_come(world: SwitchWorld) -> None:
    leave_room(world, "n1", "n2")
    played = Played(world, unready=["one"])
    create_in_order(world, "one")
    played.until_running("one", 1)
    waiter = world.create("waiter")

    dead = world.pair.leader
    dead.kill()

    waits = Played(world, still_waits(waiter), unready=["one"])
    # A Lease lasts for 15 s.
    waits.until(lambda: world.pair.other(dead).status("/readyz") == 200, "the other leads")
    waits.settle()
    waits.unready.clear()
    waits.until_running("one", 2)
