"""filter, prioritize and preempt, asked as kube-scheduler asks them."""

from linkwise.extender.api.extender_calls import FilterCall, PreemptCall, Victims
from linkwise.extender.placement.nodes import reasons
from linkwise.topology import names
from tests.extender.cluster import Cluster, container


def mixed() -> Cluster:
    at = Cluster()
    at.add_node("cube", "dgx1-v100")  # 8 V100, NVLink
    at.add_node("pcie", "p100-pcie-8")  # 8 P100, no NVLink
    at.add_node("switch", "hgx-h100")  # 8 H100, NVSwitch
    return at


def test_a_pod_without_gpus_passes_everywhere() -> None:
    at = mixed()
    at.add_pod("web")
    assert at.filter("web").node_names == ("cube", "pcie", "switch")


def test_a_pod_passes_where_a_set_of_its_size_is_free() -> None:
    at = mixed()
    at.add_pod("busy", 1, node="cube")
    at.add_pod("a", 8)
    answer = at.filter_again("a")
    assert answer.node_names == ("pcie", "switch")
    assert answer.failed == {"cube": reasons.FEWER}


def test_a_required_link_that_a_node_can_never_have_is_unresolvable() -> None:
    at = mixed()
    at.add_pod("a", 2, require_link="nvlink")
    answer = at.filter_again("a")
    assert answer.node_names == ("cube", "switch")
    assert answer.unresolvable == {"pcie": reasons.NEVER_LINKED}


def test_a_required_link_that_is_only_taken_may_come_free() -> None:
    at = Cluster()
    at.add_node("n1", "a100-pcie-8-bridged")  # NVLink pairs (0,2) (1,3) (4,5) (6,7)
    for number, pair in enumerate([(0, 1), (4, 6)]):
        at.add_pod(f"p{number}", 2, node="n1")
        at.set_in_use("n1", {**at.in_use("n1"), f"ml/p{number}": {"main": at.uuids("n1", *pair)}})
    at.add_pod("a", 2, require_link="nvlink")
    assert at.filter("a").failed == {"n1": reasons.NO_LINK}


def test_models_and_memory_are_matched_and_never_wait_for_a_victim() -> None:
    at = mixed()
    at.add_pod("h", 1, gpu_model="H100,H200")
    assert at.filter("h").node_names == ("switch",)
    assert at.filter_again("h").unresolvable == dict.fromkeys(("cube", "pcie"), reasons.OTHER_MODEL)
    at.add_pod("m", 1, gpu_memory="60Gi")
    assert at.filter("m").node_names == ("switch",)


def test_more_gpus_than_a_node_has_are_unresolvable() -> None:
    at = mixed()
    at.add_pod("a", 9)
    assert set(at.filter("a").unresolvable.values()) == {reasons.TOO_SMALL}


def test_nodes_without_a_readable_topology_say_so() -> None:
    at = mixed()
    at.annotate_node("cube", names.TOPOLOGY, None)
    at.annotate_node("pcie", names.TOPOLOGY, "mangled")
    at.add_pod("a", 1)
    answer = at.filter_again("a", ["cube", "pcie", "switch", "stranger"])
    assert answer.node_names == ("switch",)
    assert answer.failed == {
        "cube": reasons.UNPUBLISHED,
        "pcie": reasons.UNREADABLE,
        "stranger": reasons.UNKNOWN_NODE,
    }


def test_a_wrong_annotation_is_the_answer_for_every_node() -> None:
    at = mixed()
    at.add_pod("a", 1, require_link="fast")
    (text,) = set(at.filter("a").unresolvable.values())
    assert "linkwise.dev/require-link: 'fast'" in text


def test_gpus_planned_for_others_are_not_free() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_gang("g", 1, 8)
    at.settle()
    at.add_pod("a", 1)
    assert at.filter("a").failed == {"n1": reasons.FEWER}


def test_each_container_keeps_to_the_link_and_the_pod_as_a_whole_need_not() -> None:
    at = Cluster()
    at.add_node("n1", "a100-pcie-8-bridged")
    at.add_pod("one", 4, require_link="nvlink")
    at.add_pod("two", containers=[container("x", 2), container("y", 2)], require_link="nvlink")
    assert at.filter("two").node_names == ("n1",)
    assert at.filter("one").node_names == ()
    at.schedule("two")
    pairs = [frozenset(at.gpus("two")[name]) for name in ("x", "y")]
    bridged = [frozenset(at.uuids("n1", *pair)) for pair in ((0, 2), (1, 3), (4, 5), (6, 7))]
    assert pairs[0] in bridged
    assert pairs[1] in bridged


def test_filter_changes_nothing() -> None:
    at = mixed()
    at.add_pod("a", 2)
    before = at.core.nodes(at.now)
    assert at.filter_again("a") == at.filter("a")
    assert at.core.nodes(at.now) == before


def test_the_answer_is_the_same_for_every_order_of_names() -> None:
    at = mixed()
    at.add_pod("a", 9)
    forth = at.filter("a", ["cube", "pcie", "switch"])
    back = at.filter("a", ["switch", "pcie", "cube"])
    assert dict(forth.unresolvable) == dict(back.unresolvable)


# prioritize


def scores(at: Cluster, name: str) -> dict[str, int]:
    return dict(at.prioritize(name).scores)


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
    assert at.core.prioritize(FilterCall(at.pod("a"), ()), at.now).scores == ()


def test_a_planned_member_gets_all_for_its_node() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_node("n2")
    at.add_gang("g", 1, 8)
    at.settle()
    assert scores(at, "g-0") == {"n1": 100, "n2": 0}


# preempt


def preempt(at: Cluster, name: str, victims: dict[str, list[str]]) -> set[str]:
    uids = {
        node: Victims(tuple(at.pod(victim).metadata.uid for victim in those))
        for node, those in victims.items()
    }
    return set(at.core.preempt(PreemptCall(at.pod(name), uids), at.now).victims)


def test_a_node_is_kept_if_the_pod_fits_without_the_victims() -> None:
    at = Cluster()
    at.add_node("n1")
    for name in ("small", "large"):
        at.add_pod(name, 2 if name == "small" else 6, node="n1")
    at.add_pod("a", 4)
    assert preempt(at, "a", {"n1": ["large"]}) == {"n1"}
    assert preempt(at, "a", {"n1": ["small"]}) == set()
    assert preempt(at, "a", {"n1": ["small", "large"], "stranger": []}) == {"n1"}


def test_no_victims_are_a_fair_question() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 4)
    assert preempt(at, "a", {"n1": []}) == {"n1"}


def test_an_unhealthy_gpu_of_a_victim_is_no_gain() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("victim", 8)
    at.schedule("victim")
    at.set_health("n1", 3)
    at.add_pod("a", 8)
    at.add_pod("b", 7)
    assert preempt(at, "a", {"n1": ["victim"]}) == set()
    assert preempt(at, "b", {"n1": ["victim"]}) == {"n1"}


def test_victims_must_leave_gpus_with_the_required_link() -> None:
    at = Cluster()
    at.add_node("n1", "a100-pcie-8-bridged")
    at.add_pod("keeper", 6, node="n1")
    at.add_pod("victim", 2, node="n1")
    at.set_in_use(
        "n1",
        {
            "ml/victim": {"main": at.uuids("n1", 0, 1)},
            "ml/keeper": {"main": at.uuids("n1", 2, 3, 4, 5, 6, 7)},
        },
    )
    at.add_pod("linked", 2, require_link="nvlink")
    at.add_pod("any", 2)
    assert preempt(at, "linked", {"n1": ["victim"]}) == set()
    assert preempt(at, "any", {"n1": ["victim"]}) == {"n1"}


def test_no_node_at_a_time_is_preempted_for_a_gang() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("victim", 8, node="n1")
    at.add_gang("g", 1, 8)
    at.settle()
    assert preempt(at, "g-0", {"n1": ["victim"]}) == set()
