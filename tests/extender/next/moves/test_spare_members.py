"""A member that its gang can spare moves alone, if each pod of it is a communicator of its own."""

from typing import Any

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.next.moves.targets import COME_SECONDS
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.next.moves.gang_movers import RACK, Said, job, member, on_node, start
from tests.extender.next.moves.movers import (
    HOUR,
    IGNORES,
    both,
    bury,
    cluster,
    fail,
    lead,
    run,
    waits,
)
from tests.extender.next.preemption.victims import budget

APART = {"communicator": "pod"}
STAYS = {"movable": "false"}


def trials(
    at: Cluster,
    *,
    size: int = 2,
    least: int = 1,
    said: Said = APART,
    first: Said | None = None,
    kind: str = "ReplicaSet",
    ranks: tuple[int | None, ...] = (0, 1, 2),
    opens: str = "n2",
) -> None:
    """The members of gang g have four GPUs each, on n1, n2 and so on. If the one on node *opens*
    goes to the last node, there is room for `big`."""
    last = f"n{len(at.nodes)}"
    for number in range(1, size + 1):
        run(at, f"on-n{number}", 4, f"n{number}")
    run(at, f"on-{last}", 4, last)
    run(at, f"stays-on-{last}", 4, last)
    sizes = {"gang_size": str(size), "gang_min": str(least)}
    pods = [f"g-{number}" for number in range(size)]
    for name, rank in zip(pods, ranks, strict=False):
        more = first or {} if name == "g-0" else {}
        member(at, name, rank, kind=kind, said={**said, **sizes, **more})
    assert start(at, *pods) == [f"n{number}" for number in range(1, size + 1)]
    bury(at, f"on-{opens}")
    bury(at, f"on-{last}")
    at.pass_time(5 * HOUR)


def again(
    at: Cluster, name: str, rank: int | None, *, size: int = 2, least: int = 1, gpus: int = 4
) -> None:
    """Its controller makes a new member."""
    sizes = {"gang_size": str(size), "gang_min": str(least)}
    member(at, name, rank, gpus, said={**APART, **sizes})
    at.settle()


def test_a_spare_member_moves_alone() -> None:
    at = cluster(nodes=3)
    trials(at)
    waits(at)
    assert at.evicted == ["g-1"]
    bury(at, "g-1")
    again(at, "h-1", 1)
    assert [at.schedule(name) for name in ("h-1", "big")] == ["n3", "n2"]
    counts = at.core._planner.targets.counts
    assert (counts.begun, counts.arrived, counts.lost_gpu_seconds) == (1, 1, 4 * 600)
    plan, other = at.plan("h-1"), at.plan("g-0")
    assert plan is not None
    assert other is not None
    assert plan.moved > 0
    assert plan.id == other.id
    assert at.sound()


@pytest.mark.parametrize(
    ("said", "least"),
    [({}, 1), (APART, 2), ({**APART, "movable": "false"}, 1)],
    ids=["they communicate", "none is spare", "no consent"],
)
def test_it_stays(said: Said, least: int) -> None:
    at = cluster(nodes=3)
    trials(at, said=said, least=least)
    waits(at)
    assert at.evicted == []


@pytest.mark.parametrize(("opens", "least"), [("n1", 1), ("n2", 2)])
def test_those_of_the_first_ranks_are_never_spare(opens: str, least: int) -> None:
    at = cluster(nodes=4)
    trials(at, size=3, least=least, opens=opens)
    waits(at)
    assert at.evicted == []


@pytest.mark.parametrize("first", [STAYS, {"move_cost": "10h"}, {"expected_duration": "6h5m"}])
def test_what_the_others_say_does_not_count(first: Said) -> None:
    at = cluster(nodes=3)
    trials(at, first=first)
    waits(at)
    assert at.evicted == ["g-1"]


@pytest.mark.parametrize(("rules", "moves"), [([IGNORES], True), ([], False)])
def test_an_index_of_a_job_keeps_its_number(rules: list[object], moves: bool) -> None:
    at = cluster(nodes=3)
    job(at, *rules)
    trials(at, kind="Job")
    waits(at)
    assert at.evicted == (["g-1"] if moves else [])


def test_a_budget_has_to_allow_the_one() -> None:
    at = cluster(nodes=3)
    at.budgets = [budget(1, app="g")]
    at.restart()
    trials(at)
    waits(at)
    assert at.evicted == ["g-1"]


@pytest.mark.parametrize(("racks", "moves"), [("aaa", True), ("aab", False), ("abb", True)])
def test_the_gang_gets_no_farther_apart(racks: str, moves: bool) -> None:
    settings = CoreSettings(moves=MovePolicy(Moves.CONSENT), span_levels=(RACK,))
    at = Cluster(settings=settings)
    for number, rack in enumerate(racks, 1):
        at.add_node(f"n{number}", labels={RACK: rack})
    trials(at)
    waits(at)
    assert at.evicted == (["g-1"] if moves else [])


@pytest.mark.parametrize(("racks", "moves"), [("aaba", ["g-1"]), ("aabb", [])])
def test_a_required_span_holds_with_those_that_stay(racks: str, moves: list[str]) -> None:
    at = Cluster(settings=CoreSettings(moves=MovePolicy(Moves.CONSENT)))
    for number, rack in enumerate(racks, 1):
        at.add_node(f"n{number}", labels={RACK: rack})
    run(at, "on-n3", 4, "n3")
    trials(at, said={**APART, "require_span": RACK})
    waits(at)
    assert at.evicted == moves
    plans = at.core._planner.moves.plans.values()
    assert [move.spot.node for plan in plans for move in plan.moves] == ["n4"] * len(moves)


def test_of_two_on_one_node_none_moves_alone() -> None:
    at = cluster(nodes=2)
    run(at, "on-n2", 8, "n2")
    sizes = {"gang_size": "2", "gang_min": "1"}
    for number in range(2):
        member(at, f"g-{number}", number, 2, said={**APART, **sizes})
    assert start(at, "g-0", "g-1") == ["n1", "n1"]
    bury(at, "on-n2")
    run(at, "stays-on-n2", 4, "n2")
    at.pass_time(5 * HOUR)
    waits(at, gpus=6)
    assert at.evicted == ["g-0", "g-1"]


def test_only_one_of_a_gang_moves_at_a_time() -> None:
    """For one on n2 and n3, both spare members would have to leave, to n4 and n5."""
    at = cluster(nodes=5)
    run(at, "on-n4", 4, "n4")
    run(at, "stays-on-n4", 4, "n4")
    trials(at, size=3)
    bury(at, "on-n3")
    bury(at, "on-n4")
    for number in range(2):
        at.add_pod(f"big-{number}", 8, gates=[names.GATE], said={"gang": "b", "gang_size": "2"})
    at.settle()
    at.pass_time(HOUR)
    assert at.evicted == []


def test_the_next_one_moves_once_the_gang_is_whole_again() -> None:
    at = cluster(nodes=4)
    trials(at, size=3)
    bury(at, "on-n3")
    bury(at, "stays-on-n4")
    for name, node in (("one", "n2"), ("two", "n3")):
        there = on_node(lambda pod: pod, {"kubernetes.io/hostname": node})
        at.add_pod(name, 8, gates=[names.GATE], alter=there)
    at.settle()
    at.pass_time(HOUR)
    assert at.evicted == ["g-1"]
    bury(at, "g-1")
    again(at, "h-1", 1, size=3)
    assert start(at, "h-1") == ["n4"]
    at.pass_time(HOUR)
    assert at.evicted == ["g-1", "g-2"]


@pytest.mark.parametrize(
    ("nodes", "said", "spared"),
    [(3, {}, "g-1"), (4, {"size": 3, "least": 2, "opens": "n3"}, "g-2")],
    ids=["of two", "of three"],
)
def test_it_stays_if_the_gang_has_no_more_than_its_minimum_meanwhile(
    nodes: int, said: dict[str, Any], spared: str
) -> None:
    at = cluster(nodes=nodes)
    trials(at, **said)
    at.spared.add(spared)
    waits(at)
    assert at.core._planner.moves.plans
    fail(at, "g-0", "n1")
    at.spared.clear()
    at.pass_time(60)
    assert at.evicted == []


def test_the_replacement_of_another_member_does_not_get_its_target() -> None:
    at = cluster(nodes=4)
    trials(at, size=3, ranks=(None, None, None))
    at.spared.add("g-1")
    waits(at)
    bury(at, "g-2")
    again(at, "h-2", None, size=3)
    assert at.places("h-2") != ["n4"]
    assert at.core._planner.targets.counts.arrived == 0


def test_a_member_that_is_lost_meanwhile_is_repaired() -> None:
    at = cluster(nodes=4)
    trials(at, size=3)
    waits(at)
    assert at.evicted == ["g-1"]
    bury(at, "g-1")
    bury(at, "g-2")
    again(at, "h-2", 2, size=3)
    assert at.places("h-2") == ["n3"]


def test_its_target_is_given_back_if_no_other_comes() -> None:
    at = cluster(nodes=3)
    trials(at)
    waits(at)
    bury(at, "g-1")
    at.add_pod("other", 4)
    assert at.schedule("other") == ""
    at.schedule("big")
    at.pass_time(COME_SECONDS)
    assert at.schedule("other") == "n3"


def test_one_that_asks_for_something_else_is_placed_as_after_any_failure() -> None:
    at = cluster(nodes=3)
    trials(at)
    waits(at)
    bury(at, "g-1")
    at.schedule("big")
    again(at, "h-1", 1, gpus=2)
    assert at.places("h-1") == ["n3"]
    plan = at.plan("h-1")
    assert plan is not None
    assert plan.moved == 0
    assert at.core._planner.targets.counts.given_back == 1


@both
def test_the_next_leader_keeps_its_target(standby: bool) -> None:
    at = cluster(nodes=3)
    trials(at)
    waits(at)
    bury(at, "g-1")
    lead(at, standby=standby)
    at.add_pod("other", 4)
    assert at.filter("other").node_names == ()
    again(at, "h-1", 1)
    assert at.places("h-1", "big") == ["n3", "n2"]


def test_one_that_was_moved_stays_for_a_day() -> None:
    at = cluster(nodes=3)
    trials(at)
    waits(at)
    bury(at, "g-1")
    again(at, "h-1", 1)
    assert start(at, "h-1") == ["n3"]
    at.delete("big")
    bury(at, "stays-on-n3")
    run(at, "on-n2", 4, "n2")
    at.pass_time(5 * HOUR)
    waits(at, "next")
    assert at.evicted == ["g-1"]


def test_advice_is_gone_once_a_member_is_lost() -> None:
    at = cluster(Moves.ADVISE, nodes=3)
    trials(at)
    waits(at)
    [plan] = at.core._planner.moves.advice.values()
    assert [(move.pod.ref.name, move.spot.node) for move in plan.moves] == [("g-1", "n3")]
    bury(at, "g-0")
    at.pass_time(1)
    assert not at.core._planner.moves.advice


def test_advice_is_gone_once_more_members_are_needed() -> None:
    at = cluster(Moves.ADVISE, nodes=3)
    trials(at)
    waits(at)
    pod = at.pod("g-0")
    said = {**pod.metadata.annotations, names.GANG_MIN: "2"}
    at.put_pod(change(pod, metadata=change(pod.metadata, annotations=said)))
    at.pass_time(1)
    assert not at.core._planner.moves.advice
