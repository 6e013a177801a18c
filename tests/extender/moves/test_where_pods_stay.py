"""A single pod that never moves goes where such a pod is already: moves can empty the other nodes
for as long as none is there."""

import pytest

from linkwise.extender.explain.explainer import Explainer
from linkwise.extender.moves.policy import Moves
from linkwise.topology import names
from tests.extender.cluster import Cluster
from tests.extender.moves.movers import MOVABLE, cluster, owned_by, run


def fuller_node_can_be_emptied(moves: Moves = Moves.CONSENT) -> Cluster:
    at = cluster(moves, nodes=3)
    run(at, "web", 6, "n1", said=MOVABLE)
    run(at, "stays", 2, "n2")
    return at


def test_a_pod_that_stays_goes_to_a_node_that_moves_cannot_empty() -> None:
    at = fuller_node_can_be_emptied()
    at.add_pod("new", 1)
    at.settle()
    assert at.filter("new").node_names == ("n2",)


def test_kube_scheduler_is_told_the_same_if_it_asks_about_all_nodes() -> None:
    at = fuller_node_can_be_emptied()
    at.add_pod("new", 1)
    at.settle()
    at.filter("new")
    assert set(at.filter_again("new").node_names) == {"n1", "n2", "n3"}
    scores = at.prioritize("new").scores
    assert scores["n2"] == 100
    assert scores["n2"] - scores["n1"] > 3 >= scores["n1"] - scores["n3"]


def test_so_does_a_pod_that_is_planned_ahead() -> None:
    at = fuller_node_can_be_emptied()
    at.add_pod("new", 1, gates=[names.GATE])
    at.settle()
    assert at.pod("new").status.nominated_node_name == "n2"


@pytest.mark.parametrize("moves", [Moves.NEVER, Moves.ADVISE])
def test_where_nothing_moves_it_goes_to_the_fullest_node(moves: Moves) -> None:
    at = fuller_node_can_be_emptied(moves)
    at.add_pod("new", 1)
    at.settle()
    assert at.filter("new").node_names == ("n1",)


def test_a_pod_that_may_move_goes_to_the_fullest_node() -> None:
    at = fuller_node_can_be_emptied()
    at.add_pod("new", 1, alter=owned_by("ReplicaSet", "owner"), said=MOVABLE, gates=[names.GATE])
    at.settle()
    assert at.pod("new").status.nominated_node_name == "n1"


def test_a_node_that_the_last_pod_has_left_can_be_emptied() -> None:
    at = fuller_node_can_be_emptied()
    at.delete("stays")
    at.stop("stays", "n2")
    at.settle()
    at.add_pod("new", 1)
    at.settle()
    assert at.filter("new").node_names == ("n1",)


def test_a_pod_that_takes_back_its_consent_stays() -> None:
    at = fuller_node_can_be_emptied()
    at.delete("stays")
    at.stop("stays", "n2")
    at.annotate("web", movable="false")
    at.settle()
    run(at, "other", 7, "n3", said=MOVABLE)
    at.add_pod("new", 1)
    at.settle()
    assert at.filter("new").node_names == ("n1",)


def test_explain_says_so() -> None:
    at = cluster()
    run(at, "web", 6, "n1", said=MOVABLE)
    run(at, "stays", 6, "n2")
    at.add_pod("new", 2)
    at.settle()
    assert at.schedule("new") == "n2"
    found = Explainer(at.core.snapshot(at.now)).pod("ml", "new", runner_up=True)
    assert found is not None
    assert found.runner_up is not None
    assert found.runner_up.nodes == ("n1",)
    assert found.runner_up.why == "whole nodes: kept against not"


def test_explain_does_not_count_the_pod_itself() -> None:
    at = cluster()
    at.add_pod("new", 8)
    at.settle()
    assert at.schedule("new") == "n1"
    found = Explainer(at.core.snapshot(at.now)).pod("ml", "new", runner_up=True)
    assert found is not None
    assert found.runner_up is not None
    assert found.runner_up.why.startswith("name")
