"""What kube-scheduler's own calls teach: a nominated node that it leaves out was refused."""

import pytest

from linkwise.extender.place.nodes.scheduler_feedback import (
    APART_SECONDS,
    FIRST_PAUSE_SECONDS,
    FRESH_SECONDS,
    LEAST_SAMPLE,
    LONGEST_PAUSE_SECONDS,
    SchedulerFeedback,
)
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.extender_calls import BindCall, BindOrder, BindRefusal, Outcome
from linkwise.extender.state.timers import Agenda
from linkwise.kube.objects import Taint
from tests.extender.cluster import GPU, Cluster


def cluster(nodes: int = 3) -> Cluster:
    made = Cluster()
    for number in range(1, nodes + 1):
        made.add_node(f"n{number}", "hgx-h100")
    return made


def planned_on(at: Cluster, member: str) -> str:
    at.settle()
    plan = at.plan(member)
    return "" if plan is None else plan.node


def refuse(at: Cluster, member: str, *others: str) -> str:
    """The nominated node fails a plugin, and so do *others*; the rest pass."""
    node = planned_on(at, member)
    at.filter(member, [name for name in sorted(at.nodes) if name not in (node, *others)])
    return node


def refuse_three_times(at: Cluster, member: str) -> None:
    refused: list[str] = []
    for _ in range(3):
        refused.append(refuse(at, member, *refused))
    at.settle()


def test_a_refused_node_is_left_out_of_the_next_plan() -> None:
    at = cluster()
    at.add_gang("g", 1, 8)
    assert planned_on(at, "g-0") == "n1"
    refuse(at, "g-0")
    assert planned_on(at, "g-0") == "n2"
    plan = at.plan("g-0")
    assert plan is not None
    assert (plan.epoch, plan.refusals) == (2, 1)
    assert at.core.counts(at.now).refusals == 1


def test_a_call_that_merely_lacks_the_node_proves_nothing() -> None:
    at = cluster()
    at.add_gang("g", 1, 8)
    (action,) = at.core.decide(at.now)  # planned, not nominated yet
    answer = at.filter("g-0", ["n2", "n3"])
    assert answer.node_names == ()
    at.core.done(action, at.carry_out(action), at.now)
    assert planned_on(at, "g-0") == "n1"
    assert at.core.counts(at.now).refusals == 0


def test_a_refusal_makes_the_whole_gang_again_but_for_who_is_bound() -> None:
    at = cluster(nodes=4)
    first, second, third = at.add_gang("g", 3, 8)
    assert [planned_on(at, each) for each in (first, second, third)] == ["n1", "n2", "n3"]
    at.schedule(first)
    refuse(at, second)
    assert planned_on(at, first) == "n1"
    assert sorted(planned_on(at, each) for each in (second, third)) == ["n3", "n4"]
    assert at.phase("g") == "binding"


def test_the_nodes_that_passed_are_tried_first() -> None:
    at = cluster(nodes=4)
    at.add_gang("g", 1, 8)
    assert planned_on(at, "g-0") == "n1"
    at.filter("g-0", ["n3"])  # n1 was refused, and n2 and n4 did not pass either
    assert planned_on(at, "g-0") == "n3"


def test_what_passed_long_ago_does_not_bind() -> None:
    at = cluster(nodes=4)
    at.add_gang("g", 1, 8)
    for _ in range(2):  # so that the third refusal lasts for longer than what passed
        refuse(at, "g-0", "n2", "n4")
        assert planned_on(at, "g-0") == "n3"
        at.delete("g-0")
        at.pass_time(2 * FIRST_PAUSE_SECONDS)
        at.add_gang("g", 1, 8)
    refuse(at, "g-0", "n2", "n3", "n4")
    at.filter("g-0", ["n3"])
    at.now += FRESH_SECONDS + 1
    assert planned_on(at, "g-0") == "n2"


def test_what_passed_long_ago_is_not_kept() -> None:
    learned, reader = SchedulerFeedback(Cache(), Agenda()), Ingest((GPU,), Agenda())
    at = Cluster()
    for number in range(3):
        at.now += FRESH_SECONDS * 0.6
        record = reader.pod(at.add_pod(f"p-{number}", 1, priority=number))
        assert record.template is not None
        learned.passed(record.template, ("n1",), at.now)
    assert learned.templates == 2


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_refused_node_is_tried_again_once_it_or_its_pods_change(gpus: int) -> None:
    at = cluster(nodes=2)
    at.add_pod("on-1", gpus, node="n1")
    at.add_gang("g", 1, 7)
    assert planned_on(at, "g-0") == "n1"
    refuse(at, "g-0")
    assert planned_on(at, "g-0") == "n2"
    at.set_ready("n2", ready=False)
    assert planned_on(at, "g-0") == ""  # n1 is refused, n2 is gone
    at.delete("on-1")
    assert planned_on(at, "g-0") == "n1"


def test_a_refused_node_is_tried_again_once_kube_scheduler_counts_a_pod_there_no_more() -> None:
    """It counts a pod from before its Binding. If the Binding comes to nothing, no object changes,
    and no event would ever say that the node has room again."""
    at = cluster(nodes=1)
    at.add_gang("g", 1, 7)
    at.add_pod("other", 1)
    assert planned_on(at, "g-0") == "n1"
    order = at.begin_bind("other", "n1")
    assert isinstance(order, BindOrder)
    refuse(at, "g-0")
    assert planned_on(at, "g-0") == ""
    at.core.end_bind(order, Outcome.REFUSED, at.now)
    assert planned_on(at, "g-0") == "n1"

    refuse(at, "g-0")
    assert planned_on(at, "g-0") == ""
    gone = BindCall("ml", "gone", "its-uid", "n1")
    assert isinstance(at.core.begin_bind(gone, at.now), BindRefusal)
    assert planned_on(at, "g-0") == ""  # it may still be waited for
    at.core.bind_refused(gone)
    assert planned_on(at, "g-0") == "n1"


def test_a_pod_that_comes_may_be_what_a_gang_was_refused_without() -> None:
    """Such as one that its members must run beside."""
    at = cluster(nodes=1)
    at.add_gang("g", 1, 8)
    assert planned_on(at, "g-0") == "n1"
    refuse(at, "g-0")
    assert planned_on(at, "g-0") == ""
    at.add_pod("beside", 0, node="n1")
    assert planned_on(at, "g-0") == "n1"


def test_a_refusal_is_for_pods_of_one_template_only() -> None:
    at = cluster(nodes=2)
    at.add_gang("g", 1, 8)
    assert planned_on(at, "g-0") == "n1"
    refuse(at, "g-0")
    assert planned_on(at, "g-0") == "n2"
    at.add_pod("h-0", 8, cpu="2", gang="h", gang_size="1")
    assert planned_on(at, "h-0") == "n1"


def test_after_three_refusals_a_gang_is_left_to_wait_and_said_so_with_the_node() -> None:
    at = cluster(nodes=5)
    at.add_gang("g", 1, 8)
    refuse_three_times(at, "g-0")
    assert at.phase("g") == "refused"
    assert planned_on(at, "g-0") == ""
    assert at.free("n3") == 8
    assert [(event.reason, event.message) for event in at.events] == [
        ("GangRefused", "gang ml/g: kube-scheduler refused node n3 for pod g-0")
    ]
    assert (
        at.filter("g-0", ["n5"]).failed["n5"]
        == "linkwise: gang g: kube-scheduler did not take its plans"
    )
    (view,) = at.core.gangs(at.now)
    assert view.reason == (
        "kube-scheduler refused node n3 for pod g-0; it is tried again after a pause, or once "
        "a node or a member changes"
    )
    assert at.pass_time(0.9) == []
    at.pass_time(0.1)
    assert planned_on(at, "g-0") == "n5", "the last call has named it"


def refused(nodes: int = 5) -> Cluster:
    at = cluster(nodes)
    at.add_gang("g", 1, 8)
    refuse_three_times(at, "g-0")
    assert at.phase("g") == "refused"
    return at


def test_a_change_of_a_node_lets_a_refused_gang_try_again() -> None:
    at = refused()
    at.cordon("n5", Taint(key="maintenance", effect="NoSchedule"))
    at.settle()
    assert planned_on(at, "g-0") == "", "it rests as long as kube-scheduler would let it"
    at.pass_time(1)
    assert planned_on(at, "g-0") == "n4"
    assert at.phase("g") == "planned"


def test_a_change_of_a_member_lets_a_refused_gang_try_again() -> None:
    at = refused()
    at.delete("g-0")
    at.add_pod("again", 8, gang="g", gang_size="1")
    assert planned_on(at, "again") == "n4"


def test_a_call_that_names_a_node_that_refused_lets_a_refused_gang_try_again() -> None:
    at = refused(nodes=3)
    at.pass_time(5)
    assert planned_on(at, "g-0") == "", "every node has refused it"
    at.filter("g-0", ["n2"])
    at.pass_time(1)
    assert planned_on(at, "g-0") == "n2"


def test_a_refused_gang_is_tried_again_after_a_pause_that_doubles() -> None:
    """Its plans may have come to nothing for reasons that no call and no object tells."""
    at = cluster(nodes=1)
    at.add_gang("g", 1, 8)
    for pause in (600, 1200):
        for _ in range(3):
            assert planned_on(at, "g-0") == "n1"
            at.pass_time(600)  # kube-scheduler is away, or never gets as far as to bind
            at.settle()
        assert at.phase("g") == "refused"
        at.pass_time(pause - 1)
        assert at.phase("g") == "refused"
        due = at.core.next_due()
        assert due is not None
        assert due <= at.now + 1
        at.pass_time(1)
    assert planned_on(at, "g-0") == "n1"


def test_refusals_are_remembered_over_a_restart() -> None:
    at = cluster(nodes=5)
    at.add_gang("g", 1, 8)
    for _ in range(2):
        refuse(at, "g-0")
    at.settle()
    at.restart()
    at.settle()
    assert at.core.gangs(at.now)[0].refusals == 2
    refuse(at, "g-0")
    at.settle()
    assert at.phase("g") == "refused"


# A call that is lost is no refusal.


def large_cluster() -> tuple[Cluster, list[str]]:
    """Two nodes that a gang may have, and as many others as kube-scheduler takes for a sample."""
    at = cluster(nodes=2)
    others = [f"other-{number}" for number in range(LEAST_SAMPLE)]
    for name in others:
        at.add_node(name, "p100-pcie-8")
    at.add_gang("g", 2, 8, gpu_model="H100")
    at.settle()
    return at, others


def test_a_lost_call_about_the_nominated_node_is_no_refusal() -> None:
    at, others = large_cluster()
    assert planned_on(at, "g-0") == "n1"
    at.filter("g-0", others)  # the call about n1 alone was lost, and this sample lacks it
    at.filter("g-0", others)  # once more for a preemption, as kube-scheduler does
    assert planned_on(at, "g-0") == "n1"
    assert at.phase("g") == "planned"
    assert at.core.counts(at.now).refusals == 0


def test_after_calls_that_were_lost_a_gang_goes_on_with_the_next_that_is_not() -> None:
    """Found on free nodes after ten minutes and 1,200 calls, still waiting."""
    at, others = large_cluster()
    for _ in range(2):
        at.filter("g-0", others)
        at.filter("g-1", others)
        at.pass_time(5)
    at.filter("g-0", ["n1", "n2", *others])
    at.settle()
    assert [at.schedule(member) for member in ("g-0", "g-1")] == ["n1", "n2"]


def test_of_a_sample_a_second_try_without_the_nominated_node_is_a_refusal() -> None:
    at, others = large_cluster()
    at.add_node("n3", "hgx-h100")
    at.filter("g-0", others)
    at.pass_time(APART_SECONDS)
    at.filter("g-0", others)
    assert planned_on(at, "g-0") == "n2"
    assert planned_on(at, "g-1") == "n3"


def test_a_call_about_the_node_between_two_without_it_ends_the_doubt() -> None:
    at, others = large_cluster()
    at.filter("g-0", others)
    at.pass_time(APART_SECONDS)
    at.filter("g-0", ["n1"])
    at.filter("g-0", others)
    assert planned_on(at, "g-0") == "n1"


# A refusal ends by itself.


def with_one_node() -> Cluster:
    """One node that the gang may have, and another one, so that kube-scheduler has one to ask
    about."""
    at = cluster(nodes=1)
    at.add_node("other", "p100-pcie-8")
    at.add_gang("g", 1, 8, gpu_model="H100", gang_timeout="1h")
    assert planned_on(at, "g-0") == "n1"
    return at


def test_a_refusal_lapses_after_a_pause_that_doubles() -> None:
    at = with_one_node()
    pause = FIRST_PAUSE_SECONDS
    for _ in range(8):
        assert planned_on(at, "g-0") == "n1"
        at.filter("g-0", ["other"])
        at.settle()
        at.pass_time(pause - 1)
        assert planned_on(at, "g-0") == ""
        due = at.core.next_due()
        assert due is not None
        assert due <= at.now + 1  # nothing else has to happen
        at.pass_time(1)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    assert planned_on(at, "g-0") == "n1"
    assert pause == LONGEST_PAUSE_SECONDS


def test_refusals_of_several_pods_that_were_planned_there_count_once() -> None:
    at = cluster(nodes=1)
    learned = SchedulerFeedback(at.core._cache, Agenda())
    template = Ingest((GPU,), Agenda()).pod(at.add_pod("p", 1)).template
    assert template is not None
    for _ in range(4):
        learned.refuse(template, "n1", at.now)
    assert not learned.lapse((), at.now + FIRST_PAUSE_SECONDS - 1)
    assert learned.lapse((), at.now + FIRST_PAUSE_SECONDS)
    learned.refuse(template, "n1", at.now)
    assert not learned.lapse((), at.now + 2 * FIRST_PAUSE_SECONDS - 1)
    assert learned.lapse((), at.now + 2 * FIRST_PAUSE_SECONDS)


def test_a_refusal_that_is_long_over_begins_with_the_first_pause_again() -> None:
    at = with_one_node()
    for _ in range(3):
        at.filter("g-0", ["other"])
        assert planned_on(at, "g-0") == ""
        at.pass_time(4 * FIRST_PAUSE_SECONDS)
    for _ in range(20):
        at.pass_time(LONGEST_PAUSE_SECONDS / 10)
    at.filter("g-0", ["other"])
    assert planned_on(at, "g-0") == ""
    at.pass_time(FIRST_PAUSE_SECONDS)
    assert planned_on(at, "g-0") == "n1"


def test_a_call_that_names_the_node_ends_its_refusal_at_once() -> None:
    at = with_one_node()
    at.filter("g-0", ["other"])
    assert planned_on(at, "g-0") == ""
    at.filter("g-0", ["n1", "other"])
    assert planned_on(at, "g-0") == "n1"
