"""kube-scheduler's first call about a gang waits for the gang's plan, for a bounded time."""

import pytest

from linkwise.extender.api.extender_calls import FilterAnswer, FilterCall
from linkwise.extender.verbs.gathering import GATHERING_SECONDS
from tests.extender.cluster import Cluster
from tests.extender.owned import four_nodes


@pytest.fixture
def at() -> Cluster:
    return four_nodes()


def asked(at: Cluster, name: str) -> FilterAnswer:
    """The answer of this moment, which kube-scheduler does not get if it is passing."""
    return at.core.filter(FilterCall(at.pod(name), tuple(sorted(at.nodes))), at.now)


def test_a_call_waits_for_the_other_members_and_for_the_plan_to_be_written(at: Cluster) -> None:
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    at.settle()
    assert asked(at, "g-0").passing
    at.add_pod("g-1", 8, gang="g", gang_size="2")
    at.now += GATHERING_SECONDS / 4
    assert asked(at, "g-0").passing
    actions = at.core.decide(at.now)
    assert len(actions) == 2
    assert asked(at, "g-0").passing  # kube-scheduler does not know the nomination of g-1 yet
    for action in actions:
        at.core.done(action, at.carry_out(action), at.now)
    answer = asked(at, "g-0")
    assert (answer.node_names, answer.passing) == (("n0",), False)


def test_a_gang_that_does_not_come_is_refused_in_time_and_waits_once(at: Cluster) -> None:
    at.add_pod("g-0", 8, gang="g", gang_size="3")
    at.settle()
    assert asked(at, "g-0").passing
    at.now += GATHERING_SECONDS
    answer = asked(at, "g-0")
    assert not answer.passing
    assert set(answer.failed.values()) == {"linkwise: gang g waits for its members"}
    at.now += 60
    at.add_pod("g-1", 8, gang="g", gang_size="3")
    at.settle()
    assert not asked(at, "g-1").passing


def test_all_gangs_together_take_a_fifth_of_the_time(at: Cluster) -> None:
    for gang in ("a", "b", "c"):
        at.add_pod(f"{gang}-0", 8, gang=gang, gang_size="2")
    at.settle()
    assert asked(at, "a-0").passing
    at.now += GATHERING_SECONDS / 2
    assert asked(at, "a-0").passing
    assert not asked(at, "b-0").passing
    at.now += 2.1 * GATHERING_SECONDS
    assert asked(at, "c-0").passing
    assert not asked(at, "b-0").passing


def test_nothing_waits_for_a_gang_that_has_no_room_or_has_started(at: Cluster) -> None:
    at.add_gang("large", 5)
    at.settle()
    assert not asked(at, "large-0").passing
    for rank in range(5):
        at.delete(f"large-{rank}")
    at.add_gang("g", 2)
    at.settle()
    assert [at.schedule(name) for name in ("g-0", "g-1")] == ["n0", "n1"]
    at.add_pod("g-2", 8, gang="g", gang_size="2")
    at.settle()
    assert not asked(at, "g-2").passing


def test_a_call_waits_for_a_pod_that_the_watch_does_not_show_yet(at: Cluster) -> None:
    pod = Cluster().add_pod("g-0", 8, gang="g", gang_size="2")
    call = FilterCall(pod, tuple(sorted(at.nodes)))
    assert at.core.filter(call, at.now).passing
    assert not at.core.filter(call, at.now + GATHERING_SECONDS).passing
    assert not at.core.filter(call, at.now + 0.5).passing
    assert at.core.filter(call, at.now + 10).passing  # forgotten


def test_the_wait_for_a_pod_that_the_watch_shows_then_counts_from_the_first_call(
    at: Cluster,
) -> None:
    pod = at.add_pod("g-0", 8, gang="g", gang_size="2")  # no round has seen it
    call = FilterCall(pod, tuple(sorted(at.nodes)))
    assert at.core.filter(call, at.now).passing
    at.settle()
    at.now += 0.75 * GATHERING_SECONDS
    assert asked(at, "g-0").passing
    at.now += 0.25 * GATHERING_SECONDS
    assert not asked(at, "g-0").passing


def test_a_clock_that_is_set_back_keeps_no_call_waiting(at: Cluster) -> None:
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    at.settle()
    assert asked(at, "g-0").passing
    assert not at.core.filter(FilterCall(at.pod("g-0"), ("n1",)), at.now - 3600).passing
