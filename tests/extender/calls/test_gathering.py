"""kube-scheduler's first call about a gang waits for the gang's plan, for a bounded time."""

import pytest

from linkwise.extender.calls.filter import GATHERING_SECONDS
from linkwise.extender.next.gangs.members import UNWRITTEN_SECONDS
from linkwise.extender.place.nodes import scheduler_feedback
from linkwise.extender.state.extender_calls import FilterAnswer, FilterCall, Outcome
from linkwise.kube.objects import Pod
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.owned import four_nodes


@pytest.fixture
def at() -> Cluster:
    return four_nodes()


@pytest.fixture
def sampled(at: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """kube-scheduler looks at a sample of as many nodes."""
    monkeypatch.setattr(scheduler_feedback, "LEAST_SAMPLE", len(at.nodes))
    return at


def asked(at: Cluster, name: str) -> FilterAnswer:
    """The answer of this moment, which kube-scheduler does not get if it is passing."""
    return at.core.filter(FilterCall(at.pod(name), tuple(sorted(at.nodes))), at.now)


def test_a_call_waits_for_the_other_members_and_the_plan_only_where_it_names_all_nodes(
    at: Cluster,
) -> None:
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    at.settle()
    assert asked(at, "g-0").passing
    at.add_pod("g-1", 8, gang="g", gang_size="2")
    assert asked(at, "g-0").passing
    assert at.core.decide(at.now) == ()  # nothing is to be written
    answer = asked(at, "g-0")
    assert (answer.node_names, answer.passing) == (("n0",), False)


def test_a_call_that_names_a_sample_waits_for_the_plan_to_be_written(sampled: Cluster) -> None:
    at = sampled
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


@pytest.mark.parametrize("shown", [True, False])
def test_plans_count_once_the_watch_shows_them_or_the_api_server_answered(
    sampled: Cluster, shown: bool
) -> None:
    at = sampled
    at.add_gang("g", 2)
    assert asked(at, "g-0").passing
    for action in at.core.decide(at.now):
        if shown:
            at.carry_out(action)
        else:
            at.core.done(action, Outcome.DONE, at.now)
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


def test_all_gangs_together_take_a_fifth_of_the_time_but_for_a_few_at_once(at: Cluster) -> None:
    gangs = [f"g{number}" for number in range(40)]
    for gang in gangs:
        at.add_pod(f"{gang}-0", 8, gang=gang, gang_size="2")
    at.settle()

    def waited(gang: str) -> float:
        """For how long kube-scheduler waits, which asks about the next gang then."""
        began = at.now
        while asked(at, f"{gang}-0").passing:
            at.now += GATHERING_SECONDS / 4
        return at.now - began

    few = [waited(gang) for gang in gangs]
    at_once = few.index(0.0)
    assert few[:at_once] == [pytest.approx(GATHERING_SECONDS)] * at_once
    assert 10 <= at_once < 16
    assert not any(few[at_once:])
    at.now -= 3600  # the clock is set back: what is owed is not owed for an hour
    at.now += 1.5
    began, all_waits = at.now, 0.0
    for number in range(40):
        at.add_pod(f"h{number}-0", 8, gang=f"h{number}", gang_size="2")
        at.settle()
        at.now += 0.03
        all_waits += waited(f"h{number}")
    assert 0.5 < all_waits / ((at.now - began) / 5) <= 1


def test_a_pod_that_names_another_gang_at_each_look_has_its_call_wait_no_longer(
    at: Cluster,
) -> None:
    at.add_pod("g", 8, gang="g0", gang_size="2")
    call, began = FilterCall(at.pod("g"), tuple(at.nodes)), at.now
    for number in range(1, 1000):
        if not at.core.filter(call, at.now).passing:
            break
        at.now += GATHERING_SECONDS / 4
        at.annotate("g", gang=f"g{number}")
    assert at.now - began < 0.3


def test_a_call_that_was_given_up_costs_the_longest_wait(at: Cluster) -> None:
    for name in ("g", "h"):
        at.add_pod(f"{name}-0", 8, gang=name, gang_size="2")
    at.settle()
    assert asked(at, "g-0").passing
    at.now += 60
    assert asked(at, "h-0").passing


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


# The nodes that the call names.


def ask_about(at: Cluster, name: str, *nodes: str) -> FilterAnswer:
    return at.core.filter(FilterCall(at.pod(name), nodes), at.now)


def test_of_equal_nodes_the_plan_takes_those_that_the_waiting_call_names(at: Cluster) -> None:
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    assert ask_about(at, "g-0", "n2", "n3").passing
    at.add_pod("g-1", 8, gang="g", gang_size="2")
    at.settle()
    assert ask_about(at, "g-0", "n2", "n3").node_names == ("n2",)
    at.pass_time(UNWRITTEN_SECONDS)
    assert at.places("g-0", "g-1") == ["n2", "n3"]


def test_no_worse_nodes_are_taken_for_that(at: Cluster) -> None:
    at.add_pod("other", 4, node="n0")
    at.add_pod("g-0", 2, gang="g", gang_size="2")
    assert ask_about(at, "g-0", "n1", "n2", "n3").passing
    at.add_pod("g-1", 2, gang="g", gang_size="2")
    at.settle()
    assert at.places("g-0", "g-1") == ["n0", "n0"]  # the fullest


def test_a_call_without_the_planned_node_is_answered_at_once(at: Cluster) -> None:
    for node in ("n2", "n3"):
        at.add_pod(f"on-{node}", 1, node=node)
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    assert ask_about(at, "g-0", "n3").passing
    at.add_pod("g-1", 8, gang="g", gang_size="2")
    at.core.decide(at.now)  # nothing is written yet
    answer = ask_about(at, "g-0", "n3")
    assert (answer.node_names, answer.passing) == ((), False)


def test_a_nomination_that_such_a_call_cleared_is_repeated_at_once_a_few_times(
    at: Cluster,
) -> None:
    at.add_gang("g", 2)
    at.settle()
    (planned,) = at.places("g-0")
    others = sorted({*at.nodes} - {planned})
    member = at.pod("g-0")
    unaware = change(member, status=change(member.status, nominated_node_name=""))
    for _ in range(3):
        assert not at.core.filter(FilterCall(unaware, tuple(others)), at.now).node_names
        at.nominate("g-0", "")
        assert at.core.any_urgent()
        at.settle()
        assert at.pod("g-0").status.nominated_node_name == planned
    assert not at.core.filter(FilterCall(unaware, tuple(others)), at.now).node_names
    at.nominate("g-0", "")
    at.settle()
    assert not at.pod("g-0").status.nominated_node_name


def test_a_plan_is_better_made_after_the_first_call(at: Cluster) -> None:
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    assert not at.core.expects_call()  # there is nothing to plan yet
    at.add_pod("g-1", 8, gang="g", gang_size="2")
    assert at.core.expects_call()
    assert ask_about(at, "g-0", "n2").passing
    assert not at.core.expects_call()  # it has come
    at.settle()
    at.add_gang("gated", 2, gates=(names.GATE,))
    assert not at.core.expects_call()  # kube-scheduler does not try them

    def by_another(pod: Pod) -> Pod:
        return change(pod, spec=change(pod.spec, scheduler_name="another"))

    for name in ("h-0", "h-1"):
        at.add_pod(name, 8, gang="h", gang_size="2", alter=by_another)
    assert not at.core.expects_call()  # it has not called yet
