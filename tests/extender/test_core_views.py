"""What the core says of pods, gangs and nodes to people."""

from linkwise.extender.views import Explanation, NearestMiss, ReasonCount
from tests.extender.cluster import Cluster, container


def explain(at: Cluster, name: str) -> Explanation:
    found = at.core.explain("ml", name, at.now)
    assert found is not None
    return found


def test_a_bound_pod_shows_its_gpus_and_what_they_are_worth() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    at.add_pod("a", containers=[container("x", 2), container("y", 1)], prefer_link="switch")
    at.schedule("a")
    found = explain(at, "a")
    assert (found.state, found.node, found.link) == ("bound", "n1", "NVLINK")
    assert found.gpus == at.gpus("a")
    assert found.gbytes_per_s > 0
    assert found.wanted is not None
    assert found.wanted.containers == {"x": 2, "y": 1}
    assert found.wanted.prefer_link == "switch"


def test_the_real_gpus_are_shown_once_the_kubelet_has_said_them() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 2)
    at.schedule("a")
    real = {"main": at.uuids("n1", 6, 7)}
    at.start("a", real)
    assert explain(at, "a").gpus == real


def test_a_waiting_pod_is_told_why_by_numbers_of_nodes_and_what_came_nearest() -> None:
    at = Cluster()
    for number in range(3):
        at.add_node(f"n{number}", "hgx-h100")
        at.add_pod(f"on-{number}", 4 - number, node=f"n{number}")
    at.add_node("old", "p100-pcie-8")
    at.add_pod("a", 7, require_link="nvlink")
    found = explain(at, "a")
    assert found.state == "waiting"
    assert found.summary == "No node has a GPU set for the pod now."
    assert found.reasons == (
        ReasonCount("linkwise: fewer free GPUs than wanted", 3),
        ReasonCount("linkwise: no GPU set of this node has the required link", 1),
    )
    # All 8 GPUs of `old` are free, but the link that it lacks will never be there.
    assert found.nearest == NearestMiss("n2", "6 of 8 suitable GPUs are free, 7 are wanted")
    at.add_pod("b", 9)
    nearest = explain(at, "b").nearest
    assert nearest == NearestMiss("old", "it has 8 GPUs, 9 are wanted")
    at.add_pod("c", 2, gpu_model="A100")
    nearest = explain(at, "c").nearest
    assert nearest is not None
    assert nearest.lacks == "0 of its 8 GPUs have the model and memory wanted, not 2"


def test_a_link_that_is_missing_is_named_with_the_best_there_is() -> None:
    at = Cluster()
    at.add_node("n1", "a100-pcie-8-bridged")
    at.add_pod("busy", 2, node="n1")
    at.set_in_use("n1", {"ml/busy": {"main": at.uuids("n1", 0, 1)}})
    at.add_pod("a", 6, require_link="nvlink")
    assert explain(at, "a").nearest == NearestMiss(
        "n1", "the best link of 6 of its free GPUs is node, nvlink is required"
    )


def test_a_pod_that_fits_says_on_how_many_nodes() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_node("n2")
    at.add_pod("a", 8)
    found = explain(at, "a")
    assert found.fitting_nodes == 2
    assert found.nearest is None
    assert found.summary.startswith("2 nodes have GPUs for the pod; kube-scheduler has not tried")
    at.remove_node("n2")
    assert explain(at, "a").summary.startswith("1 node has GPUs for the pod; kube-scheduler has")


def test_states_in_words() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("web")
    at.add_pod("wrong", 1, require_link="fast")
    at.add_pod("ended", 1)
    at.schedule("ended")
    at.set_phase("ended", "Succeeded")
    at.add_gang("g", 1, 2)
    at.settle()
    states = {name: explain(at, name).state for name in ("web", "wrong", "ended", "g-0")}
    assert states == {"web": "not-ours", "wrong": "invalid", "ended": "ended", "g-0": "planned"}
    assert "linkwise.dev/require-link" in explain(at, "wrong").summary
    assert at.core.explain("ml", "nobody", at.now) is None


def test_a_pod_that_ends_says_for_how_long_its_gpus_are_taken() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 2)
    at.schedule("a")
    at.start("a")
    at.terminate("a")
    held = "2 of its GPUs are in use until its node says otherwise."
    assert explain(at, "a").summary == f"The pod is ending on node n1. {held}"
    at.set_phase("a", "Succeeded")
    assert explain(at, "a").summary == f"The pod has ended. {held}"
    at.stop("a", "n1")
    assert explain(at, "a").summary == "The pod has ended."


def test_a_gang_shows_its_members_its_plan_and_its_deadline() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_gang("g", 2, 4)
    at.settle()
    at.schedule("g-0")
    at.settle()
    found = explain(at, "g-1").gang
    assert found is not None
    assert (found.phase, found.size, found.started) == ("binding", 2, False)
    assert found.deadline == at.now + 600
    assert [(m.pod, m.rank, m.state, m.node) for m in found.members] == [
        ("g-0", 0, "bound", "n1"),
        ("g-1", 1, "planned", "n1"),
    ]
    plan = at.plan("g-1")
    assert plan is not None
    assert found.plan == plan.id


def test_a_gang_that_forms_says_who_is_missing() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("g-0", 2, gang="g", gang_size="3")
    at.settle()
    assert at.core.gangs(at.now)[0].reason == "1 of 3 members are there"
    assert explain(at, "g-0").summary == "Gang g waits for its members."


def test_counts_are_of_everything_there_is() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_node("n2")
    at.annotate_node("n2", "linkwise.dev/topology", "mangled")
    at.set_health("n1", 7)
    at.add_pod("a", 2)
    at.schedule("a")
    at.start("a")
    at.add_gang("g", 1, 3)
    at.settle()
    counts = at.core.counts(at.now)
    assert counts.gpus == {"used": 2, "held": 3, "free": 2, "unhealthy": 1}
    assert counts.nodes == {"usable": 1, "unusable": 1}
    assert counts.gangs == {"planned": 1}


def test_a_nodes_gpus_show_state_and_holder() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("a", 1)
    at.schedule("a")
    at.start("a")
    (index,) = at.indices("a")
    (view,) = at.core.nodes(at.now)
    gpu = view.gpus[index]
    assert (gpu.state, gpu.holder) == ("used", "ml/a")
    assert view.free == 7
    assert 0 < view.future < 1
    at.delete("a")
    assert at.core.nodes(at.now)[0].gpus[index].holder == "ml/a"  # the kubelet says so


def test_nodes_without_gpus_are_left_out() -> None:
    at = Cluster()
    at.add_node("n1")
    at.annotate_node("n1", "linkwise.dev/topology", None)
    assert [view.reason for view in at.core.nodes(at.now)] == ["no topology published"]
