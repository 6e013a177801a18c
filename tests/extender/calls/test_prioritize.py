"""The prioritize verb, called as kube-scheduler calls it."""

from linkwise.extender.state.extender_calls import FilterCall
from tests.extender.calls.mixed import mixed
from tests.extender.cluster import Cluster


def scores(at: Cluster, name: str) -> dict[str, int]:
    return at.prioritize(name).scores


def test_bandwidth_counts_most() -> None:
    at = mixed()
    at.add_pod("a", 4)
    given = scores(at, "a")
    assert given["switch"] == 100
    assert given["switch"] > given["cube"] > given["pcie"] > 0


def test_of_equal_bandwidth_what_spoils_least_for_the_next_is_best() -> None:
    at = Cluster()
    for name in ("idle", "started"):
        at.add_node(name, "hgx-h100")
    at.add_pod("first", 4, node="started")
    at.add_pod("a", 4)
    given = scores(at, "a")
    assert given["started"] == 100
    assert given["idle"] < 100


def test_one_node_is_strictly_best_and_scores_are_0_to_100() -> None:
    at = Cluster()
    for number in range(5):
        at.add_node(f"n{number}", "hgx-h100")
    at.add_pod("a", 2)
    given = scores(at, "a")
    assert given["n0"] == 100
    assert all(0 <= score < 100 for name, score in given.items() if name != "n0")
    assert all(isinstance(score, int) for score in given.values())


def test_bandwidth_does_not_count_for_a_pod_that_prefers_no_link() -> None:
    at = Cluster()
    at.add_node("cube", "dgx1-v100")
    at.add_node("pcie", "p100-pcie-8")
    at.add_pod("a", 2, prefer_link="node")
    given = scores(at, "a")
    assert abs(given["cube"] - given["pcie"]) <= 15  # of 100, so 85 for bandwidth to both


def test_nodes_without_room_get_nothing() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 9)
    assert scores(at, "a") == {"n1": 0}
    assert at.core.prioritize(FilterCall(at.pod("a"), ()), at.now).scores == {}


def test_a_planned_member_gets_all_for_its_node() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_node("n2")
    at.add_gang("g", 1, 8)
    at.settle()
    assert scores(at, "g-0") == {"n1": 100, "n2": 0}


# preempt
