"""So many nodes are kept whole by moves: which is emptied, what that may cost, and when not."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.next.moves import emptying
from linkwise.extender.next.moves.may_move import Stays
from linkwise.extender.next.moves.plan import Move
from linkwise.extender.next.moves.planned_moves import EVICT_SECONDS, TRY_SECONDS
from linkwise.extender.show.explain.moves import view_moves
from linkwise.extender.state.actions import NoteQueue
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.views import MoveState
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.next.moves.movers import HOUR, MOVABLE, bury, owned_by, recreated, run, waits

DAY = 24 * HOUR
T = TypeVar("T")


def keeps(
    wanted: int, *, nodes: int, moves: Moves = Moves.CONSENT, gpu_hours: float = 4.0
) -> Cluster:
    policy = MovePolicy(moves, whole_nodes=wanted, whole_nodes_cost_seconds=gpu_hours * HOUR)
    at = Cluster(settings=CoreSettings(moves=policy))
    for number in range(1, nodes + 1):
        at.add_node(f"n{number}")
    return at


def scattered(at: Cluster, *, hours: float = 5.0) -> None:
    """Each node has a pod that could leave it; that of n2 loses least."""
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "api", 2, "n2", said=MOVABLE)
    at.pass_time(hours * HOUR)


def free(at: Cluster) -> list[int]:
    return [at.core._cache.nodes[name].free.bit_count() for name in sorted(at.core._cache.nodes)]


def planned_for(at: Cluster) -> list[tuple[str, MoveState]]:
    return [
        (plan.for_whom, move.state)
        for plan in view_moves(at.core.snapshot(at.now)).plans
        for move in plan.moves
    ]


def test_the_node_whose_moves_lose_least_is_emptied() -> None:
    at = keeps(1, nodes=2)
    scattered(at)
    assert (at.evicted, planned_for(at)) == (["api"], [("node n2", MoveState.LEFT)])
    recreated(at, "api", "api-2", gpus=2)
    assert at.schedule("api-2") == "n1"
    assert (free(at), at.evicted, at.sound()) == ([2, 8], ["api"], True)


@pytest.mark.parametrize(
    ("moves", "wanted"), [(Moves.NEVER, 1), (Moves.CONSENT, 0), (Moves.ADVISE, 1)]
)
def test_nothing_moves_without_consent_of_the_operator(moves: Moves, wanted: int) -> None:
    at = keeps(wanted, nodes=2, moves=moves)
    scattered(at)
    advised = [("node n2", MoveState.ADVISED)] if moves is Moves.ADVISE else []
    assert (at.evicted, planned_for(at), free(at)) == ([], advised, [4, 6])


def test_advice_ends_once_there_is_a_whole_node() -> None:
    at = keeps(1, nodes=2, moves=Moves.ADVISE)
    scattered(at)
    bury(at, "web")
    at.pass_time(TRY_SECONDS)
    assert planned_for(at) == []


def test_enough_whole_nodes_are_left_alone() -> None:
    at = keeps(1, nodes=3)
    scattered(at)
    assert at.evicted == []


def test_no_pod_moves_to_a_whole_node() -> None:
    at = keeps(2, nodes=2)
    run(at, "web", 4, "n1", said=MOVABLE)
    at.pass_time(5 * HOUR)
    assert (at.evicted, free(at)) == ([], [4, 8])


def test_a_node_with_a_pod_that_stays_is_not_touched() -> None:
    at = keeps(1, nodes=2)
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "api", 1, "n2", said=MOVABLE)
    run(at, "stays", 1, "n2")
    at.pass_time(5 * HOUR)
    assert at.evicted == ["web"]


def test_a_pod_that_has_not_run_for_long_stays() -> None:
    at = keeps(1, nodes=2)
    scattered(at, hours=1.5)
    assert at.evicted == []
    at.pass_time(HOUR)
    assert at.evicted == ["api"]


def test_a_pod_whose_move_costs_nothing_as_it_says_has_to_run_for_as_long_as_others() -> None:
    at = keeps(1, nodes=2)
    run(at, "web", 4, "n1", said={"movable": "true", "move-cost": "1s"})
    run(at, "stays", 4, "n2")
    at.pass_time(1.5 * HOUR)
    assert at.evicted == []
    at.pass_time(HOUR)
    assert at.evicted == ["web"]


def test_a_node_where_gpus_are_reserved_is_left_to_those_who_wait() -> None:
    at = keeps(1, nodes=2)
    run(at, "web", 4, "n1", said=MOVABLE, priority=5)
    run(at, "stays", 4, "n2")
    waits(at, gpus=8)
    at.pass_time(5 * HOUR)
    assert at.core._cache.nodes["n1"].reserved
    assert at.evicted == []


def test_a_node_with_a_gpu_that_is_out_is_not_emptied() -> None:
    at = keeps(1, nodes=2)
    at.set_health("n2", 0)
    scattered(at)
    assert at.evicted == ["web"]


def of_two_one_may_move() -> Cluster:
    """Both would, and lose 20 and 30 GPU minutes; a day has 45."""
    at = keeps(2, nodes=4, gpu_hours=0.75)
    run(at, "small", 2, "n1", said=MOVABLE)
    run(at, "larger", 3, "n2", said=MOVABLE)
    run(at, "stays-1", 6, "n3")
    run(at, "stays-2", 4, "n4")
    at.pass_time(5 * HOUR)
    return at


def test_what_moves_lose_in_a_day_is_limited() -> None:
    at = of_two_one_may_move()
    assert at.evicted == ["small"]
    recreated(at, "small", "small-2", gpus=2)
    assert at.schedule("small-2") == "n3"
    at.pass_time(HOUR)
    assert at.evicted == ["small"]
    at.pass_time(DAY)
    assert at.evicted == ["small", "larger"]


def test_moves_under_way_count() -> None:
    at = of_two_one_may_move()
    bury(at, "small")
    at.pass_time(TRY_SECONDS)
    assert at.evicted == ["small"]
    assert at.core._planner.targets.under_way()


def test_nothing_new_comes_while_it_is_emptied_and_everything_afterwards() -> None:
    at = keeps(1, nodes=2)
    scattered(at)
    at.add_pod("new", 4)
    at.settle()
    assert "being emptied" in str(at.filter("new", ["n2"]))
    recreated(at, "api", "api-2", gpus=2)
    at.schedule("api-2")
    at.pass_time(TRY_SECONDS)
    assert at.schedule("new") == "n2"


def test_if_a_pod_cannot_be_evicted_another_node_is_emptied() -> None:
    at = keeps(1, nodes=2)
    at.spared.add("api")
    scattered(at)
    assert at.core._cache.emptied == {"n2"}
    at.pass_time(EVICT_SECONDS)
    at.pass_time(TRY_SECONDS)
    assert (at.evicted, at.core._cache.emptied) == (["web"], {"n1"})
    assert at.sound()


def test_a_pod_that_comes_after_all_ends_the_choice() -> None:
    at = keeps(1, nodes=2)
    at.spared.add("api")
    scattered(at)
    at.put_bound(change(at.add_pod("other", 1), spec=change(at.pod("other").spec, node_name="n2")))
    at.settle()
    assert (at.evicted, at.core._cache.emptied) == ([], set())


def test_the_choice_ends_with_its_node() -> None:
    at = keeps(1, nodes=2)
    scattered(at)
    at.remove_node("n2")
    at.pass_time(TRY_SECONDS)
    assert at.core._cache.emptied == set()
    assert at.sound()


def meanwhile(at: Cluster, happens: Callable[[], object]) -> None:
    """Look for a node, while something *happens* once the last pod of n2 has its place."""
    planner, places = at.core._planner, []
    look = planner.emptying.look

    def looks(*args: Any, **more: Any) -> Iterator[tuple[str, PodRecord, Move | Stays]]:
        for each in look(*args, **more):
            places.append(each)
            yield each

    def aside(work: Callable[[], T], /) -> T:
        if len(places) == 1:
            happens()
        return work()

    planner.emptying.look = looks  # type: ignore[method-assign]
    planner.whole_nodes.run(at.now, aside)


def put_on(at: Cluster, node: str, gpus: int) -> None:
    """Another pod is bound there, without the extender."""
    pod = at.add_pod("other", gpus)
    at.put_bound(change(pod, spec=change(pod.spec, node_name=node)))


@pytest.mark.parametrize(("node", "gpus"), [("n1", 4), ("n2", 1)])
def test_no_node_is_emptied_if_a_pod_came_there_or_to_a_target_meanwhile(
    node: str, gpus: int
) -> None:
    at = keeps(1, nodes=2)
    run(at, "web", 4, "n1")
    run(at, "api", 2, "n2", said=MOVABLE)
    at.now += 5 * HOUR
    meanwhile(at, lambda: put_on(at, node, gpus))
    assert at.core._cache.emptied == set()


def test_no_node_is_emptied_if_that_of_a_target_is_closed_meanwhile() -> None:
    at = keeps(1, nodes=2)
    run(at, "web", 4, "n1")
    run(at, "api", 2, "n2", said=MOVABLE)
    at.now += 5 * HOUR
    meanwhile(at, lambda: at.annotate_node("n1", names.EMPTY, "true"))
    assert at.core._cache.emptied == {"n1"}


def test_the_choice_leaves_no_trace_if_node_and_pods_go_at_once() -> None:
    at = keeps(1, nodes=2)
    scattered(at)
    at.remove_node("n2")
    at.delete("api")
    at.settle()
    assert at.core._cache.emptied == set()


def test_the_node_stays_closed_while_a_pod_ends_whose_replacement_runs() -> None:
    at = keeps(1, nodes=2)
    scattered(at)
    at.add_pod("api-2", 2, alter=owned_by("ReplicaSet", "owner-of-api"), said=MOVABLE)
    assert at.schedule("api-2") == "n1"
    at.settle()
    assert at.core._cache.emptied == {"n2"}
    bury(at, "api")
    assert at.core._cache.emptied == set()


def test_it_sleeps_until_the_choice_is_over() -> None:
    at = keeps(1, nodes=2)
    at.spared.add("api")
    scattered(at)
    began = at.now
    at.pass_time(TRY_SECONDS + 1)
    assert at.core._planner.whole_nodes._chosen == "n2"
    assert [*at.core._planner.whole_nodes._times()] == [began + EVICT_SECONDS]


def test_none_is_evicted_once_the_choice_has_ended() -> None:
    at = keeps(1, nodes=2)
    run(at, "web", 6, "n1", said=MOVABLE)
    run(at, "api", 2, "n2", said=MOVABLE)
    at.now += 5 * HOUR
    [note] = at.core.decide(at.now)
    assert isinstance(note, NoteQueue)
    at.core.done(note, at.carry_out(note), at.now)
    at.put_bound(change(at.add_pod("other", 1), spec=change(at.pod("other").spec, node_name="n2")))
    at.settle()
    at.pass_time(1)
    assert at.evicted == []
    assert at.core._planner.targets.of(at.pod("api").metadata.uid) is None


@pytest.mark.parametrize(("most", "evicted"), [(1, []), (2, ["web"])])
def test_one_look_searches_places_for_few_nodes(
    most: int, evicted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emptying, "_MOST_SEARCHES", most)
    at = keeps(1, nodes=2)
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "api", 2, "n2", said=MOVABLE, only_there=True)
    at.pass_time(5 * HOUR)
    assert at.evicted == evicted


def test_cheap_nodes_whose_pods_have_no_other_place_do_not_keep_others_from_being_emptied() -> None:
    at = keeps(1, nodes=10)
    for number in range(1, 9):
        cheap = {**MOVABLE, "move-cost": "1s"}
        run(at, f"bound-{number}", 1, f"n{number}", said=cheap, only_there=True)
    run(at, "web", 2, "n9", said=MOVABLE)
    run(at, "stays", 1, "n10")
    at.pass_time(5 * HOUR)
    assert at.evicted == []
    at.pass_time(TRY_SECONDS)
    assert at.evicted == ["web"]


def test_what_a_pod_says_of_its_cost_after_its_move_does_not_count() -> None:
    """Else one pod could keep the extender from moves for a day."""
    at = keeps(2, nodes=5)
    run(at, "web", 1, "n1", said=MOVABLE)
    run(at, "stays-1", 5, "n3")
    run(at, "stays-2", 4, "n4")
    run(at, "stays-3", 8, "n5")
    at.pass_time(5 * HOUR)
    recreated(at, "web", "web-2", gpus=1)
    assert at.schedule("web-2")
    at.annotate("web-2", move_cost="1000h")
    run(at, "api", 1, "n1", said=MOVABLE)
    at.pass_time(5 * HOUR)
    assert at.evicted == ["web", "api"]
