"""The scheduler and the API server of every supported version, with the real extender.

The same scenarios on each. If a version differs, docs/operating/install.md says so.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pytest

from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.programs import binaries
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF, gpu_node
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    NODES,
    PATIENCE_SECONDS,
    ZONE,
    SchedulingWorld,
    started_world,
)


@dataclass(frozen=True)
class Differs:
    nomination_after_bind: bool  # True if status.nominatedNodeName stays on a bound pod
    zone_on_pod: bool  # True if the API server labels a bound pod with its node's zone


def documented(version: str) -> Differs:
    """Return the table's row for *version*, which must exist."""
    page = Path(__file__).parents[2] / "docs" / "operating" / "install.md"
    lines = iter(page.read_text().splitlines())
    head = next(line for line in lines if line.startswith("| what differs |"))
    column = cells(head).index(version)
    rows = [cells(line) for line in takewhile(lambda line: line.startswith("|"), lines)]
    (nomination,) = (row[column] for row in rows if "nominatedNodeName" in row[0])
    (zone,) = (row[column] for row in rows if ZONE in row[0])
    return Differs(nomination_after_bind=nomination == "stays", zone_on_pod=zone != "no")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.fixture(scope="module", params=[binaries.NEWEST, *binaries.OLDER])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def started(run_directory: Path, version: str) -> Iterator[SchedulingWorld]:
    directory = run_directory / f"scheduling-{version}"
    control = ControlPlane(
        directory, version=version, controllers=False, disable_admission=ADMISSION_OFF
    )
    control.start()
    with started_world(SchedulingWorld(control)) as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    started.clear()


def test_the_versions_are_what_they_say(world: SchedulingWorld, version: str) -> None:
    assert f"Server Version: {version}" in world.control.kubectl("version")


def test_a_single_pod_gets_its_gpus_with_its_node(world: SchedulingWorld) -> None:
    world.create("single", gpus=4)

    world.wait_bound(["single"])

    assert len(world.gpus_of("single")) == 4
    wait_for(lambda: len(world.taken()) == 4, "the extender's books have them")


def test_pods_side_by_side_never_share_a_gpu(world: SchedulingWorld) -> None:
    pods = [world.create(f"half-{number}", gpus=4) for number in range(8)]

    world.wait_bound(pods)

    given = [gpu for name in pods for gpu in world.gpus_of(name)]
    assert len(given) == len(set(given)) == 32


def test_a_gang_over_several_nodes_starts_whole(world: SchedulingWorld) -> None:
    gang = world.create_gang("train", 3)

    world.wait_bound(gang)

    assert len({world.node_of(name) for name in gang}) == 3
    assert all(len(world.gpus_of(name)) == 8 for name in gang)
    wait_for(
        lambda: any(names.STARTED in world.read(name).metadata.annotations for name in gang),
        "the gang is marked as started",
    )


def test_a_gated_gang_is_planned_let_go_and_bound_where_it_was_planned(
    world: SchedulingWorld,
) -> None:
    assert world.scheduler is not None
    world.scheduler.stop()
    gang = world.create_gang("gated", 3, gated=True)
    alone = world.create("alone", gpus=8, gated=True)

    wait_for(
        lambda: not any(world.read(name).spec.scheduling_gates for name in (*gang, alone)),
        "all are let go",
    )
    planned = {name: world.read(name).status.nominated_node_name for name in (*gang, alone)}
    world.scheduler.start()
    world.wait_bound([*gang, alone])

    assert sorted(planned.values()) == sorted(NODES)
    assert {name: world.node_of(name) for name in planned} == planned
    assert all(len(world.gpus_of(name)) == 8 for name in planned)


def test_a_pod_behind_a_gate_that_fits_nowhere_stays_there_and_is_told_why(
    world: SchedulingWorld,
) -> None:
    pods = world.create_gang("full", 4)
    world.wait_bound(pods)

    world.create("late", gpus=8, gated=True)
    wait_for(lambda: any("late" in text for text in world.events("late")), "an event says why")
    assert world.read("late").spec.scheduling_gates

    world.delete(pods[0])
    world.wait_bound(["late"])


def test_a_refused_pod_waits_with_the_reason_until_a_node_has_what_it_wants(
    world: SchedulingWorld,
) -> None:
    world.create("picky", gpus=8, annotations={names.GPU_MODEL: "A100"})
    world.wait_waiting("picky", "linkwise: GPU model or memory does not match")

    world.client.post("/api/v1/nodes", gpu_node("late", "dgx-a100"))
    try:
        world.wait_bound(["picky"])
        assert world.node_of("picky") == "late"
    finally:
        world.client.delete("/api/v1/nodes/late")


def test_a_pod_that_nobody_asks_for_again_is_nominated_when_room_appears(
    world: SchedulingWorld,
) -> None:
    """A stopped scheduler sends no call, like one that asked too early."""
    assert world.scheduler is not None
    world.create("picky", gpus=8, annotations={names.GPU_MODEL: "A100"})
    world.wait_waiting("picky", "linkwise: GPU model or memory does not match")
    world.scheduler.stop()

    world.client.post("/api/v1/nodes", gpu_node("late", "dgx-a100"))
    try:
        wait_for(lambda: world.read("picky").status.nominated_node_name == "late", "nominated")
        world.scheduler.start()
        world.wait_bound(["picky"])
        assert world.node_of("picky") == "late"
    finally:
        world.client.delete("/api/v1/nodes/late")


def test_a_pod_waits_for_gpus_and_gets_them_when_they_are_freed(world: SchedulingWorld) -> None:
    pods = [world.create(f"first-{number}", gpus=8) for number in range(4)]
    world.wait_bound(pods)
    world.create("second", gpus=8)
    world.wait_waiting("second", "4 Insufficient nvidia.com/gpu")

    freed = world.node_of(pods[2])
    world.delete(pods[2])
    world.wait_bound(["second"])

    assert world.node_of("second") == freed


def test_a_gang_that_does_not_fit_takes_nothing_and_says_why(world: SchedulingWorld) -> None:
    too_large = world.create_gang("huge", 5)
    # A member's condition may keep for good what was true when it was tried: that members are
    # missing, if the extender had not seen all of them. The Event is up to date.
    no_room = f"GangWaiting: gang {NAMESPACE}/huge: no room for the whole gang"
    wait_for(lambda: any(no_room in world.events(name) for name in too_large), no_room)
    for name in too_large:
        world.wait_waiting(name, "linkwise: gang huge")

    fits = world.create_gang("fits", 4)
    world.wait_bound(fits)

    assert not any(world.node_of(name) for name in too_large)
    assert not any(names.PLAN in world.read(name).metadata.annotations for name in too_large)


def test_while_the_extender_is_down_pods_wait_and_then_go_on(world: SchedulingWorld) -> None:
    world.extender.process.kill()
    pods = [world.create("single", gpus=2), *world.create_gang("train", 2)]
    wait_for(lambda: world.reason("single"), "kube-scheduler has tried", PATIENCE_SECONDS)
    assert not any(world.node_of(name) for name in pods)

    world.extender.start()
    world.wait_bound(pods)

    assert len(world.gpus_of("single")) == 2


def nominated_gang(world: SchedulingWorld, size: int) -> list[str]:
    """Planned before kube-scheduler tries it, for which it has to be started again."""
    assert world.scheduler is not None
    world.scheduler.stop()
    gang = world.create_gang("train", size)
    wait_for(
        lambda: all(world.read(name).status.nominated_node_name for name in gang), "all planned"
    )
    return gang


def test_an_extender_killed_after_planning_finds_its_plans_again(world: SchedulingWorld) -> None:
    gang = nominated_gang(world, 3)
    assert world.scheduler is not None
    planned = {name: world.read(name).metadata.annotations[names.PLAN] for name in gang}

    world.extender.process.kill()
    world.extender.start()
    world.scheduler.start()
    world.wait_bound(gang)

    assert {name: world.read(name).metadata.annotations[names.PLAN] for name in gang} == planned


def test_a_more_important_pod_takes_the_place_of_a_less_important_one(
    world: SchedulingWorld,
) -> None:
    humble = [world.create(f"humble-{number}", gpus=8) for number in range(4)]
    world.wait_bound(humble)

    world.create("urgent", gpus=8, priority=1000)
    wait_for(
        lambda: any(pod.metadata.deletion_timestamp for pod in world.pods()),
        "kube-scheduler has chosen a victim",
        PATIENCE_SECONDS,
    )
    assert not world.node_of("urgent")  # the victim holds its GPUs until it is gone
    world.bury_terminating()
    world.wait_bound(["urgent"])

    assert len(world.gpus_of("urgent")) == 8
    assert len(world.pods()) == 4


def test_what_differs_between_versions_is_as_documented(
    world: SchedulingWorld, version: str
) -> None:
    gang = nominated_gang(world, 2)
    assert world.scheduler is not None
    world.scheduler.start()
    world.wait_bound(gang)

    pod = world.read(gang[0])
    assert documented(version) == Differs(
        nomination_after_bind=bool(pod.status.nominated_node_name),
        zone_on_pod=ZONE in pod.metadata.labels,
    )
