"""Nodes that a person wants empty: what moves, what stays and why, and what comes no more."""

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.next.moves.may_move import Stays
from linkwise.extender.next.moves.planned_moves import EVICT_SECONDS, TRY_SECONDS
from linkwise.extender.next.moves.targets import COME_SECONDS
from linkwise.extender.place.nodes.reasons import EMPTIED
from linkwise.extender.show.explain.moves import emptied_nodes, view_moves
from linkwise.extender.state.actions import Evict
from linkwise.extender.state.views import MoveState
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.next.moves.movers import (
    HOUR,
    MOVABLE,
    both,
    bury,
    cluster,
    empty,
    going,
    lead,
    owned_by,
    recreated,
    run,
    shown,
    waits,
    why_stays,
)
from tests.extender.next.preemption.victims import budget
from tests.machines import TWO_ISLANDS, machine

UNLINKED = machine("""
        GPU0  GPU1  GPU2  GPU3
  GPU0   X    SYS   SYS   SYS
  GPU1  SYS    X    SYS   SYS
  GPU2  SYS   SYS    X    SYS
  GPU3  SYS   SYS   SYS    X
""")


def free(at: Cluster, node: str) -> int:
    """GPUs that no pod has, and that are reserved for none."""
    return at.core._cache.nodes[node].free.bit_count()


def moving() -> Cluster:
    """`web` is evicted from n1, and its target is n2."""
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    empty(at, "n1")
    assert at.evicted == ["web"]
    return at


def test_a_pod_goes_to_another_node_however_short_it_has_run() -> None:
    at = moving()
    recreated(at, "web", "web-2")
    assert (at.schedule("web-2"), free(at, "n1")) == ("n2", 8)
    assert at.sound()


def test_the_evicted_pod_has_an_event_that_names_both_nodes() -> None:
    told = "evicted to empty node n1: this pod's next place is reserved on n2"
    [event] = moving().events
    assert (event.pod.name, event.reason, event.message) == ("web", "Moved", told)


@pytest.mark.parametrize("said", [None, "false", "yes"])
def test_only_true_empties_a_node(said: str | None) -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    empty(at, "n1", said=said)
    assert (at.evicted, emptied_nodes(at.core.snapshot(at.now))) == ([], [])


@pytest.mark.parametrize("allowed", [Moves.NEVER, Moves.ADVISE])
def test_nothing_moves_without_the_operator_and_the_plan_is_shown(allowed: Moves) -> None:
    at = cluster(allowed)
    run(at, "web", 4, "n1", said=MOVABLE)
    empty(at, "n1")
    at.pass_time(HOUR)
    assert (at.evicted, going(at), shown(at).allowed) == ([], {"web": "n2"}, allowed.value)


def test_the_plan_is_shown_before_the_node_is_emptied() -> None:
    at = cluster(nodes=3)
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "embed", 6, "n2", said=MOVABLE)
    found = shown(at, "n1", "n2")
    assert {move.pod: move.target for move in found.moves} == {"ml/embed": "n3"}
    assert why_stays(at, "n1", "n2") == {"web": Stays.NO_PLACE.value}
    assert [(node.node, node.gpus, node.emptied) for node in found.nodes] == [
        ("n1", 4, False),
        ("n2", 6, False),
    ]
    assert (at.settle(), at.evicted) == ([], [])


def test_what_is_shown_is_what_happens() -> None:
    at = cluster(nodes=4)
    for number, gpus in enumerate([1, 2, 1, 4]):
        run(at, f"a{number}", gpus, "n1", said=MOVABLE)
    run(at, "b", 2, "n2", said=MOVABLE)
    before = going(at, "n1", "n2")
    empty(at, "n1", "n2")
    assert len(before) == 5
    assert going(at) == before
    assert sorted(at.evicted) == sorted(before)


def test_each_that_stays_has_its_reason() -> None:
    at = cluster(nodes=4)
    at.budgets = [budget(0, app="owner-of-kept")]
    at.restart()
    run(at, "alone", 1, "n1")
    run(at, "kept", 1, "n1", said=MOVABLE)
    run(at, "short", 1, "n1", said={**MOVABLE, "expected_duration": "5m"})
    run(at, "only-there", 1, "n1", said=MOVABLE, only_there=True)
    at.add_pod("planned", 1, said=MOVABLE, alter=owned_by("ReplicaSet", "p"), gates=[names.GATE])
    at.settle()
    [node] = at.places("planned")
    at.add_gang("gang", 2, 1)
    at.settle()
    for member in ("gang-0", "gang-1"):
        at.schedule(member)
    gang_on = at.pod("gang-0").spec.node_name
    why = why_stays(at, "n1", node, gang_on)
    assert why == {
        "alone": Stays.NO_CONSENT.value,
        "kept": Stays.BUDGET.value,
        "short": Stays.ENDS.value,
        "only-there": Stays.NO_PLACE.value,
        "planned": Stays.STARTS.value,
        "gang-0": Stays.GANG.value,
        "gang-1": Stays.GANG.value,
    }


def test_pods_outside_the_canary_stay() -> None:
    policy = MovePolicy(Moves.CONSENT)
    at = Cluster(settings=CoreSettings(moves=policy, namespaces=("other",)))
    at.add_node("n1")
    at.add_node("n2")
    at.add_pod("web", 4, said=MOVABLE, alter=owned_by("ReplicaSet", "web"), node="n1")
    at.set_phase("web", "Running")
    empty(at, "n1")
    assert (at.evicted, why_stays(at)) == ([], {"web": Stays.LEFT_ALONE.value})


def test_a_pod_that_was_moved_stays_for_a_day() -> None:
    at = moving()
    recreated(at, "web", "web-2")
    at.schedule("web-2")
    at.start("web-2")
    empty(at, "n1", said=None)
    empty(at, "n2")
    assert why_stays(at) == {"web-2": Stays.AGAIN.value}
    at.pass_time(86_400.0)
    assert at.evicted == ["web", "web-2"]


def test_no_pod_gets_worse_links() -> None:
    at = cluster(nodes=0)
    at.add_node("n1", TWO_ISLANDS)
    at.add_node("n2", UNLINKED)
    run(at, "web", 2, "n1", said=MOVABLE)
    run(at, "one", 1, "n1", said=MOVABLE)
    empty(at, "n1")
    assert (at.evicted, why_stays(at)) == (["one"], {"web": Stays.NO_PLACE.value})


def test_no_pod_goes_to_a_node_that_is_emptied_too() -> None:
    at = cluster()
    for node in ("n1", "n2"):
        run(at, f"web-{node}", 4, node, said=MOVABLE)
    empty(at, "n1", "n2")
    assert why_stays(at) == dict.fromkeys(["web-n1", "web-n2"], Stays.NO_PLACE.value)


@pytest.mark.parametrize(("priority", "evicted"), [(1, []), (0, []), (-1, ["web"])])
def test_no_pod_goes_where_kube_scheduler_keeps_room_for_one_as_important(
    priority: int, evicted: list[str]
) -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "victim", 2, "n2")
    at.terminate("victim")
    at.add_pod("other", 4, priority=priority)
    at.nominate("other", "n2")
    empty(at, "n1")
    assert at.evicted == evicted


@pytest.mark.parametrize("comes", [True, False])
def test_a_pod_goes_where_kube_scheduler_keeps_room_no_more(comes: bool) -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "victim", 2, "n2")
    at.add_pod("other", 4)
    at.nominate("other", "n2")
    empty(at, "n1")
    assert why_stays(at) == {"web": Stays.NO_PLACE.value}
    if comes:
        bury(at, "victim")
        assert at.schedule("other") == "n2"
    else:
        at.delete("other")
    at.pass_time(TRY_SECONDS)
    assert at.evicted == ["web"]


def test_a_budget_lets_one_pod_go_after_the_other() -> None:
    at = cluster(nodes=3)
    at.budgets = [budget(1, app="owner-of-web")]
    at.restart()
    of_one_owner(at, "a", "b")
    empty(at, "n1")
    [first] = at.evicted
    at.core.budget_event("MODIFIED", budget(0, app="owner-of-web"), at.now)
    at.pass_time(TRY_SECONDS)
    assert why_stays(at) == {"b" if first == "a" else "a": Stays.BUDGET.value}
    at.core.budget_event("MODIFIED", budget(1, app="owner-of-web"), at.now)
    at.pass_time(TRY_SECONDS)
    assert sorted(at.evicted) == ["a", "b"]


def of_one_owner(at: Cluster, *pods: str) -> None:
    """Two GPUs each, on n1."""
    for name in pods:
        run(at, name, 2, "n1", said=MOVABLE)
        pod = at.pod(name)
        at.put_pod(change(pod, metadata=owned_by("ReplicaSet", "owner-of-web")(pod).metadata))


def test_what_is_shown_keeps_budgets_too() -> None:
    at = cluster(nodes=3)
    at.budgets = [budget(1, app="owner-of-web")]
    at.restart()
    of_one_owner(at, "a", "b")
    assert (len(going(at, "n1")), [*why_stays(at, "n1").values()]) == (1, [Stays.BUDGET.value])
    at.spared |= {"a", "b"}
    empty(at, "n1")
    assert (len(going(at)), [*why_stays(at).values()]) == (1, [Stays.BUDGET.value])


def test_places_are_for_one_pod_each_also_by_what_else_a_pod_needs() -> None:
    at = cluster(nodes=1)
    at.add_node("n2", cpu="1")
    for name in ("a", "b"):
        run(at, name, 1, "n1", said=MOVABLE)
    assert (len(going(at, "n1")), len(why_stays(at, "n1"))) == (1, 1)


def test_a_pod_that_was_placeless_for_a_gang_may_have_a_place_now() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    who, uid = at.core._planner.who_may_move, at.pod("web").metadata.uid
    who.stays(uid, at.now + HOUR, Stays.NO_PLACE)
    empty(at, "n1")
    assert at.evicted == ["web"]


def test_a_pod_that_is_ending_stays() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    at.terminate("web")
    empty(at, "n1")
    assert (at.evicted, why_stays(at)) == ([], {"web": Stays.LEAVES.value})


def test_the_core_looks_again_by_itself_while_a_node_is_emptied() -> None:
    at = cluster()
    empty(at, "n1")
    at.pass_time(1.0)
    due = at.core.next_due()
    assert due is not None
    assert at.now < due <= at.now + TRY_SECONDS


def test_what_finds_no_place_is_tried_again_every_minute() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "full", 8, "n2")
    empty(at, "n1")
    assert (at.evicted, why_stays(at)) == ([], {"web": Stays.NO_PLACE.value})
    at.delete("full")
    at.stop("full", "n2")
    at.pass_time(TRY_SECONDS)
    assert at.evicted == ["web"]


# What comes to such a node.


def test_no_new_pod_goes_there_while_it_is_emptied() -> None:
    at = cluster(Moves.NEVER)
    empty(at, "n1")
    at.add_pod("single", 1)
    at.add_gang("gang", 2)
    at.add_pod("gated", 8, gates=[names.GATE])
    at.settle()
    assert at.filter("single").failed["n1"] == EMPTIED
    assert at.places("gang-0", "gang-1", "gated") == ["", "", "n2"]
    at.add_node("n3")
    empty(at, "n1", said=None)
    assert sorted(at.places("gang-0", "gang-1", "gated")) == ["n1", "n2", "n3"]


def test_a_pod_that_was_let_through_before_is_not_bound_there() -> None:
    at = cluster()
    at.add_pod("single", 1)
    at.filter("single", ["n1"])
    empty(at, "n1")
    refused = at.come_to_bind("single", "n1")
    assert "being emptied" in str(refused)


def test_what_is_planned_there_may_still_come() -> None:
    at = cluster(nodes=1)
    at.add_pod("gated", 8, gates=[names.GATE])
    at.settle()
    empty(at, "n1")
    assert at.schedule("gated") == "n1"


def test_no_pod_is_placed_there_by_count() -> None:
    at = cluster(nodes=1)
    at.annotate_node("n1", names.TOPOLOGY, None)
    at.add_pod("single", 1)
    assert at.filter("single").node_names == ("n1",)
    empty(at, "n1")
    assert at.filter("single").failed == {"n1": EMPTIED}


def test_such_a_node_is_counted_apart() -> None:
    at = cluster()
    empty(at, "n1")
    counts = at.core.counts(at.now).nodes
    assert counts == {"usable": 1, "unusable": 0, "emptied": 1, "by-count": 0, "claims": 0}


def test_a_gang_that_waits_reserves_elsewhere() -> None:
    at = cluster()
    run(at, "server", 8, "n2")
    run(at, "other", 4, "n1")
    waits(at)
    empty(at, "n1")
    at.pass_time(HOUR)
    assert all("n1" not in each.gpus for each in at.core.reservations.all())


# From the target to the end.


def test_the_target_is_for_the_replacement_alone() -> None:
    at = moving()
    at.add_pod("other", 8)
    at.add_pod("small", 5)
    assert (at.filter("other").node_names, at.filter("small").node_names) == ((), ())


def test_the_move_is_shown_until_the_replacement_has_its_target() -> None:
    at = moving()
    [plan] = view_moves(at.core.snapshot(at.now)).plans
    assert (plan.for_whom, plan.gpus, plan.saved_gpu_seconds) == ("node n1", 0, 0.0)
    assert plan.lost_gpu_seconds == 2400.0
    assert [move.state for move in shown(at).moves] == [MoveState.LEFT]
    assert shown(at, "n2").moves == ()
    recreated(at, "web", "web-2")
    assert view_moves(at.core.snapshot(at.now)).plans == ()
    assert shown(at).moves == ()
    assert at.core.counts(at.now).moves.arrived == 1


def test_the_moves_of_one_node_are_one_plan() -> None:
    at = cluster()
    for name in ("a", "b"):
        run(at, name, 2, "n1", said=MOVABLE)
    empty(at, "n1")
    [plan] = view_moves(at.core.snapshot(at.now)).plans
    assert (len(plan.moves), plan.lost_gpu_seconds) == (2, 2400.0)


def test_the_target_is_given_back_if_no_pod_comes() -> None:
    at = moving()
    bury(at, "web")
    at.pass_time(COME_SECONDS + 1)
    assert (free(at, "n2"), at.core.counts(at.now).moves.given_back) == (8, 1)


def test_a_pod_that_cannot_be_evicted_keeps_no_target() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    at.spared.add("web")
    empty(at, "n1")
    assert free(at, "n2") == 4
    at.pass_time(EVICT_SECONDS)
    assert (free(at, "n2"), why_stays(at)) == (8, {"web": Stays.AGAIN.value})
    at.settle()
    assert names.QUEUE not in at.pod("web").metadata.annotations


def test_a_target_is_kept_while_its_pod_is_being_evicted() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    at.annotate_node("n1", names.EMPTY, "true")
    [evict] = evictions(at)
    at.now += EVICT_SECONDS
    at.core.decide(at.now)
    assert free(at, "n2") == 4
    at.core.done(evict, at.carry_out(evict), at.now)
    recreated(at, "web", "web-2")
    assert at.schedule("web-2") == "n2"


def test_no_more_is_evicted_once_the_annotation_is_gone() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    at.spared.add("web")
    empty(at, "n1")
    at.spared.clear()
    empty(at, "n1", said=None)
    at.pass_time(HOUR)
    assert (at.evicted, free(at, "n2")) == ([], 8)
    assert names.QUEUE not in at.pod("web").metadata.annotations


def test_a_pod_is_evicted_once() -> None:
    at = moving()
    at.pass_time(TRY_SECONDS)
    at.pass_time(TRY_SECONDS)
    assert at.evicted == ["web"]


def test_it_is_evicted_only_once_its_target_is_noted() -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    at.annotate_node("n1", names.EMPTY, "true")
    assert evictions(at)


def evictions(at: Cluster) -> list[Evict]:
    """What is evicted in the next round but one, and not carried out: the first writes notes."""
    notes = at.core.decide(at.now)
    assert not any(isinstance(action, Evict) for action in notes)
    for action in notes:
        at.core.done(action, at.carry_out(action), at.now)
    return [action for action in at.core.decide(at.now) if isinstance(action, Evict)]


# A new leader.


@both
def test_a_new_leader_keeps_the_target_of_a_pod_that_is_ending(standby: bool) -> None:
    at = moving()
    lead(at, standby=standby)
    at.add_pod("other", 8)
    assert at.filter("other").node_names == ()
    recreated(at, "web", "web-2")
    assert (at.schedule("web-2"), at.evicted) == ("n2", ["web"])


@both
def test_without_its_pod_the_target_is_lost_and_the_new_pod_is_placed_like_any_other(
    standby: bool,
) -> None:
    at = moving()
    bury(at, "web")
    lead(at, standby=standby)
    at.add_pod("web-2", 4, alter=owned_by("ReplicaSet", "owner-of-web"), said=MOVABLE)
    assert (at.schedule("web-2"), at.sound()) == ("n2", True)


@both
def test_a_new_leader_goes_on_with_what_was_not_evicted(standby: bool) -> None:
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE)
    at.spared.add("web")
    empty(at, "n1")
    at.spared.clear()
    lead(at, standby=standby)
    assert (at.evicted, going(at)) == (["web"], {"web": "n2"})
