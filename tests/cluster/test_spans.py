"""Domains above the node with the real kube-scheduler, which tries members one by one and knows no
cliques. Only a plan for all of them keeps them within one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from linkwise.topology import names
from linkwise.topology.annotations.plan import read_plan
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.claims_world import both_ways, world_with
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    PATIENCE_SECONDS,
    ZONE,
    SchedulingWorld,
)

CLIQUE = "nvidia.com/gpu.clique"
# Clique B spans two zones, and two nodes of zone west are in another clique.
PLACES = {
    "a1": ("A", "east"),
    "a2": ("A", "east"),
    "b1": ("B", "east"),
    "b2": ("B", "east"),
    "b3": ("B", "west"),
    "c1": ("C", "west"),
    "c2": ("C", "west"),
}


pytestmark = both_ways


@pytest.fixture(scope="module")
def started(run_directory: Path, request: pytest.FixtureRequest) -> Iterator[SchedulingWorld]:
    labels = {name: {CLIQUE: clique, ZONE: zone} for name, (clique, zone) in PLACES.items()}
    directory = run_directory / "spans"
    with world_with(request.param, directory, sorted(PLACES), labels=labels) as world:
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    started.clear()


def create_gang(
    world: SchedulingWorld, name: str, size: int, gpus: int = 8, **said: str
) -> list[str]:
    """Create a gang with `require_span` and `prefer_span` as pod annotations."""
    annotations = {
        names.GANG: name,
        names.GANG_SIZE: str(size),
        **{names.PREFIX + key.replace("_", "-"): value for key, value in said.items()},
    }
    return [world.create(f"{name}-{rank}", gpus, annotations=annotations) for rank in range(size)]


def remove(world: SchedulingWorld, gang: list[str]) -> None:
    for name in gang:
        world.delete(name)


def nodes_of(world: SchedulingWorld, gang: list[str]) -> set[str]:
    world.wait_bound(gang)
    return {world.node_of(name) for name in gang}


def wait_told(world: SchedulingWorld, member: str, why: str) -> None:
    wait_for(
        lambda: f"GangWaiting: {why}" in world.events(member),
        f"it is told: {why}",
        PATIENCE_SECONDS,
    )


def span_of(world: SchedulingWorld, member: str) -> str:
    """Return the span in the member's plan."""
    return read_plan(world.read(member).metadata.annotations[names.PLAN]).span


def test_a_gang_goes_to_the_one_clique_that_holds_it_and_its_plans_name_it(
    world: SchedulingWorld,
) -> None:
    gang = create_gang(world, "train", 3, require_span="clique")
    assert nodes_of(world, gang) == {"b1", "b2", "b3"}
    assert {span_of(world, name) for name in gang} == {f"{CLIQUE}=B"}


def test_a_gang_that_fits_no_clique_waits_is_told_the_nearest_and_goes_when_one_has_room(
    world: SchedulingWorld,
) -> None:
    """The other six nodes would hold it twice over, and only the extender wakes it."""
    world.place("taken", "b2", 8)
    gang = create_gang(world, "train", 3, require_span="clique")
    no_room = f"gang {NAMESPACE}/train: no room for the whole gang within one {CLIQUE}"
    wait_told(world, gang[0], no_room)
    why = world.extender.explain(NAMESPACE, gang[0])
    assert f"nearest   {CLIQUE} B: lacks room for 1 of 3 pods" in why
    assert f"GPUs with 8 GPUs: {NAMESPACE}/taken" in why
    assert not any(map(world.node_of, gang))
    world.delete("taken")
    assert nodes_of(world, gang) == {"b1", "b2", "b3"}


def test_two_levels_in_one_request_must_both_be_met(world: SchedulingWorld) -> None:
    """Three nodes are in a clique, and three in a zone, but no three in both."""
    both = create_gang(world, "both", 3, require_span=f"clique,{ZONE}")
    within = f"within one {CLIQUE} and one {ZONE}"
    wait_told(world, both[0], f"gang {NAMESPACE}/both: no room for the whole gang {within}")
    two = create_gang(world, "two", 2, require_span=f"clique,{ZONE}")
    assert len({PLACES[node] for node in nodes_of(world, two)}) == 1
    assert not any(map(world.node_of, both))


def test_what_is_preferred_is_climbed_level_by_level_and_goes_before_fewest_nodes(
    world: SchedulingWorld,
) -> None:
    """a1 and c1 are free, and half of b1, b2 and b3: the fewest nodes would be a1 and c1."""
    for node, gpus in {"a2": 8, "b1": 4, "b2": 4, "b3": 4, "c2": 8}.items():
        world.place(f"on-{node}", node, gpus)
    wish = f"clique,{ZONE}"
    three = create_gang(world, "three", 3, gpus=4, prefer_span=wish)
    assert nodes_of(world, three) == {"b1", "b2", "b3"}
    assert span_of(world, three[0]) == f"{CLIQUE}=B"
    remove(world, three)
    four = create_gang(world, "four", 4, gpus=4, prefer_span=wish)
    assert nodes_of(world, four) == {"a1", "b1", "b2"}
    assert span_of(world, four[0]) == f"{ZONE}=east"
    remove(world, four)
    # No zone holds five, and it starts nevertheless.
    five = create_gang(world, "five", 5, gpus=4, prefer_span=wish)
    assert nodes_of(world, five) >= {"a1", "c1"}
    assert span_of(world, five[0]) == ""


def test_within_a_zone_and_in_one_clique_if_that_can_be(world: SchedulingWorld) -> None:
    """Clique B holds three, but not in one zone; the requirement takes precedence."""
    gang = create_gang(world, "train", 3, require_span=ZONE, prefer_span="clique")
    assert len({PLACES[node][1] for node in nodes_of(world, gang)}) == 1
