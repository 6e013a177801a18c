"""When the planner looks at a gang again: at once, or a moment later if it has just looked at it
and the gang is large."""

import pytest

from linkwise.extender.cycle.changes import LARGE_GANG, SECONDS_A_MEMBER
from tests.extender.cluster import Cluster

MOMENT = LARGE_GANG * SECONDS_A_MEMBER


def idle(gpus: int) -> Cluster:
    at = Cluster()
    for number in range(gpus // 8):
        at.add_node(f"n{number}")
    return at


@pytest.mark.parametrize("size", [LARGE_GANG - 1, LARGE_GANG])
def test_a_gang_is_planned_as_soon_as_its_last_member_comes(size: int) -> None:
    at = idle(LARGE_GANG)
    at.add_gang("g", size, 1)
    at.settle()
    assert at.phase("g") == "planned"


def test_changes_of_a_large_gang_count_a_moment_after_the_last_look() -> None:
    at = idle(LARGE_GANG)
    members = at.add_gang("g", LARGE_GANG, 1)
    at.settle()
    for member in members:
        assert at.schedule(member)
    at.settle()
    assert at.phase("g") == "planned"
    assert at.core.next_due() == pytest.approx(at.now + MOMENT)
    at.pass_time(MOMENT)
    assert at.phase("g") == "running"
    assert at.core.next_due() is None


def test_changes_of_a_smaller_gang_count_at_once() -> None:
    at = idle(LARGE_GANG)
    members = at.add_gang("g", LARGE_GANG - 1, 1)
    at.settle()
    for member in members:
        assert at.schedule(member)
    at.settle()
    assert at.phase("g") == "running"


def waiting() -> Cluster:
    """A large gang that needs the whole cluster waits for another pod, with a look just now."""
    at = idle(LARGE_GANG)
    at.add_pod("before", 8)
    at.schedule("before")
    at.add_gang("large", LARGE_GANG, 1)
    at.settle()
    return at


def test_a_large_gang_that_waits_is_looked_at_at_once_so_that_none_behind_it_takes_its_room() -> (
    None
):
    at = waiting()
    at.add_gang("small", 2, 4)
    at.annotate("large-0", expected_duration="1h")
    at.delete("before")
    at.settle()
    assert (at.phase("large"), at.phase("small")) == ("planned", "forming")


def test_a_large_gang_that_waits_is_looked_at_before_it_is_planned() -> None:
    at = waiting()
    at.annotate("large-0", gang_min="1")  # the others say that all are needed
    at.delete("before")
    at.settle()
    assert all(at.plan(pod.metadata.name) is None for pod in at.pods.values())


def test_a_large_gang_that_is_gone_before_the_next_look_leaves_nothing_to_do() -> None:
    at = idle(LARGE_GANG)
    members = at.add_gang("g", LARGE_GANG, 1)
    at.settle()
    for member in members:
        at.delete(member)
    at.pass_time(MOMENT)
    assert at.phase("g") == ""
    assert at.core.next_due() is None
    assert sum(at.free(node) for node in at.nodes) == LARGE_GANG


def test_only_the_last_binding_of_a_large_gang_brings_the_mark() -> None:
    at = idle(LARGE_GANG)
    members = at.add_gang("g", LARGE_GANG, 1)
    at.settle()
    for member in members:
        assert at.schedule(member)
    marked = [
        pod.metadata.name
        for pod in at.pods.values()
        if "linkwise.dev/gang-started" in pod.metadata.annotations
    ]
    assert marked == [members[-1]]
