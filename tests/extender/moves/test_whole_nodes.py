"""So many nodes are kept whole by moves: which is emptied, what that may cost, and when not."""

import pytest

from linkwise.extender.api.views import MoveState
from linkwise.extender.core_settings import CoreSettings
from linkwise.extender.explain.moves import view_moves
from linkwise.extender.moves.planned_moves import EVICT_SECONDS, TRY_SECONDS
from linkwise.extender.moves.policy import MovePolicy, Moves
from tests.extender.cluster import Cluster, change
from tests.extender.moves.movers import HOUR, MOVABLE, bury, recreated, run, waits

DAY = 24 * HOUR


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


def test_a_node_where_gpus_are_reserved_is_left_to_those_who_wait() -> None:
    at = keeps(1, nodes=2)
    run(at, "web", 4, "n1", said=MOVABLE)
    run(at, "stays", 6, "n2")
    waits(at, gpus=8)
    at.pass_time(5 * HOUR)
    assert at.core._cache.nodes["n1"].reserved
    assert at.evicted == []


def test_what_moves_lose_in_a_day_is_limited() -> None:
    at = keeps(2, nodes=4, gpu_hours=0.75)
    run(at, "small", 2, "n1", said=MOVABLE)  # 20 GPU minutes
    run(at, "larger", 3, "n2", said=MOVABLE)  # 30
    run(at, "stays-1", 6, "n3")
    run(at, "stays-2", 4, "n4")
    at.pass_time(5 * HOUR)
    assert at.evicted == ["small"]
    recreated(at, "small", "small-2", gpus=2)
    assert at.schedule("small-2") == "n3"
    at.pass_time(HOUR)
    assert at.evicted == ["small"]
    at.pass_time(DAY)
    assert at.evicted == ["small", "larger"]


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
