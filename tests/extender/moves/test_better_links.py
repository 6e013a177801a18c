"""Running gangs and pods that would have better links on other GPUs are advised, and stay."""

from collections.abc import Mapping

import pytest

from linkwise.extender.api.views import LinkGain, MovePlanView, MoveState, MoveView
from linkwise.extender.core_settings import CoreSettings
from linkwise.extender.explain.moves import view_moves
from linkwise.extender.explain.texts import explanation_text
from linkwise.extender.moves import better_links
from linkwise.extender.moves.better_links import SOME_SECONDS
from linkwise.extender.moves.planned_moves import LOOK_SECONDS
from linkwise.extender.moves.policy import MovePolicy, Moves
from linkwise.topology import names
from tests.extender.cluster import Cluster, change
from tests.extender.moves.movers import HOUR, MOVABLE, bury, cluster, owned_by, run
from tests.extender.preemption.victims import budget

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
    server: bool = False,
    labels: Mapping[str, str] | None = None,
) -> None:
    """The pod runs on exactly these GPUs."""
    at.set_health(node, *({*range(8)} - {*gpus}))
    run(at, name, len(gpus), node, said=said, server=server, labels=labels)
    at.set_health(node)
    at.settle()


def badly_linked(
    moves: Moves = Moves.ADVISE, *, said: Mapping[str, str] = MOVABLE, hours: float = 5.0
) -> Cluster:
    """Of the eight GPUs of a DGX-1, `web` has two with one NVLink; others have two."""
    at = cluster(moves, nodes=1)
    on(at, "web", "n1", 0, 1, said=said)
    at.pass_time(hours * HOUR)
    return at


def on_two_nodes(
    moves: Moves = Moves.ADVISE, *, said: Mapping[str, str] = GANG, server: bool = False
) -> Cluster:
    """Each member of gang g has half a node, and the other halves have come free."""
    at = cluster(moves)
    for node in ("n1", "n2"):
        run(at, f"on-{node}", 4, node)
    for rank in range(2):
        at.add_pod(
            f"g-{rank}", 4, alter=owned_by("ReplicaSet", "g"), said={**said, "rank": str(rank)}
        )
    at.settle()
    for name, node in zip(("g-0", "g-1"), at.places("g-0", "g-1"), strict=True):
        at.start(name)
        assert node
    at.settle()
    for node in ("n1", "n2"):
        bury(at, f"on-{node}")
    at.pass_time(5 * HOUR)
    return at


def test_advice_names_the_pod_where_it_would_go_what_it_gains_and_what_that_costs() -> None:
    at = badly_linked()
    [plan] = shown(at)
    [move] = plan.moves
    assert move == MoveView(
        "ml/web", "n1", "n1", move.gpus, 2 * COST, MoveState.IF_RESTARTED, None
    )
    assert plan.for_whom == "pod ml/web"
    assert (plan.gpus, plan.lost_gpu_seconds) == (2, 2 * COST)
    assert plan.links is not None
    assert (plan.links.has, plan.links.would_have) == (20.0, 40.0)


def test_a_gang_may_get_some_of_its_own_gpus_again() -> None:
    at = on_two_nodes()
    [plan] = shown(at)
    assert plan.for_whom == "gang ml/g"
    assert {move.target for move in plan.moves} in ({"n1"}, {"n2"})
    assert [move.pod for move in plan.moves] == ["ml/g-0", "ml/g-1"]
    assert plan.links is not None
    assert plan.links.reuses
    assert plan.links.would_have == 120.0
