"""Moves are shown before they are done: as advice with `--moves=advise`, and while under way."""

from dataclasses import replace

from linkwise.extender.next.core_settings import Moves
from linkwise.extender.next.moves.planned_moves import LOOK_SECONDS, TRY_SECONDS
from linkwise.extender.next.moves.targets import COME_SECONDS
from linkwise.extender.show.explain.moves import view_moves
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.views import MovePlanView, MoveState, MoveView
from linkwise.kube.objects import Pod
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.next.moves.movers import (
    HOUR,
    MOVABLE,
    bury,
    cluster,
    owned_by,
    recreated,
    run,
    scattered,
    waits,
)

LOST = 4 * 600.0


def shown(at: Cluster) -> tuple[MovePlanView, ...]:
    return view_moves(at.core.snapshot(at.now)).plans


def states(at: Cluster) -> dict[str, MoveState]:
    return {move.pod: move.state for plan in shown(at) for move in plan.moves}


def explained(at: Cluster, name: str = "big") -> str:
    found = at.core.explain("ml", name, at.now)
    assert found is not None
    return explanation_text.pod(found, at.now)


def in_another_namespace(pod: Pod) -> Pod:
    return change(pod, metadata=change(pod.metadata, namespace="other"))


def advised(*, nodes: int = 2) -> Cluster:
    at = cluster(Moves.ADVISE, nodes=nodes)
    scattered(at)
    waits(at)
    return at


def test_advice_names_the_pod_where_it_would_go_for_whom_and_what_for() -> None:
    at = advised()
    [plan] = shown(at)
    saved = plan.saved_gpu_seconds
    assert saved is not None
    assert saved >= LOST
    there = at.core._cache.nodes["n2"]
    assert there.machine is not None
    gpus = there.machine.indices_of(there.free)
    move = MoveView("ml/web", "n1", "n2", gpus, LOST, MoveState.ADVISED, None)
    assert plan == MovePlanView("pod ml/big", 8, LOST, saved, (move,))


def test_advice_evicts_nobody_and_reserves_nothing() -> None:
    at = advised()
    at.pass_time(HOUR)
    assert shown(at)
    assert at.evicted == []
    assert not [each for each in at.core.reservations.all() if each.by_preemption]
    assert not at.core._awaited
    at.add_pod("other", 4, priority=1)
    at.settle()
    assert at.schedule("other"), "the target is free for others"
    assert at.sound()


def test_the_same_moves_are_advised_as_would_be_made() -> None:
    at, moved = advised(nodes=3), cluster(nodes=3)
    scattered(moved)
    waits(moved)
    assert [move.pod for plan in shown(at) for move in plan.moves] == [
        f"ml/{name}" for name in moved.evicted
    ]


def test_without_a_flag_there_is_no_advice() -> None:
    at = cluster(Moves.NEVER)
    scattered(at)
    waits(at)
    assert shown(at) == ()
    assert "moves" not in explained(at)


def test_the_explanation_says_what_would_have_to_move() -> None:
    at = advised()
    assert (
        "  moves     it would start if 1 pod moved: ml/web (kubectl linkwise moves)"
        in explained(at).splitlines()
    )


def test_the_explanation_of_a_gang_says_so_too_and_names_some_of_many() -> None:
    at = cluster(Moves.ADVISE)
    scattered(at)
    for name in ("g-0", "g-1"):
        at.add_pod(name, 4, said={"gang": "g", "gang_size": "2", "require_span": "node"})
    at.settle()
    at.pass_time(HOUR)
    found = at.core.explain("ml", "g-0", at.now)
    assert found is not None
    assert found.gang is not None
    assert found.gang.advised == ("ml/web",)
    many = replace(found.gang, advised=tuple(f"ml/web-{n}" for n in range(10)))
    assert "if 10 pods moved: ml/web-0," in explanation_text.gang(many, at.now)
    assert "ml/web-7 and 2 more (kubectl" in explanation_text.gang(many, at.now)


def test_advice_goes_when_the_one_that_waits_goes() -> None:
    at = advised()
    at.delete("big")
    at.settle()
    assert shown(at) == ()


def test_advice_goes_when_the_one_that_waits_starts() -> None:
    at = advised()
    at.set_phase("web", "Succeeded")
    bury(at, "web")
    assert at.schedule("big") == "n1"
    assert shown(at) == ()


def test_advice_goes_when_a_pod_of_it_goes_and_others_take_its_gpus() -> None:
    at = advised()
    at.add_pod("urgent", 4, priority=9)
    bury(at, "web")
    assert at.schedule("urgent")
    assert "ml/web" not in states(at)


def test_advice_is_made_again_when_a_pod_of_it_has_changed() -> None:
    at = advised()
    pod = at.pod("web")
    at.put_pod(change(pod, metadata=change(pod.metadata, labels={"app": "owner", "x": "y"})))
    at.settle()
    at.pass_time(TRY_SECONDS + 1)
    assert states(at) == {"ml/web": MoveState.ADVISED}


def test_advice_goes_when_a_pod_of_it_consents_no_more() -> None:
    at = advised()
    pod = at.pod("web")
    said = {**pod.metadata.annotations, names.MOVABLE: "false"}
    at.put_pod(change(pod, metadata=change(pod.metadata, annotations=said)))
    at.settle()
    at.pass_time(TRY_SECONDS + 1)
    assert shown(at) == ()


def test_advice_goes_when_its_target_is_taken_and_there_is_no_other() -> None:
    at = advised()
    at.add_pod("other", 4, priority=1)
    at.settle()
    assert at.schedule("other")
    at.pass_time(TRY_SECONDS + 1)
    assert shown(at) == ()


def test_advice_is_not_sought_again_and_again() -> None:
    at = advised()
    due = at.core.next_due()
    assert due is not None
    assert due > at.now
    found = at.core._planner.moves.advice
    at.pass_time(LOOK_SECONDS / 4)
    kept = at.core._planner.moves.advice
    assert [*kept.values()] == [*found.values()]
    assert all(kept[key] is found[key] for key in kept), "nothing changed: no other search"


def test_each_that_waits_has_its_own_advice_the_most_urgent_first() -> None:
    at = cluster(Moves.ADVISE, nodes=8)
    for number in range(1, 9):
        said = MOVABLE if number % 2 else None
        run(at, f"p{number}", 4, f"n{number}", said=said, server=True)
    at.pass_time(5 * HOUR)
    at.add_pod("later", 8, gates=[names.GATE], alter=in_another_namespace)
    waits(at, "urgent", priority=5)
    assert [plan.for_whom for plan in shown(at)] == ["pod ml/urgent", "pod other/later"]
    assert shown(at)[0].saved_gpu_seconds is None, "only servers are in the way"
    assert at.evicted == []


def test_after_a_restart_there_is_advice_again() -> None:
    at = advised()
    before = states(at)
    at.restart()
    at.settle()
    at.pass_time(TRY_SECONDS)
    assert states(at) == before


def test_a_plan_under_way_is_listed_until_its_replacements_have_come() -> None:
    at = cluster()
    at.spared.add("web")
    scattered(at)
    waits(at)
    assert states(at) == {"ml/web": MoveState.EVICTING}
    assert shown(at)[0].for_whom == "pod ml/big"
    at.spared.clear()
    at.pass_time(30)
    [plan] = shown(at)
    assert states(at) == {"ml/web": MoveState.LEFT}
    assert plan.moves[0].kept_until is not None
    assert plan.moves[0].kept_until > at.now
    assert "moves" not in [line.split()[0] for line in explained(at).splitlines() if line]
    recreated(at, "web", "web-2")
    assert shown(at) == ()


def test_one_that_waits_too_is_told_for_whom_room_is_made_by_moves_of_servers() -> None:
    """These never end by themselves, so nothing says when that room is free."""
    at = cluster()
    run(at, "web", 4, "n1", said=MOVABLE, server=True)
    run(at, "stays", 4, "n2", server=True)
    at.spared.add("web")
    at.pass_time(5 * HOUR)
    for name, gpus in (("big", 8), ("late", 4)):
        at.add_pod(name, gpus, gates=[names.GATE])
        at.settle()
    assert "4 GPUs: free, but reserved for pod ml/big" in [
        line.strip() for line in explained(at, "late").splitlines()
    ]


def test_after_a_restart_nothing_is_known_of_moves_under_way() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    bury(at, "web")
    at.restart()
    at.settle()
    assert shown(at) == ()


def test_moves_are_counted() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    moves = at.core.counts(at.now).moves
    assert (moves.begun, moves.arrived, moves.given_back) == (1, 0, 0)
    assert moves.lost_gpu_seconds == LOST
    alter = owned_by("ReplicaSet", "owner-of-web")
    at.add_pod("web-2", 4, alter=alter, said=MOVABLE)
    bury(at, "web")
    moves = at.core.counts(at.now).moves
    assert (moves.begun, moves.arrived, moves.given_back) == (1, 1, 0)
    assert moves.lost_gpu_seconds == LOST
    at.settle()
    moves = at.core.counts(at.now).moves
    assert (moves.helped, moves.saved_gpu_seconds) == (1, 8 * HOUR)


def test_moves_for_a_gang_that_went_away_helped_nobody() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    at.delete("big")
    bury(at, "web")
    at.settle()
    assert at.core.counts(at.now).moves.helped == 0


def test_a_target_that_no_replacement_got_is_counted() -> None:
    at = cluster()
    scattered(at)
    waits(at)
    bury(at, "web")
    at.pass_time(COME_SECONDS)
    moves = at.core.counts(at.now).moves
    assert (moves.begun, moves.arrived, moves.given_back) == (1, 0, 1)


def test_advice_counts_no_moves() -> None:
    assert advised().core.counts(0.0).moves.begun == 0


def test_advice_goes_with_the_node_of_a_target() -> None:
    at = advised()
    assert states(at)
    at.remove_node("n2")
    at.pass_time(1)
    assert not states(at)
