"""Running gangs and pods that would have better links on other GPUs are advised, and stay."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from linkwise.extender.api.views import MovePlanView, MoveState, MoveView
from linkwise.extender.core_settings import CoreSettings
from linkwise.extender.explain.moves import view_moves
from linkwise.extender.explain.texts import explanation_text
from linkwise.extender.moves import better_links
from linkwise.extender.moves.better_links import SOME_SECONDS
from linkwise.extender.moves.planned_moves import LOOK_SECONDS
from linkwise.extender.moves.policy import MovePolicy, Moves
from linkwise.topology import names
from tests.extender.cluster import START, Cluster
from tests.extender.moves.movers import HOUR, MOVABLE, bury, cluster, owned_by, run
from tests.extender.preemption.victims import budget, label

GANG = {**MOVABLE, "gang": "g", "gang_size": "2"}
COST = 600.0


def shown(at: Cluster) -> tuple[MovePlanView, ...]:
    return view_moves(at.core.snapshot(at.now)).plans


def gains(at: Cluster) -> dict[str, tuple[float, float]]:
    found = {plan.for_whom: plan.links for plan in shown(at)}
    return {who: (links.has, links.would_have) for who, links in found.items() if links}


def on(
    at: Cluster,
    name: str,
    node: str,
    *gpus: int,
    said: Mapping[str, str] = MOVABLE,
    **more: Any,
) -> None:
    """The pod runs on exactly these GPUs."""
    at.set_health(node, *({*range(8)} - {*gpus}))
    run(at, name, len(gpus), node, said=said, **more)
    at.set_health(node)
    at.settle()


def badly_linked(moves: Moves = Moves.ADVISE, *, hours: float = 5.0, **said: Any) -> Cluster:
    """Of the eight GPUs of a DGX-1, `web` has two with one NVLink; others have two."""
    at = cluster(moves, nodes=1)
    on(at, "web", "n1", 0, 1, said={**MOVABLE, **said})
    at.pass_time(hours * HOUR)
    return at


def gang(at: Cluster, *pods: str, gpus: int = 4, **said: Any) -> list[str]:
    """The members of gang g run; return their nodes."""
    for rank, name in enumerate(pods):
        words = {**GANG, "gang_size": str(len(pods)), "rank": str(rank), **said}
        at.add_pod(name, gpus, alter=owned_by("ReplicaSet", "g"), said=words)
    at.settle()
    nodes = [at.schedule(name) for name in pods]
    for name in pods:
        at.start(name)
        at.set_phase(name, "Running")
    at.settle()
    return nodes


def spread(moves: Moves = Moves.ADVISE, *, nodes: int = 2, **said: Any) -> Cluster:
    """Each of two members has four GPUs of a node, and all others have come free."""
    at = cluster(moves, nodes=nodes)
    for number in range(1, nodes + 1):
        run(at, f"on-n{number}", 4 if number < 3 else 8, f"n{number}")
    assert gang(at, "g-0", "g-1", **said) == ["n1", "n2"]
    for number in range(1, nodes + 1):
        bury(at, f"on-n{number}")
    at.pass_time(5 * HOUR)
    return at


def explained(at: Cluster, name: str) -> list[str]:
    found = at.core.explain("ml", name, at.now)
    assert found is not None
    return explanation_text.pod(found, at.now).splitlines()


def test_advice_names_the_pod_where_it_would_go_what_it_gains_and_what_that_costs() -> None:
    at = badly_linked()
    [plan] = shown(at)
    [move] = plan.moves
    assert move == MoveView("ml/web", "n1", "n1", move.gpus, 2 * COST, MoveState.IF_RESTARTED, None)
    assert len(move.gpus) == 2
    assert (plan.for_whom, plan.gpus, plan.lost_gpu_seconds) == ("pod ml/web", 2, 2 * COST)
    assert gains(at) == {"pod ml/web": (20.0, 40.0)}
    assert plan.saved_gpu_seconds == pytest.approx(0.5 * 2 * 5 * HOUR, rel=0.01)


def test_a_gang_over_two_nodes_would_be_on_one_with_its_own_gpus_there() -> None:
    at = spread()
    [plan] = shown(at)
    assert plan.for_whom == "gang ml/g#g"  # of ReplicaSet g
    assert [move.pod for move in plan.moves] == ["ml/g-0", "ml/g-1"]
    [node] = {move.target for move in plan.moves}
    assert node in ("n1", "n2")
    assert sorted(gpu for move in plan.moves for gpu in move.gpus) == [*range(8)]
    assert plan.links is not None
    assert plan.links.would_have == 120.0
    assert plan.links.reuses
    [worth] = [line for line in explained(at, "g-0") if line.startswith("  worth")]
    assert f"{plan.links.has:.1f} GB/s estimated" in worth


def test_it_says_if_none_of_the_gpus_are_its_own_now() -> None:
    at = spread(nodes=3)
    for node in ("n1", "n2"):
        run(at, f"again-on-{node}", 4, node)
    at.pass_time(SOME_SECONDS)
    [plan] = shown(at)
    assert {move.target for move in plan.moves} == {"n3"}
    assert plan.links is not None
    assert not plan.links.reuses


@pytest.mark.parametrize("moves", [Moves.ADVISE, Moves.CONSENT])
def test_nothing_is_evicted_or_reserved_in_any_mode(moves: Moves) -> None:
    at = spread(moves)
    assert gains(at)
    at.pass_time(HOUR)
    assert at.evicted == []
    assert not at.core.reservations.all()
    assert not at.core._awaited
    at.add_pod("other", 4)
    at.settle()
    assert at.schedule("other"), "the GPUs are free for others"
    assert at.sound()


def test_without_a_flag_there_is_no_advice() -> None:
    assert shown(spread(Moves.NEVER)) == ()
    assert shown(badly_linked(Moves.NEVER)) == ()


def test_a_gain_below_a_quarter_is_none() -> None:
    """GPUs of one half of this machine have 12 GB/s, and others 10. A better one is in use."""
    at = Cluster(settings=CoreSettings(moves=MovePolicy(Moves.ADVISE)))
    at.add_node("n1", "p100-pcie-8")
    on(at, "web", "n1", 0, 7)
    at.add_node("n2")
    run(at, "stays", 8, "n2")
    at.pass_time(5 * HOUR)
    assert shown(at) == ()


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        (5.0, {"movable": "false"}),
        (1.6, {}),
        (5.0, {"expected_duration": "5h9m"}),
        (5.0, {"move_cost": "31m"}),
    ],
    ids=["no consent", "began not long ago", "ends soon", "too costly"],
)
def test_what_may_not_move_gets_no_advice(hours: float, said: Mapping[str, Any]) -> None:
    assert shown(badly_linked(hours=hours, **said)) == ()


def test_what_a_budget_protects_gets_no_advice() -> None:
    at = cluster(Moves.ADVISE, nodes=1)
    at.budgets = [budget(0, app="owner-of-web")]
    at.restart()
    on(at, "web", "n1", 0, 1)
    at.pass_time(5 * HOUR)
    assert shown(at) == ()


def test_one_member_that_stays_keeps_the_gang() -> None:
    at = spread()
    at.annotate("g-1", movable="false")
    at.settle()
    assert shown(at) == ()
    at.pass_time(LOOK_SECONDS)
    assert shown(at) == ()


@pytest.mark.parametrize(("ends", "is_advised"), [("5h15m", False), ("5h25m", True)])
def test_the_rest_of_the_run_has_to_win_back_what_the_restart_costs(
    ends: str, is_advised: bool
) -> None:
    """With twice the bandwidth, it saves at most half of the rest. The restart costs 10 min."""
    assert bool(gains(badly_linked(expected_duration=ends))) is is_advised


def test_the_first_member_to_end_ends_the_run() -> None:
    at = spread()
    at.annotate("g-1", expected_duration="5h41m")
    at.settle()
    at.pass_time(LOOK_SECONDS)
    assert gains(at) == {}


def test_a_server_has_no_end_that_limits_what_it_saves() -> None:
    at = cluster(Moves.ADVISE, nodes=1)
    on(at, "web", "n1", 0, 1, server=True)
    at.pass_time(5 * HOUR)
    assert [plan.saved_gpu_seconds for plan in shown(at)] == [None]


def test_a_pod_with_its_preferred_link_gains_nothing() -> None:
    assert shown(badly_linked(prefer_link="switch")) == ()


def test_a_gang_with_its_preferred_link_gains_nothing() -> None:
    for link, is_advised in {"node": False, "nvlink": True}.items():
        at = cluster(Moves.ADVISE, nodes=1)
        at.set_health("n1", 2, 3, 4, 5)
        gang(at, "g-0", "g-1", gpus=2, prefer_link=link)
        at.set_health("n1")
        at.pass_time(5 * HOUR)
        assert bool(gains(at)) is is_advised


def test_members_that_do_not_communicate_gain_nothing() -> None:
    assert gains(spread(communicator="pod")) == {}


def test_reserved_gpus_are_for_the_one_that_waits() -> None:
    at = badly_linked()
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.pass_time(LOOK_SECONDS)
    assert at.core.reservations.all()
    assert gains(at) == {}


def test_an_own_gpu_that_is_ill_is_not_used_again() -> None:
    at = spread()
    for name, node in (("g-0", "n1"), ("g-1", "n2")):
        [uuids] = at.gpus(name).values()
        at.set_health(node, at.uuids(node, *range(8)).index(uuids[0]))
    at.settle()
    at.pass_time(SOME_SECONDS)
    assert gains(at) == {}


def test_what_it_needs_beside_gpus_is_free_too() -> None:
    at = Cluster(settings=CoreSettings(moves=MovePolicy(Moves.ADVISE)))
    at.add_node("n1", cpu="1")
    on(at, "web", "n1", 0, 1)
    at.pass_time(5 * HOUR)
    assert gains(at) == {"pod ml/web": (20.0, 40.0)}


def take_targets(at: Cluster) -> None:
    at.add_pod("other", 6)
    at.settle()
    assert at.schedule("other")


@pytest.mark.parametrize(
    "change_it",
    [
        take_targets,
        lambda at: bury(at, "web"),
        lambda at: at.annotate("web", movable="false"),
        lambda at: at.remove_node("n1"),
    ],
    ids=["its targets are taken", "it ends", "it consents no more", "its node is gone"],
)
def test_advice_goes_at_once_if(change_it: Callable[[Cluster], None]) -> None:
    at = badly_linked()
    assert gains(at)
    change_it(at)
    at.settle()
    assert gains(at) == {}
    at.pass_time(SOME_SECONDS)
    assert gains(at) == {}


@pytest.mark.parametrize("ends", ["5h40m", "5h35m"], ids=["saves too little", "ends soon"])
def test_advice_goes_once_it_is_not_worth_it_any_more(ends: str) -> None:
    at = badly_linked(expected_duration=ends)
    assert gains(at)
    at.pass_time(LOOK_SECONDS)
    assert gains(at) == {}


def test_advice_goes_if_the_gang_has_another_member() -> None:
    at = spread()
    at.add_pod("g-2", 4, alter=owned_by("ReplicaSet", "g"), said={**GANG, "rank": "2"})
    at.settle()
    assert gains(at) == {}


def test_after_a_restart_there_is_advice_again() -> None:
    at = spread()
    before = gains(at)
    at.restart()
    at.settle()
    at.pass_time(2 * HOUR)  # the first look was before the owners were read
    assert gains(at) == before


def two_pods(at: Cluster) -> None:
    for name, gpus in (("web", (0, 1)), ("app", (4, 5))):
        on(at, name, "n1", *gpus)
    at.now += 5 * HOUR


def test_one_look_makes_few_searches_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(better_links, "_MOST_SEARCHES", 1)
    at = cluster(Moves.ADVISE, nodes=1)
    two_pods(at)
    at.settle()
    first = gains(at)
    assert len(first) == 1
    at.pass_time(SOME_SECONDS - 1)
    assert gains(at) == first
    at.pass_time(1)
    assert len(gains(at)) == 2


def test_what_has_gone_before_its_turn_gets_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(better_links, "_MOST_SEARCHES", 1)
    at = cluster(Moves.ADVISE, nodes=1)
    two_pods(at)
    at.settle()
    at.remove_node("n1")
    at.pass_time(SOME_SECONDS)
    assert gains(at) == {}
    assert not at.core.take_defects()


def test_a_gang_that_changes_during_its_search_has_its_turn_later() -> None:
    at = spread()
    before = gains(at)
    links = at.core._planner.better_links

    def aside(work: Callable[[], object], /) -> object:
        answer = work()
        if answer:
            label(at, "g-0", changed="true")
        return answer

    links._looked_at = 0.0
    links.run(at.now, aside)  # type: ignore[arg-type]
    assert gains(at) == {}
    at.pass_time(LOOK_SECONDS)
    assert gains(at) == before


def test_one_look_takes_few_gangs_and_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(better_links, "_MOST_LOOKED_AT", 1)
    at = cluster(Moves.ADVISE, nodes=1)
    two_pods(at)
    at.settle()
    assert len(gains(at)) == 1


def test_pods_of_one_gpu_take_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(better_links, "_MOST_LOOKED_AT", 1)
    at = cluster(Moves.ADVISE, nodes=1)
    on(at, "one", "n1", 7)
    on(at, "web", "n1", 0, 1)
    at.now += 5 * HOUR
    at.settle()
    assert gains(at) == {"pod ml/web": (20.0, 40.0)}


def test_a_gang_that_is_linked_as_well_as_any_costs_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(better_links, "_MOST_SEARCHES", 1)
    at = cluster(Moves.ADVISE)
    assert gang(at, "g-0", "g-1") == ["n1", "n1"]
    on(at, "web", "n2", 0, 1)
    at.now += 5 * HOUR
    at.settle()
    assert gains(at) == {"pod ml/web": (20.0, 40.0)}


def test_others_use_the_core_between_two_searches() -> None:
    at = cluster(Moves.ADVISE, nodes=1)
    two_pods(at)
    calls = []

    def aside(work: Callable[[], object], /) -> object:
        calls.append(at.now)
        return work()

    at.core._planner.better_links.run(at.now, aside)  # type: ignore[arg-type]
    assert len(calls) == 2
    assert len(gains(at)) == 2


def test_if_nothing_changes_it_looks_again_after_half_an_hour() -> None:
    at = badly_linked()
    due = at.core.next_due()
    assert due is not None
    looked_at = at.core._planner.better_links._looked_at
    at.pass_time(LOOK_SECONDS - 1)
    assert at.core._planner.better_links._looked_at == looked_at
    at.pass_time(1)
    assert at.core._planner.better_links._looked_at == at.now
    assert at.is_at_rest()


def test_the_explanation_says_so_in_one_line() -> None:
    assert (
        "  links     after a restart on other GPUs, it would have 40.0 GB/s instead of 20.0 "
        "(kubectl linkwise moves)" in explained(badly_linked(), "web")
    )
    [line] = [line for line in explained(spread(), "g-1") if line.startswith("  links")]
    assert "on other GPUs, the gang would have 120.0 GB/s instead of" in line
    found = spread().core.explain("ml", "g-1", START)
    assert found is not None
    assert found.gang is not None
    told = explanation_text.gang(found.gang, START)
    assert line in told.splitlines()
    assert "  moves" not in told
    assert not [line for line in explained(badly_linked(Moves.NEVER), "web") if "links" in line]
