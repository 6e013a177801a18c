"""Plans behind the gate: copied, found after a restart, lost or never carried out."""

import pytest

from linkwise.extender.state.actions import LiftGate, WithdrawPlan, WritePlan
from linkwise.extender.state.extender_calls import Outcome
from linkwise.topology import names
from tests.extender.cluster import Cluster
from tests.extender.next.gangs.gated import OURS, cluster, told


def copied(at: Cluster, *names_of: str) -> dict[str, dict[str, str]]:
    """What `kubectl get -o yaml` keeps of pods that were planned, for their copies."""
    kept = {}
    for name in names_of:
        annotations = at.pod(name).metadata.annotations
        kept[name] = {key.removeprefix(names.PREFIX): text for key, text in annotations.items()}
        at.delete(name)
    at.settle()
    return kept


def test_the_old_plan_on_a_copied_pod_is_replaced_and_blamed_on_nobody() -> None:
    at = cluster("n1")
    at.add_pod("p", 4, gates=[OURS])
    at.settle()
    said = copied(at, "p")["p"]
    at.now += 5000
    at.add_pod("p", 4, gates=[OURS], said=said)
    assert [type(action) for action in at.settle()] == [WritePlan, LiftGate]
    plan = at.plan("p")
    assert plan is not None
    assert (plan.made, plan.refusals) == (at.now, 0)
    assert at.pod("p").status.nominated_node_name == "n1"
    assert told(at, "p") == []
    assert at.sound()


def test_the_plan_on_a_copied_pod_that_has_no_room_holds_nothing() -> None:
    at = cluster("n1")
    at.add_pod("p", 4, gates=[OURS])
    at.settle()
    said = copied(at, "p")["p"]
    at.add_pod("old", 8)
    at.schedule("old")
    at.add_pod("p", 4, gates=[OURS], said=said)
    assert at.settle_but_notes() == []
    assert at.plan("p") is None
    assert at.gates("p") == [OURS]


def test_the_old_plan_on_a_copied_gang_is_replaced_and_blamed_on_nobody() -> None:
    at = cluster()
    members = at.add_gang("g", 2, gates=[OURS])
    at.settle()
    old = copied(at, *members)
    at.now += 5000
    for name in members:
        at.add_pod(name, 8, gates=[OURS], said=old[name])
    assert [type(action) for action in at.settle()] == [WritePlan, WritePlan, LiftGate, LiftGate]
    assert at.events == []


def test_no_gate_of_a_copied_gang_is_lifted_before_all_are_nominated() -> None:
    """Also where a member without a gate has the annotation of a plan already."""
    at = cluster()
    members = at.add_gang("g", 2, gates=[OURS])
    at.settle()
    old = copied(at, *members)
    at.add_pod("g-0", 8, said=old["g-0"])
    at.add_pod("g-1", 8, gates=[OURS], said=old["g-1"])
    writes = {action.pod.name: action for action in at.core.decide(at.now)}
    at.core.done(writes["g-1"], at.carry_out(writes["g-1"]), at.now)
    at.core.done(writes["g-0"], Outcome.UNKNOWN, at.now)
    at.now += 0.1
    assert at.core.decide(at.now) == ()  # not before the pause ends
    at.now += 5
    assert [type(action) for action in at.settle()] == [WritePlan, LiftGate]


def test_a_new_extender_lifts_the_gate_of_what_the_old_one_nominated() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    (write,) = at.core.decide(at.now)
    at.carry_out(write)
    at.restart()
    assert at.free("n1") == 4
    assert [type(action) for action in at.settle()] == [LiftGate]
    assert at.schedule("p") == "n1"


def test_a_new_extender_keeps_the_plan_of_what_was_let_go() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    at.settle()
    at.restart()
    assert at.settle() == []
    assert at.free("n1") == 4
    assert at.filter("p").node_names == ("n1",)


def test_a_half_nominated_gang_is_completed_by_a_new_extender_before_any_gate_is_lifted() -> None:
    at = cluster()
    at.add_gang("g", 2, gates=[OURS])
    first, _ = at.core.decide(at.now)
    at.carry_out(first)
    at.restart()
    assert [type(action) for action in at.settle()] == [WritePlan, LiftGate, LiftGate]


def test_a_plan_that_came_to_nothing_is_made_again_before_the_gate_is_lifted() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    (write,) = at.core.decide(at.now)
    at.cordon("n1")
    at.core.done(write, at.carry_out(write), at.now)
    assert at.pod("p").status.nominated_node_name == "n1"
    at.settle()
    assert at.pod("p").status.nominated_node_name == "n2"
    assert at.gates("p") == []
    assert at.schedule("p") == "n2"


def test_a_plan_that_has_no_room_any_more_is_withdrawn_and_the_gate_stays() -> None:
    at = cluster("n1")
    at.add_pod("p", 4, gates=[OURS])
    (write,) = at.core.decide(at.now)
    at.core.done(write, at.carry_out(write), at.now)
    at.cordon("n1")
    assert [type(action) for action in at.settle_but_notes()] == [WithdrawPlan]
    assert at.plan("p") is None
    assert at.gates("p") == [OURS]


def test_a_gate_lifted_by_hand_makes_it_a_pod_as_any() -> None:
    at = cluster("n1")
    at.add_pod("old", 8)
    at.schedule("old")
    at.add_pod("p", 4, gates=[OURS])
    at.settle()
    at.lift("p", OURS)
    assert at.settle() == []
    assert at.schedule("p") == ""
    at.delete("old")
    assert at.schedule("p") == "n1"
    assert at.sound()


def test_a_gate_lifted_by_hand_while_the_plan_is_on_its_way_loses_nothing() -> None:
    at = cluster("n1")
    at.add_pod("p", 4, gates=[OURS])
    (write,) = at.core.decide(at.now)
    at.lift("p", OURS)
    at.core.decide(at.now)
    assert at.free("n1") == 8
    at.core.done(write, at.carry_out(write), at.now)
    at.settle()
    assert at.free("n1") == 4
    assert at.schedule("p") == "n1"
    assert at.free("n1") == 4
    assert at.sound()


def test_what_was_let_go_and_is_never_bound_gives_its_gpus_back() -> None:
    at = cluster("n1")
    at.add_pod("p", 4, gates=[OURS])
    at.settle()
    for _ in range(3):
        at.pass_time(600.0)
    assert at.free("n1") == 8
    assert at.plan("p") is None
    assert told(at, "p")[-1] == "pod ml/p: it was not bound in time"
    assert at.schedule("p") == "n1"  # from now on a pod as any


def test_a_refused_node_is_not_nominated_again() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    at.settle()
    assert at.filter("p", ["n2"]).node_names == ()  # n1 was not among those that passed
    at.settle()
    assert at.pod("p").status.nominated_node_name == "n2"
    assert at.schedule("p") == "n2"


def test_a_pod_whose_nomination_was_taken_away_is_answered_as_any() -> None:
    at = cluster()
    at.add_pod("p", 4, gates=[OURS])
    at.settle()
    at.nominate("p", "")
    assert at.free("n1") == 8
    assert at.filter_again("p").node_names == ("n1", "n2")
    assert at.sound()


@pytest.mark.parametrize("moment", ["planned", "nominated", "let go"])
def test_deleted_while_gated_it_leaves_nothing(moment: str) -> None:
    at = cluster("n1")
    at.add_pod("p", 4, gates=[OURS])
    if moment == "planned":
        at.core.decide(at.now)
    else:
        (write,) = at.core.decide(at.now)
        at.core.done(write, at.carry_out(write), at.now)
        if moment == "let go":
            at.settle()
    at.delete("p")
    at.settle()
    assert at.free("n1") == 8
    assert at.sound()
