"""A gang's life from its first pod to its last, phase by phase."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.gangs.gang import IMPOSSIBLE, Gang, Phase, Standing, phase_of
from linkwise.extender.next.quarantine import LEFT_OUT
from linkwise.extender.place import gang_placement as place_module
from linkwise.extender.place.cluster_view import ClusterView
from linkwise.extender.place.request import PodSet
from linkwise.extender.state.actions import WritePlan
from linkwise.extender.state.extender_calls import Outcome
from linkwise.extender.state.records import GangKey
from linkwise.kube.objects import Condition
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.next.gangs.one_gang import cluster, planned, running


@pytest.mark.parametrize(
    ("standing", "phase"),
    [
        (Standing(minimum=2, live=1, bound=0, planned=0, done=0, started=False), Phase.FORMING),
        (Standing(minimum=2, live=2, bound=0, planned=0, done=0, started=False), Phase.FORMING),
        (Standing(minimum=2, live=2, bound=0, planned=2, done=0, started=False), Phase.PLANNED),
        (Standing(minimum=2, live=2, bound=1, planned=1, done=0, started=False), Phase.BINDING),
        (Standing(minimum=2, live=2, bound=1, planned=0, done=0, started=False), Phase.BINDING),
        (Standing(minimum=2, live=2, bound=2, planned=0, done=0, started=False), Phase.RUNNING),
        (Standing(minimum=2, live=1, bound=1, planned=0, done=0, started=True), Phase.REPAIRING),
        (Standing(minimum=2, live=2, bound=1, planned=1, done=0, started=True), Phase.REPAIRING),
        (Standing(minimum=2, live=1, bound=1, planned=0, done=1, started=True), Phase.RUNNING),
        (Standing(minimum=2, live=0, bound=0, planned=0, done=2, started=False), Phase.RELEASED),
        (
            Standing(minimum=2, live=2, bound=1, planned=0, done=0, started=False, expired=True),
            Phase.EXPIRED,
        ),
        (
            Standing(minimum=2, live=2, bound=0, planned=0, done=0, started=False, refused=True),
            Phase.REFUSED,
        ),
        (  # what it has is given back before it is left to wait
            Standing(2, 2, bound=1, planned=0, done=0, started=False, refused=True, expired=True),
            Phase.EXPIRED,
        ),
    ],
)
def test_the_phase_is_what_the_members_are_doing(standing: Standing, phase: Phase) -> None:
    assert phase_of(standing) is phase


def test_every_phase_can_be_reached_and_left() -> None:
    possible = {pair for pair in product(Phase, Phase) if pair not in IMPOSSIBLE}
    for phase in Phase:
        assert any(after is phase and before is not phase for before, after in possible)
        assert any(before is phase and after is not phase for before, after in possible)


@pytest.mark.parametrize("expired", [True, False])
def test_an_expired_gang_has_no_plans_until_it_is_over(expired: bool) -> None:
    """A round ends that, makes plans, and enters the next phase at its end."""
    at = cluster()
    at.add_gang("g", 2)
    at.settle()
    (gang,) = at.core._planner.registry.gangs.values()
    gang.phase, gang.expired = Phase.EXPIRED, expired
    found = ["gang ml/g: expired, but still has plans"] if expired else []
    assert at.core.audit() == found


def test_a_gang_that_runs_is_never_called_late() -> None:
    gang = Gang(GangKey("ml", "g"), phase=Phase.RUNNING)
    gang.enter(Phase.EXPIRED)
    assert gang.broken == ["gang ml/g: running -> expired"]
    gang.enter(Phase.FORMING)
    assert len(gang.broken) == 1


def test_nothing_is_held_before_all_members_are_there() -> None:
    at = cluster()
    at.add_pod("g-0", 8, gang="g", gang_size="2")
    assert at.settle() == []
    assert at.phase("g") == "forming"
    assert at.filter("g-0").failed["n1"] == "linkwise: gang g waits for its members"
    assert at.free("n1") == 8


def test_all_members_are_planned_in_one_go_annotated_and_nominated() -> None:
    at = cluster()
    at.add_gang("g", 2, 8)
    actions = at.core.decide(at.now)
    assert [(type(each), each.pod.name) for each in actions] == [
        (WritePlan, "g-0"),
        (WritePlan, "g-1"),
    ]
    # Held at once, before anything is written.
    assert (at.free("n1"), at.free("n2")) == (0, 0)
    assert at.filter("g-0").node_names == ("n1",)
    assert at.filter("g-0").failed == {"n2": "linkwise: planned on another node"}


def test_members_planned_together_share_an_id_and_a_time() -> None:
    at = cluster()
    plans = [at.plan(member) for member in planned(at)]
    assert len({(plan.id, plan.epoch, plan.made) for plan in plans if plan}) == 1
    assert [plan.node for plan in plans if plan] == ["n1", "n2"]


def test_the_whole_gang_or_nothing() -> None:
    at = cluster(nodes=1)
    at.add_gang("g", 2, 8)
    assert at.settle() == []
    assert at.free("n1") == 8
    assert at.filter("g-0").failed["n1"] == "linkwise: gang g: no room for the whole gang"


def test_a_gang_without_room_is_planned_when_room_appears() -> None:
    at = cluster(nodes=1)
    at.add_gang("g", 2, 8)
    at.settle()
    at.add_node("n2")
    at.settle()
    assert at.phase("g") == "planned"


def test_capacity_given_back_goes_to_the_waiting_gang() -> None:
    at = cluster(nodes=1)
    at.add_pod("busy", 4, node="n1")
    at.add_gang("g", 2, 4)
    at.settle()
    assert at.phase("g") == "forming"
    at.set_phase("busy", "Succeeded")
    at.settle()
    assert at.phase("g") == "planned"


def test_a_more_important_gang_comes_first_then_the_older() -> None:
    at = cluster(nodes=1)
    at.add_pod("young", 8, gang="young", gang_size="1")
    at.now += 1
    at.add_pod("old", 8, gang="aaa", gang_size="1", priority=5)
    at.settle()
    assert (at.phase("young"), at.phase("aaa")) == ("forming", "planned")
    at.delete("old")
    at.add_pod("younger", 8, gang="a", gang_size="1")
    at.settle()
    assert (at.phase("young"), at.phase("a")) == ("planned", "forming")


def test_a_plan_that_could_not_be_written_is_written_again() -> None:
    at = cluster(nodes=1)
    at.add_gang("g", 1, 8)
    (action,) = at.core.decide(at.now)
    at.core.done(action, Outcome.UNKNOWN, at.now)
    assert at.core.decide(at.now) == ()
    assert at.free("n1") == 0
    due = at.core.next_due()
    assert due is not None
    at.now = due
    assert at.core.decide(at.now) == (action,)
    at.core.done(action, Outcome.REFUSED, at.now)
    assert at.core.decide(at.now + 1) == ()  # the pause doubles
    assert at.core.decide(at.now + 2) == (action,)


def test_one_write_per_pod_at_a_time() -> None:
    at = cluster()
    at.add_gang("g", 1, 8)
    (first,) = at.core.decide(at.now)
    at.remove_node("n1")  # the plan is void while it is being written
    assert at.core.decide(at.now) == ()
    at.core.done(first, at.carry_out(first), at.now)
    (second,) = at.core.decide(at.now)
    assert isinstance(second, WritePlan)
    assert second.node == "n2"


def test_a_nomination_that_was_taken_away_is_made_again() -> None:
    at = cluster()
    planned(at, size=1)
    pod = at.pod("g-0")
    at.put_pod(change(pod, status=change(pod.status, nominated_node_name="")))
    assert at.core.decide(at.now) == ()
    assert [type(each) for each in at.pass_time(10)] == [WritePlan]
    assert at.pod("g-0").status.nominated_node_name == "n1"


def test_members_beyond_the_size_wait() -> None:
    at = cluster(nodes=3)
    planned(at)
    at.add_pod("g-2", 8, gang="g", gang_size="2", rank="2")
    at.settle()
    assert at.plan("g-2") is None
    assert "has all its members" in at.filter("g-2").failed["n1"]


def test_a_member_bound_past_us_takes_the_seat_of_a_planned_one() -> None:
    at = cluster(nodes=3)
    planned(at)
    at.add_pod("stranger", 8, gang="g", gang_size="2", rank="7", node="n3")
    at.settle()
    assert at.plan("g-0") is not None
    assert at.plan("g-1") is None  # the last by rank of those not bound
    assert at.phase("g") == "binding"


def test_a_late_echo_of_a_withdrawn_plan_is_no_plan() -> None:
    at = cluster(nodes=1)
    planned(at, size=1)
    echo = at.pod("g-0")
    at.cordon("n1")
    at.settle()
    assert at.plan("g-0") is None
    now_there = at.pod("g-0")
    at.core.pod_event("MODIFIED", echo, at.now)
    at.core.pod_event("MODIFIED", now_there, at.now)
    at.settle()
    assert at.free("n1") == 8
    assert at.filter("g-0").node_names == ()


def test_a_late_echo_of_an_earlier_plan_is_not_answered() -> None:
    at = cluster()
    planned(at, size=1)
    echo = at.pod("g-0")
    at.cordon("n1")
    at.settle()
    at.core.pod_event("MODIFIED", echo, at.now)
    assert at.settle() == []
    assert at.filter("g-0").node_names == ("n2",)
    at.put_pod(at.pod("g-0"))
    at.add_node("n3")
    at.cordon("n2")
    at.settle()
    plan = at.plan("g-0")
    assert plan is not None
    assert plan.epoch == 3


PRIORITY = (
    "all pods in a single pod group should have the same priority as the pod group's priority, "
    "got 100 and 0"
)
REFUSED = f"default-scheduler refuses its PodGroup: {PRIORITY}"


def say(at: Cluster, name: str, reason: str, message: str) -> None:
    """kube-scheduler writes why it did not place this pod, and clears its nomination."""
    pod = at.pod(name)
    said = (Condition("PodScheduled", "False", reason=reason, message=message),)
    at.put_pod(change(pod, status=change(pod.status, conditions=said, nominated_node_name="")))


def test_a_gang_whose_pod_group_kube_scheduler_refuses_holds_nothing_and_says_so() -> None:
    at = cluster()
    members = planned(at)
    for name in members:
        say(at, name, "SchedulerError", PRIORITY)
    at.settle()
    for _ in range(3):  # kube-scheduler tries again and again
        assert (at.phase("g"), at.plan("g-0"), at.plan("g-1")) == ("refused", None, None)
        assert [at.pod(name).status.nominated_node_name for name in members] == ["", ""]
        say(at, "g-0", "SchedulerError", PRIORITY)
        at.pass_time(10.0)
    assert [e.message for e in at.events if e.reason == "GangWaiting"] == [f"gang ml/g: {REFUSED}"]
    assert at.schedule(at.add_pod("other", 8).metadata.name)
    assert at.filter("g-0").failed["n1"] == f"linkwise: gang g: {REFUSED}"


def test_it_is_planned_once_kube_scheduler_tries_its_members_again() -> None:
    """Somebody has created the group again, with the priority of its pods."""
    at = cluster()
    members = planned(at)
    for name in members:
        say(at, name, "SchedulerError", PRIORITY)
    at.settle()
    for name in members:
        say(at, name, "Unschedulable", at.filter(name).failed["n1"])
    at.settle()
    assert at.phase("g") == "planned"


def test_a_member_that_kube_scheduler_refuses_beside_a_running_gang_holds_nothing() -> None:
    at = cluster(3)
    planned(at, 3, gang_min="2")
    at.delete("g-2")
    assert at.schedule("g-0")
    assert at.schedule("g-1")
    at.add_pod("g-2", 8, gang="g", gang_size="3", gang_min="2", rank="2")
    say(at, "g-2", "SchedulerError", PRIORITY)
    at.settle()
    assert (at.phase("g"), at.plan("g-2")) == ("running", None)
    assert at.filter("g-2").failed["n1"] == f"linkwise: gang g: {REFUSED}"
    assert at.evicted == []


def test_members_that_contradict_each_other_are_refused_with_both_named() -> None:
    at = cluster()
    at.add_pod("a", 8, gang="g", gang_size="2")
    at.add_pod("b", 8, gang="g", gang_size="3")
    at.settle()
    assert at.phase("g") == "refused"
    text = at.filter("a").failed["n1"]
    assert text == "linkwise: gang g: pod a says gang-size 2, pod b says 3"
    at.delete("b")
    at.add_pod("b", 8, gang="g", gang_size="2")
    at.settle()
    assert at.phase("g") == "planned"


def test_pods_left_over_from_an_earlier_run_say_nothing_about_the_next() -> None:
    at = cluster()
    for member in running(at, 3, gpus=2):
        at.set_phase(member, "Succeeded")
        at.stop(member, at.pod(member).spec.node_name)
    at.settle()
    for name in ("a", "b"):
        at.add_pod(name, 8, gang="g", gang_size="2")
    at.settle()
    assert at.phase("g") == "planned"


def test_gangs_of_one_name_in_two_namespaces_are_two_gangs() -> None:
    at = cluster()
    at.add_pod("a", 8, gang="g", gang_size="2")
    other = at.add_pod("b", 8, gang="other", gang_size="2")
    meta = change(other.metadata, namespace="research", uid="r", name="b2")
    said = {**meta.annotations, names.GANG: "g"}
    at.put_pod(change(other, metadata=change(meta, annotations=said)))
    assert at.settle() == []
    assert {(g.namespace, g.name) for g in at.core.gangs(at.now)} == {
        ("ml", "g"),
        ("ml", "other"),
        ("research", "g"),
    }


def test_a_member_without_gpus_is_counted_and_not_planned() -> None:
    at = cluster()
    at.add_pod("launcher", 0, gang="g", gang_size="2", rank="0")
    at.add_pod("worker", 8, gang="g", gang_size="2", rank="1")
    at.settle()
    assert at.phase("g") == "planned"
    assert at.plan("launcher") is None
    assert at.plan("worker") is not None


def test_binding_goes_from_planned_to_running() -> None:
    at = cluster()
    first, second = planned(at)
    at.schedule(first)
    at.settle()
    assert at.phase("g") == "binding"
    at.schedule(second)
    at.settle()
    assert at.phase("g") == "running"


def test_gangs_that_are_alike_wait_for_room_by_one_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    place = place_module.place

    def counts(ground: ClusterView, orders: Sequence[PodSet], *rest: Any) -> object:
        searched.append(len(orders[0].members))
        return place(ground, orders, *rest)

    monkeypatch.setattr("linkwise.extender.next.gangs.gang_search.place", counts)
    at = cluster(nodes=2, machine="a100-pcie-8-bridged")  # four pairs each
    at.settings = CoreSettings(reserve_share=0)  # what to reserve for the first is a search
    at.restart()
    for name in ("g", "h", "i"):
        at.add_gang(name, 3, 4, require_link="nvlink")
    at.add_gang("other", 2, 4, require_link="nvlink")
    at.settle()
    assert sorted(searched) == [2, 3]
    at.add_node("n3", "dgx1-v100")
    at.add_node("n4", "dgx1-v100")
    at.settle()
    phases = [at.phase(name) for name in ("g", "h", "i", "other")]
    assert phases == ["planned", "forming", "forming", "forming"]  # as 1 of 4 sets is left
    assert sorted(searched) == [2, 2, 3, 3, 3]
    assert at.sound()


@pytest.mark.parametrize(("size", "gpus"), list(product((1, 3), (1, 8))))
def test_everything_given_out_comes_back(size: int, gpus: int) -> None:
    at = cluster(nodes=3)
    for member in running(at, size, gpus):
        at.start(member)
        node = at.pod(member).spec.node_name
        at.terminate(member)
        at.delete(member)
        at.stop(member, node)
    at.settle()
    assert [at.free(f"n{number}") for number in (1, 2, 3)] == [8, 8, 8]
    assert at.core.gangs(at.now) == ()
    assert at.sound()


def test_a_gang_that_meets_a_defect_of_ours_keeps_no_other_from_its_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = place_module.place

    def fails_for_three(ground: ClusterView, orders: Sequence[PodSet], *rest: Any) -> object:
        if len(orders[0].members) == 3:
            raise ZeroDivisionError("a bug")
        return place(ground, orders, *rest)

    monkeypatch.setattr("linkwise.extender.next.gangs.gang_search.place", fails_for_three)
    at = cluster()
    at.add_gang("a-bad", 3, 1)
    at.add_gang("good", 2, 1)
    at.settle()
    assert at.phase("good") == "planned"
    assert LEFT_OUT in repr(at.core.explain("ml", "a-bad-0", at.now))
    (defect,) = at.core.take_defects()
    assert defect.__notes__ == ["while deciding about ml/a-bad"]
    assert at.core.take_defects() == []

    monkeypatch.undo()
    at.pass_time(60.0)
    assert at.phase("a-bad") == "planned"
    assert at.sound()
