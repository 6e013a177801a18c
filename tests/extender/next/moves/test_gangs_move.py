"""A gang that consents moves as a whole, or not at all."""

import json
from dataclasses import replace

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.next.moves.targets import COME_SECONDS
from linkwise.extender.state.actions import Action, Evict, NoteQueue
from linkwise.extender.state.extender_calls import Outcome
from linkwise.pods.spans import ZONE
from linkwise.topology import names
from tests.extender.cluster import Cluster
from tests.extender.next.moves.gang_movers import RACK, Said, job, member, on_node, start
from tests.extender.next.moves.movers import (
    HOUR,
    IGNORES,
    MOVABLE,
    both,
    bury,
    cluster,
    fail,
    lead,
    owned_by,
    run,
    waits,
)
from tests.extender.next.preemption.victims import budget


def spread(
    at: Cluster,
    *,
    kind: str = "ReplicaSet",
    said: tuple[Said, Said] = ({}, {}),
    ranks: tuple[int | None, int | None] = (0, 1),
    priority: int = 0,
    waiting: bool = True,
    server: bool = False,
) -> None:
    """The two members of gang g are on n1 and n2. Four GPUs each of n1, n3 and n4 are free: if the
    gang goes to n3 and n4, there is room for `big` on n1."""
    for node, gpus in {"n1": 4, "n2": 4, "n3": 8, "n4": 8}.items():
        run(at, f"on-{node}", gpus, node, server=server)
    for name, rank, more in zip(("g-0", "g-1"), ranks, said, strict=True):
        member(at, name, rank, kind=kind, said=more, priority=priority, server=server)
    assert start(at, "g-0", "g-1") == ["n1", "n2"]
    for node in ("n1", "n3", "n4"):
        bury(at, f"on-{node}")
    for node in ("n3", "n4"):
        run(at, f"stays-on-{node}", 4, node, server=server)
    at.pass_time(5 * HOUR)
    if waiting:
        waits(at)


def on_four(settings: CoreSettings | None = None) -> Cluster:
    at = Cluster(settings=settings or CoreSettings(moves=MovePolicy(Moves.CONSENT)))
    for number in range(1, 5):
        at.add_node(f"n{number}")
    return at


def recreated(at: Cluster, gpus: int = 4) -> None:
    """Both members are gone, and their controller makes two new ones, the last rank first."""
    for name in ("g-0", "g-1"):
        bury(at, name)
    for name, rank in (("h-1", 1), ("h-0", 0)):
        member(at, name, rank, gpus)
    at.settle()


def test_a_gang_moves_as_a_whole() -> None:
    at = on_four()
    spread(at)
    assert at.evicted == ["g-0", "g-1"]
    recreated(at)
    assert [at.schedule(name) for name in ("h-0", "h-1", "big")] == ["n3", "n4", "n1"]
    assert at.sound()


@pytest.mark.parametrize(("priority", "moves"), [(0, False), (-1, True)])
def test_no_gang_goes_where_kube_scheduler_keeps_room_for_a_pod_as_important(
    priority: int, moves: bool
) -> None:
    at = on_four()
    spread(at, waiting=False)
    at.add_pod("other", 4, priority=priority)
    at.nominate("other", "n3")
    waits(at)
    assert at.evicted == (["g-0", "g-1"] if moves else [])


@pytest.mark.parametrize(("rules", "moves"), [([IGNORES], True), ([], False)])
def test_a_gang_of_a_job_moves_if_that_counts_no_eviction(rules: list[object], moves: bool) -> None:
    at = on_four()
    job(at, *rules)
    spread(at, kind="Job")
    assert at.evicted == (["g-0", "g-1"] if moves else [])


def test_each_index_of_a_job_gets_its_own_target() -> None:
    at = on_four()
    job(at, IGNORES)
    spread(at, kind="Job")
    for name in ("g-0", "g-1"):
        bury(at, name)
    member(at, "a", 1, kind="Job")
    member(at, "b", 0, kind="Job")
    at.settle()
    assert at.places("b", "a") == ["n3", "n4"]


def test_each_pod_of_a_stateful_set_gets_its_own_target() -> None:
    at = on_four()
    spread(at, kind="StatefulSet", ranks=(None, None))
    for name in ("g-0", "g-1"):
        bury(at, name)
    for name in ("g-1", "g-0"):
        member(at, name, None, kind="StatefulSet")
    at.settle()
    assert at.places("g-0", "g-1") == ["n3", "n4"]


def test_nothing_is_planned_before_all_members_are_there() -> None:
    at = on_four()
    spread(at)
    bury(at, "g-0")
    member(at, "h-0", 0)
    at.settle()
    assert at.schedule("h-0") == ""
    member(at, "h-1", 1)
    at.settle()
    assert at.places("h-0", "h-1") == ["n3", "n4"]


def test_no_other_gets_the_targets_meanwhile() -> None:
    at = on_four()
    spread(at)
    for name in ("other-1", "other-2"):
        at.add_pod(name, 4)
    at.settle()
    assert [at.schedule(name) for name in ("other-1", "other-2")] == ["", ""]


@pytest.mark.parametrize(
    "one",
    [{"movable": "false"}, {"move_cost": "10h"}, {"expected_duration": "6h5m"}],
    ids=["no consent", "too costly", "ends soon"],
)
def test_one_member_that_stays_keeps_all(one: Said) -> None:
    at = on_four()
    spread(at, said=({}, one))
    assert at.evicted == []


def test_a_gang_stays_for_less_important_work() -> None:
    at = on_four()
    spread(at, priority=1)
    assert at.evicted == []


def test_a_gang_that_lacks_a_member_stays() -> None:
    at = on_four()
    spread(at, waiting=False)
    bury(at, "g-1")
    waits(at)
    assert at.evicted == []


def test_a_gang_of_which_a_member_began_a_while_ago_stays() -> None:
    at = on_four()
    spread(at, waiting=False)
    bury(at, "g-1")
    member(at, "h-1", 1)
    assert start(at, "h-1") == ["n2"]
    waits(at)
    assert at.evicted == []


@pytest.mark.parametrize(("allowed", "moves"), [(1, False), (2, True)])
def test_a_budget_has_to_allow_all_members(allowed: int, moves: bool) -> None:
    at = on_four()
    at.budgets = [budget(allowed, app="g")]
    at.restart()
    spread(at)
    assert at.evicted == (["g-0", "g-1"] if moves else [])


def test_the_move_costs_what_the_restart_of_the_whole_gang_costs() -> None:
    """Four of its eight GPUs are in the way. Eight lose 20 min each, eight wait for 12, then 72."""
    at = on_four()
    spread(at, said=({"move_cost": "20m"}, {"move_cost": "1m"}), waiting=False)
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.pass_time(720)
    assert at.evicted == []
    at.pass_time(HOUR)
    assert at.evicted == ["g-0", "g-1"]
    assert at.core._planner.targets.counts.lost_gpu_seconds == 8 * 1200


@pytest.mark.parametrize(("racks", "moves"), [("aaaa", True), ("aaab", False), ("abab", True)])
def test_a_gang_goes_no_farther_apart(racks: str, moves: bool) -> None:
    at = Cluster(
        settings=CoreSettings(moves=MovePolicy(Moves.CONSENT), span_levels=(RACK,)),
    )
    for number, rack in enumerate(racks, 1):
        at.add_node(f"n{number}", labels={RACK: rack})
    spread(at)
    assert at.evicted == (["g-0", "g-1"] if moves else [])


@pytest.mark.parametrize(("racks", "moves"), [("aabccd", True), ("aabcde", False)])
def test_a_gang_goes_into_no_more_racks(racks: str, moves: bool) -> None:
    at = Cluster(
        settings=CoreSettings(moves=MovePolicy(Moves.CONSENT), span_levels=(RACK, ZONE)),
    )
    nodes = [f"n{number}" for number in range(1, 7)]
    for node, rack in zip(nodes, racks, strict=True):
        at.add_node(node, labels={RACK: rack, ZONE: "z"})
        run(at, f"on-{node}", 4 if node in nodes[:3] else 8, node)
    names = ["g-0", "g-1", "g-2"]
    for rank, name in enumerate(names):
        member(at, name, rank, said={"gang_size": "3"})
    assert start(at, *names) == nodes[:3]
    for node in ("n1", *nodes[3:]):
        bury(at, f"on-{node}")
    for node in nodes[3:]:
        run(at, f"stays-on-{node}", 4, node)
    at.pass_time(5 * HOUR)
    waits(at)
    assert at.evicted == (names if moves else [])


def test_no_member_gets_worse_links() -> None:
    at = Cluster(settings=CoreSettings(moves=MovePolicy(Moves.CONSENT)))
    for node in ("n1", "n2", "n3"):
        at.add_node(node)
    at.add_node("n4", "p100-pcie-8")
    spread(at)
    assert at.evicted == []


def test_if_a_member_does_not_come_the_targets_are_given_back_together() -> None:
    at = on_four()
    job(at, IGNORES)
    spread(at, kind="Job")
    for name in ("g-0", "g-1"):
        bury(at, name)
    at.schedule("big")
    run(at, "fills", 4, "n2")
    member(at, "h-1", 1, kind="Job")
    at.add_pod("other", 4)
    at.settle()
    assert (at.schedule("h-1"), at.schedule("other")) == ("", "")
    at.pass_time(COME_SECONDS)
    assert at.schedule("other") in ("n3", "n4")
    assert at.schedule("h-1") == ""
    bury(at, "on-n2")
    member(at, "h-0", 0, kind="Job")
    at.settle()
    assert "" not in at.places("h-0", "h-1")
    assert at.core._planner.targets.counts.given_back == 2
    assert at.sound()


def test_a_gang_that_asks_for_something_else_is_placed_like_any_other() -> None:
    at = on_four()
    spread(at)
    at.schedule("big")
    recreated(at, gpus=2)
    assert at.places("h-0", "h-1") == ["n2", "n2"]
    counts = at.core._planner.targets.counts
    assert (counts.begun, counts.arrived, counts.given_back) == (2, 0, 2)
    plan = at.plan("h-0")
    assert plan is not None
    assert plan.moved == 0


def test_a_member_that_comes_twice_ends_the_move() -> None:
    at = on_four()
    spread(at)
    for name in ("g-0", "g-1"):
        bury(at, name)
    for name in ("h-0", "i-0"):
        member(at, name, 0)
    at.settle()
    assert at.core._planner.targets.counts.given_back == 2
    assert "" not in at.places("h-0", "i-0")


def test_targets_that_cannot_be_used_are_given_up_together() -> None:
    at = on_four()
    spread(at)
    at.set_health("n4", *range(8))
    recreated(at)
    assert "n3" not in at.places("h-0", "h-1") or "" not in at.places("h-0", "h-1")
    assert at.core._planner.targets.counts.given_back == 2


def test_a_gang_that_was_moved_stays_for_a_day() -> None:
    at = on_four()
    spread(at)
    recreated(at)
    plans = [at.plan("h-0"), at.plan("h-1")]
    assert all(plan is not None and plan.moved > 0 for plan in plans)
    assert start(at, "h-0", "h-1") == ["n3", "n4"]
    at.delete("big")
    at.settle()
    at.pass_time(5 * HOUR)
    for node in ("n1", "n2"):
        run(at, f"again-on-{node}", 4, node)
    bury(at, "stays-on-n3")
    waits(at, "next")
    assert at.evicted == ["g-0", "g-1"]
    assert not at.core._awaited


def test_the_rest_of_a_gang_follows_if_nobody_needs_the_room_any_more() -> None:
    at = on_four()
    at.spared.add("g-1")
    spread(at)
    assert at.evicted == ["g-0"]
    at.delete("big")
    member(at, "h-0", 0)
    at.settle()
    assert at.schedule("h-0") == ""
    at.spared.clear()
    at.pass_time(60)
    assert at.evicted == ["g-0", "g-1"]
    for name in ("g-0", "g-1"):
        bury(at, name)
    member(at, "h-1", 1)
    at.settle()
    assert at.places("h-0", "h-1") == ["n3", "n4"]


def test_a_gang_that_cannot_be_evicted_as_a_whole_is_repaired() -> None:
    at = on_four()
    at.spared.add("g-1")
    spread(at)
    member(at, "h-0", 0)
    bury(at, "g-0")
    at.delete("big")
    at.pass_time(60)
    assert at.places("h-0") == [""]
    at.pass_time(COME_SECONDS)
    assert at.places("h-0") != [""]
    assert at.core._planner.targets.counts.given_back == 2


def test_a_member_that_fails_by_itself_before_ends_the_move() -> None:
    at = on_four()
    at.spared |= {"g-0", "g-1"}
    spread(at)
    assert at.core._planner.moves.plans
    fail(at, "g-0", "n1")
    at.spared.clear()
    at.pass_time(60)
    assert at.evicted == []
    assert at.core._planner.targets.counts.given_back == 2


@both
def test_the_next_leader_keeps_all_targets_of_a_gang(standby: bool) -> None:
    at = on_four()
    spread(at)
    bury(at, "g-0")
    lead(at, standby=standby)
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ()
    bury(at, "g-1")
    for name, rank in (("h-1", 1), ("h-0", 0)):
        member(at, name, rank)
    at.settle()
    assert at.places("h-0", "h-1", "big") == ["n3", "n4", "n1"]


@both
def test_the_next_leader_repairs_a_gang_that_was_evicted_by_half(standby: bool) -> None:
    at = on_four()
    at.spared.add("g-1")
    spread(at)
    bury(at, "g-0")
    lead(at, standby=standby)
    member(at, "h-0", 0)
    at.settle()
    assert at.evicted == ["g-0"]
    assert at.places("h-0") != [""]


@both
def test_the_next_leader_keeps_no_target_of_a_gang_if_one_is_used(standby: bool) -> None:
    at = on_four()
    spread(at)
    for name in ("g-0", "g-1"):
        bury(at, name)
    for name, node in (("fills", "n2"), ("sneaks-in", "n4")):
        at.add_pod(name, 4, node=node)
    lead(at, standby=standby)
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ("n3",)


def test_a_gang_of_more_pods_than_a_note_has_room_for_stays() -> None:
    at = cluster(nodes=6)
    for node in ("n4", "n5", "n6"):
        run(at, f"on-{node}", 8, node)
    pods = [f"g-{number}" for number in range(17)]
    for number, name in enumerate(pods):
        member(at, name, number, 1, said={"gang_size": "17"})
    assert {*start(at, *pods)} == {"n1", "n2", "n3"}
    for node in ("n4", "n5", "n6"):
        bury(at, f"on-{node}")
        run(at, f"stays-on-{node}", 1, node)
    at.pass_time(5 * HOUR)
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.pass_time(HOUR)
    assert at.evicted == []


def test_advice_names_all_members() -> None:
    at = on_four(CoreSettings(moves=MovePolicy(Moves.ADVISE)))
    spread(at)
    assert at.evicted == []
    [plan] = at.core._planner.moves.advice.values()
    assert [(move.pod.ref.name, move.spot.node) for move in plan.moves] == [
        ("g-0", "n3"),
        ("g-1", "n4"),
    ]
    member(at, "g-2", 2)
    at.settle()
    at.pass_time(1)
    assert not at.core._planner.moves.advice


def test_no_member_moves_alone_while_nothing_is_known_of_its_gang() -> None:
    at = on_four()
    job(at, IGNORES)
    spread(at, kind="Job", waiting=False)
    owners, at.owners = at.owners, None  # the API server does not respond
    at.restart()
    waits(at)
    assert at.evicted == []
    at.owners = owners
    at.pass_time(60)
    at.pass_time(HOUR)
    assert at.evicted == ["g-0", "g-1"]


def test_a_gang_of_servers_moves_for_one_that_has_no_reservation() -> None:
    at = on_four()
    spread(at, server=True)
    assert at.evicted == ["g-0", "g-1"]


def test_members_that_do_not_communicate_go_no_farther_apart_either() -> None:
    settings = CoreSettings(moves=MovePolicy(Moves.CONSENT), span_levels=(RACK,))
    at = Cluster(settings=settings)
    for number, rack in enumerate("aaab", 1):
        at.add_node(f"n{number}", labels={RACK: rack})
    spread(at, said=({"communicator": "pod"}, {"communicator": "pod"}))
    assert at.evicted == []


def test_all_gpus_together_are_linked_as_well_as_before() -> None:
    """Each member would have two NVLinks on n2, and none would lead from one to the other."""
    at = cluster()
    for name in ("g-0", "g-1"):
        member(at, name, int(name[-1]), 2)
    assert start(at, "g-0", "g-1") == ["n1", "n1"]
    run(at, "stays", 4, "n2")
    at.start("stays", {"main": at.uuids("n2", 1, 2, 4, 7)})
    at.pass_time(5 * HOUR)
    waits(at)
    assert at.evicted == []


def test_gangs_that_budgets_protect_do_not_keep_others_from_moving() -> None:
    at = cluster(nodes=13)
    at.budgets = [budget(1, app="cheap")]
    at.restart()
    for number in range(5, 14):
        said = {**MOVABLE, "gang": f"c{number}", "gang_size": "2", "move_cost": "1s"}
        pods = [f"c{number}-{rank}" for rank in range(2)]
        for name in pods:
            alter = owned_by("ReplicaSet", "cheap")
            selector = {"kubernetes.io/hostname": f"n{number}"}
            at.add_pod(name, 4, said=said, alter=on_node(alter, selector))
        start(at, *pods)
    spread(at)
    assert at.evicted == ["g-0", "g-1"]


def test_a_member_that_its_owner_deletes_takes_no_other_with_it() -> None:
    at = on_four()
    carry_out = at.carry_out
    at.carry_out = lambda action: (  # type: ignore[method-assign]
        Outcome.REFUSED if isinstance(action, NoteQueue) else carry_out(action)
    )
    spread(at)
    assert at.core._planner.moves.plans
    at.terminate("g-0")
    at.delete("big")
    at.pass_time(60)
    assert at.evicted == []


def test_no_member_is_evicted_before_all_targets_are_noted() -> None:
    at = on_four()
    carry_out = at.carry_out

    def note_one(action: Action) -> Outcome:
        if isinstance(action, NoteQueue) and (text := action.annotations[names.QUEUE]):
            note = json.loads(text)
            note["moves"] = note.get("moves", [])[:1]
            action = replace(action, annotations={names.QUEUE: json.dumps(note)})
        return carry_out(action)

    at.carry_out = note_one  # type: ignore[method-assign]
    spread(at, waiting=False)
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.now += HOUR
    for _ in range(5):
        at.decide()
    assert at.core._planner.moves.plans
    assert at.evicted == []


def test_an_eviction_that_the_watch_does_not_show_yet_is_waited_for() -> None:
    at = on_four()
    carry_out = at.carry_out
    at.carry_out = lambda action: (  # type: ignore[method-assign]
        Outcome.DONE
        if isinstance(action, Evict) and action.pod.name == "g-1"
        else carry_out(action)
    )
    spread(at)
    bury(at, "g-0")
    member(at, "h-0", 0)
    at.settle()
    assert at.places("h-0") == [""]
    bury(at, "g-1")
    member(at, "h-1", 1)
    at.settle()
    assert at.places("h-0", "h-1") == ["n3", "n4"]


@both
def test_a_single_pod_of_the_same_owner_gets_no_target_of_the_gang(standby: bool) -> None:
    at = on_four()
    spread(at)
    for name in ("g-0", "g-1"):
        bury(at, name)
    at.add_pod("single", 4, alter=owned_by("ReplicaSet", "g"), said={**MOVABLE, "rank": "0"})
    lead(at, standby=standby)
    assert at.places("single") == [""]


def test_a_gang_that_may_start_with_fewer_does_once_its_targets_are_given_back() -> None:
    at = on_four()
    spread(at, said=({"gang_min": "1"}, {"gang_min": "1"}))
    for name in ("g-0", "g-1"):
        bury(at, name)
    at.schedule("big")
    for node in ("n3", "n4"):
        at.set_health(node, *range(8))
    member(at, "h-1", 1, said={"gang_min": "1"})
    at.settle()
    at.pass_time(60)
    assert at.places("h-1") == [""]
    at.pass_time(COME_SECONDS)
    assert at.places("h-1") == ["n2"]


def test_a_gang_of_one_member_moves() -> None:
    at = cluster(nodes=2)
    run(at, "stays", 4, "n2")
    run(at, "fills", 4, "n2")
    member(at, "g-0", 0, said={"gang_size": "1"})
    assert start(at, "g-0") == ["n1"]
    bury(at, "fills")
    at.pass_time(5 * HOUR)
    waits(at)
    assert at.evicted == ["g-0"]
