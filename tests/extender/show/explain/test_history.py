"""What was decided about one pod, gang or node, and what pods say of the time before."""

from dataclasses import replace

import pytest

from linkwise.extender.show.explain.history import Asked, view_history
from linkwise.extender.state.decisions import Decision, What
from linkwise.extender.state.views import HistoryView
from tests.extender.cluster import START, Cluster
from tests.extender.owned import create, four_nodes, job, member, there_is


def found(at: Cluster, **asked: str) -> HistoryView:
    view = view_history(at.core.snapshot(at.now), Asked(**asked))
    assert isinstance(view, HistoryView), view
    return view


def told(at: Cluster, **asked: str) -> list[tuple[str, str]]:
    return [(each.what.value, each.who) for each in found(at, **asked).decisions]


def unknown(at: Cluster, **asked: str) -> str:
    view = view_history(at.core.snapshot(at.now), Asked(**asked))
    assert isinstance(view, str)
    return view


@pytest.fixture
def at() -> Cluster:
    """A low pod on n1, evicted for a gang that has a place on n2 already."""
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_node("n2", "hgx-h100")
    at.add_pod("low", 8, said={"preemptible": "true"})
    at.bind("low", "n1")
    at.settle()
    at.now += 1.0
    for rank in range(2):
        said = {"gang": "big", "gang_size": "2", "rank": str(rank)}
        at.add_pod(f"big-{rank}", 8, priority=100, said=said)
    at.settle()
    return at


def test_the_newest_is_the_last(at: Cluster) -> None:
    assert told(at) == [
        ("bound", "ml/low"),
        ("reserved", "gang ml/big"),
        ("evicted", "ml/low"),
    ]
    times = [each.at for each in found(at).decisions]
    assert times == [START, START + 1, START + 1]
    assert found(at).began == START
    assert found(at).dropped == 0


def test_a_pod_has_what_is_about_it_and_about_its_gang_as_a_whole(at: Cluster) -> None:
    assert told(at, pod="ml/low") == [("bound", "ml/low"), ("evicted", "ml/low")]
    assert told(at, pod="ml/big-1") == [("reserved", "gang ml/big"), ("evicted", "ml/low")]


def test_a_gang_has_what_was_done_for_it(at: Cluster) -> None:
    assert told(at, gang="ml/big") == [("reserved", "gang ml/big"), ("evicted", "ml/low")]


def test_a_node_has_what_happened_there(at: Cluster) -> None:
    assert told(at, node="n2") == [("reserved", "gang ml/big")]
    assert len(told(at, node="n1")) == 3


def test_a_namespace_has_its_own(at: Cluster) -> None:
    assert len(told(at, namespace="ml")) == 3
    assert told(at, namespace="m") == []


def test_a_namespace_has_what_was_done_for_it_elsewhere(at: Cluster) -> None:
    snapshot = at.core.snapshot(at.now)
    theirs = Decision(START, What.EVICTED, "theirs/x", for_whom="gang ml/big")
    view = view_history(replace(snapshot, decisions=(theirs,)), Asked(namespace="ml"))
    assert isinstance(view, HistoryView)
    assert theirs in view.decisions


def test_what_is_gone_is_still_told_of(at: Cluster) -> None:
    at.delete("low")
    at.settle()
    assert told(at, pod="ml/low") == [("bound", "ml/low"), ("evicted", "ml/low")]
    assert ("planned", "ml/big-0") in told(at, gang="ml/big")
    for rank in range(2):
        at.delete(f"big-{rank}")
    at.settle()
    assert ("planned", "ml/big-0") in told(at, gang="ml/big")
    assert ("reserved", "gang ml/big") in told(at, pod="ml/big-0")


def test_what_is_not_known_is_said_with_what_is_like_it(at: Cluster) -> None:
    assert unknown(at, pod="ml/lo") == "no pod ml/lo is known; there is pod/low"
    assert unknown(at, gang="ml/bi") == (
        "no gang ml/bi is known; there is gang/big, pod/big-0, pod/big-1"
    )
    assert unknown(at, node="n9") == "no node n9 is known"


def test_of_a_pod_that_is_known_there_may_be_no_decisions(at: Cluster) -> None:
    at.add_pod("next", 1)
    at.settle()
    assert told(at, pod="ml/next") == []


def test_plans_of_an_earlier_leader_are_told_by_their_pods(at: Cluster) -> None:
    at.delete("low")
    at.settle()
    at.restart()
    at.now += 60.0
    at.settle()
    (plan, *_) = found(at, pod="ml/big-0").decisions
    assert isinstance(plan, Decision)
    assert (plan.what.value, plan.from_annotation, plan.at) == ("planned", True, START + 1)
    assert (plan.nodes, plan.count) == ((at.places("big-0")[0],), 8)
    assert found(at).began == START + 61
    assert at.schedule("big-0")
    at.settle()
    told_now = found(at, pod="ml/big-0").decisions
    assert [each.what.value for each in told_now if not each.from_annotation] == ["bound"]
    assert not [each for each in told_now if each.from_annotation]


def test_a_recognised_gang_may_be_named_as_its_owner() -> None:
    at, train = four_nodes(), job("train", 2)
    there_is(at, train)
    create(at, member(train, 0), member(train, 1))
    at.settle()
    assert told(at, gang="ml/job/train") == told(at, gang="ml/train") != []
