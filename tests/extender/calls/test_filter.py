"""The filter verb, called as kube-scheduler calls it."""

from linkwise.extender.next.queue.unschedulable_pods import MOMENT_SECONDS
from linkwise.extender.place.nodes import reasons
from linkwise.topology import names
from tests.extender.calls.mixed import mixed
from tests.extender.cluster import GPU, Cluster, change, container


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


def offers(at: Cluster, name: str, gpus: int) -> None:
    """The node's kubelet offers so many GPUs from now on."""
    node = at.nodes[name]
    amounts = {**node.status.allocatable, GPU: str(gpus)}
    at.put_node(change(node, status=change(node.status, allocatable=amounts)))


def test_a_node_whose_kubelet_offers_no_gpus_gets_no_pod_whatever_its_annotation_says() -> None:
    """kube-scheduler names such a node if a DRA driver has devices for the same resource."""
    at = Cluster()
    for name in ("n1", "n2"):
        at.add_node(name, "dgx1-v100")
    offers(at, "n1", 0)
    at.add_pod("a", 2)
    assert at.filter("a").node_names == ("n2",)
    assert at.filter_again("a").failed == {"n1": reasons.NOT_OFFERED}
    assert at.filter("a", ["n1"]).failed == {"n1": reasons.NOT_OFFERED}
    offers(at, "n1", 8)
    assert at.filter("a", ["n1"]).node_names == ("n1",)


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
        at.set_in_use(
            "n1", {**at.in_use("n1").pods, f"ml/p{number}": {"main": at.uuids("n1", *pair)}}
        )
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
    at.add_pod("a", 1, require_link="nvlink")
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


def test_a_pod_on_a_dead_gpu_counts_beside_plans_as_in_the_kubelet() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("old", 1, node="n1")
    at.set_in_use("n1", {"ml/old": {"main": at.uuids("n1", 0)}})
    at.set_health("n1", 0)
    offers(at, "n1", 7)
    at.add_gang("g", 1, 6)
    at.settle()
    at.add_pod("a", 1)
    assert at.filter("a").failed == {"n1": reasons.FEWER}
    at.delete("old")
    at.settle()
    at.pass_time(MOMENT_SECONDS)
    assert at.pod("a").status.nominated_node_name == "n1"
    assert at.filter("a").node_names == ("n1",)


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
