"""A gang that is not whole in time gives its GPUs back."""

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.actions import Evict, WithdrawPlan
from linkwise.extender.state.extender_calls import BindOrder, Outcome
from tests.extender.cluster import Cluster, change
from tests.extender.next.gangs.one_gang import cluster, planned, running


def test_a_partial_gang_gives_everything_back_after_its_timeout() -> None:
    at = cluster()
    first, second = planned(at)
    at.schedule(first)
    at.settle()
    assert at.core.next_due() == at.now + 600
    actions = at.pass_time(600)
    assert {type(each) for each in actions} >= {Evict, WithdrawPlan}
    assert at.evicted == [first]
    assert at.plan(second) is None
    assert at.pod(second).status.nominated_node_name == ""
    assert at.phase("g") in ("expired", "forming")
    at.delete(first)
    assert (at.free("n1"), at.free("n2")) == (8, 8)
    assert ("GangExpired", "g-0") in [(event.reason, event.pod.name) for event in at.events]


def test_a_launcher_may_wait_for_its_workers_for_as_long_as_it_likes() -> None:
    """It keeps no GPU from others."""
    at = cluster()
    for name, gpus in (("launcher", 0), ("w0", 8), ("w1", 8)):
        at.add_pod(name, gpus, gang="g", gang_size="3")
    at.add_pod("other", 8)
    at.bind("other", "n1")
    at.settle()
    at.bind("launcher", "n2")
    for _ in range(5):
        at.pass_time(600)
    assert at.evicted == []
    at.delete("other")
    at.settle()
    assert at.plan("w0") is not None
    assert at.plan("w1") is not None


def test_an_expired_gang_may_form_and_be_planned_again() -> None:
    at = cluster()
    first, second = planned(at)
    at.schedule(first)
    at.pass_time(600)
    at.delete(first)
    at.add_pod("again", 8, gang="g", gang_size="2", rank="0")
    at.settle()
    assert at.phase("g") == "planned"
    plan, other = at.plan("again"), at.plan(second)
    assert plan is not None
    assert other is not None
    assert plan.id == other.id
    assert plan.made == at.now


def test_an_evicted_member_that_ends_well_does_not_stand_in_for_the_one_that_is_missing() -> None:
    """A process that ends with 0 at SIGTERM leaves a pod that has succeeded until it is deleted."""
    at = cluster()
    first, second = planned(at)
    at.schedule(first)
    at.pass_time(600)
    assert at.evicted == [first]
    at.set_phase(first, "Succeeded")
    at.settle()
    assert at.plan(second) is None
    at.delete(first)
    at.add_pod("again", 8, gang="g", gang_size="2", rank="0")
    at.settle()
    assert at.phase("g") == "planned"
    assert at.sound()


def test_a_plan_that_nobody_binds_is_not_held_for_ever() -> None:
    at = cluster(nodes=1)
    planned(at, size=1)
    for _ in range(3):
        assert at.filter("g-0").node_names == ("n1",)  # it asks, and never binds
        at.pass_time(600)
    assert at.phase("g") == "refused"
    assert at.free("n1") == 8
    assert (
        at.filter("g-0").failed["n1"] == "linkwise: gang g: kube-scheduler did not take its plans"
    )


def test_where_kube_scheduler_was_away_its_first_call_has_the_gang_planned_again() -> None:
    """Found waiting for ten minutes more beside free GPUs."""
    at = cluster(nodes=1)
    planned(at, size=1)
    for _ in range(3):
        at.pass_time(600)
    assert at.phase("g") == "refused"
    at.filter("g-0")
    at.settle()
    assert at.schedule("g-0") == "n1"


def test_a_plan_of_a_time_to_come_is_as_old_as_its_extender() -> None:
    at = cluster(nodes=1)
    first, _ = planned(at, gpus=2)
    plan = at.plan(first)
    assert plan is not None
    for member in ("g-0", "g-1"):  # written by a clock that went wrong
        at.write_plan(member, change(plan, made=1e300), at.gpus(member))
    at.restart()
    at.settle()
    assert at.phase("g") == "planned"
    assert at.core.next_due() == at.now + 600
    at.schedule(first)
    at.pass_time(599)
    assert at.evicted == []
    at.pass_time(1)
    assert at.evicted == [first]


def test_a_plan_from_before_all_time_can_be_told_of() -> None:
    at = cluster(nodes=1)
    first, second = running(at, gpus=2)
    for member in (first, second):
        plan = at.plan(member)
        assert plan is not None
        at.write_plan(member, change(plan, made=-1e300), at.gpus(member))
    at.restart()
    at.settle()
    found = at.core.explain("ml", first, at.now)
    assert found is not None
    assert "made 1970-01-01" in explanation_text.pod(found, at.now)


def test_a_binding_on_its_way_is_waited_for() -> None:
    at = cluster()
    first, second = planned(at)
    at.schedule(first)
    order = at.begin_bind(second, "n2")
    assert isinstance(order, BindOrder)
    at.pass_time(601)
    assert at.evicted == []
    assert at.post_binding(order)
    at.core.end_bind(order, Outcome.DONE, at.now)
    at.settle()
    assert at.phase("g") == "running"


def test_an_eviction_that_is_refused_is_tried_again() -> None:
    at = cluster()
    first, _ = planned(at)
    at.schedule(first)
    at.now += 600
    evictions = [each for each in at.core.decide(at.now) if isinstance(each, Evict)]
    assert len(evictions) == 1
    at.core.done(evictions[0], Outcome.REFUSED, at.now)  # a PodDisruptionBudget
    again = [each for each in at.core.decide(at.now + 1) if isinstance(each, Evict)]
    assert again == evictions


@pytest.mark.parametrize(
    ("said", "counts"),
    [("2m", 120.0), ("1ms", 10.0), ("9s", 10.0), ("50m", 3000.0), ("8760h", 3600.0)],
)
def test_the_gangs_own_timeout_counts_within_bounds(said: str, counts: float) -> None:
    """Found: 1ms made 25,326 writes in 22 s, and 8760h kept GPUs from others for a year."""
    at = cluster()
    first, _ = planned(at, gang_timeout=said)
    at.schedule(first)
    at.pass_time(counts - 1)
    assert at.evicted == []
    at.pass_time(1)
    assert at.evicted == [first]


def test_the_operator_s_timeout_may_be_longer_than_what_pods_may_say() -> None:
    at = Cluster(CoreSettings(gang_timeout_seconds=7200))
    at.add_node("n1", "hgx-h100")
    at.add_node("n2", "hgx-h100")
    first, _ = planned(at, gang_timeout="8760h")
    at.schedule(first)
    at.pass_time(7199)
    assert at.evicted == []
    at.pass_time(1)
    assert at.evicted == [first]
