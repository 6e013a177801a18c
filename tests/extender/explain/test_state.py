"""What the extender says of its own part in the cluster, for `kubectl linkwise doctor`."""

from linkwise.extender.api.views import StateView, UnplannedPod
from linkwise.extender.core_settings import CoreSettings
from linkwise.extender.explain.state import view_state
from linkwise.topology import names
from tests.extender.cluster import START, Cluster


def state(at: Cluster) -> StateView:
    return view_state(at.core.snapshot(at.now))


def test_it_knows_who_calls_and_since_when_it_decides() -> None:
    at = Cluster(settings=CoreSettings(namespaces=("ml",)), is_asked=False)
    at.settle()
    at.now += 60
    assert state(at) == StateView(START + 60, START, "nvidia.com/gpu", ("ml",), {}, ())
    at.add_node("n1")
    at.add_pod("a", 1)
    at.filter("a")
    at.now += 60
    assert state(at).calls == {"default-scheduler": START + 60}


def test_it_names_the_pods_that_came_past_it() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("before", 1, node="n1")
    at.settle()
    at.now += 60
    at.add_pod("ours", 1)
    at.schedule("ours")
    at.now += 60
    at.add_pod("cpu", 0, node="n1")
    at.add_pod("past", 1, node="n1")
    assert state(at).unplanned == (UnplannedPod("ml/past", "n1", "default-scheduler"),)


def test_a_pod_that_its_scheduler_asked_about_came_not_past_it() -> None:
    """It was placed by count, and its node got a topology later."""
    at = Cluster()
    at.add_node("n1")
    text = at.nodes["n1"].metadata.annotations[names.TOPOLOGY]
    at.annotate_node("n1", names.TOPOLOGY, None)
    at.settle()
    at.now += 60
    at.add_pod("counted", 1)
    at.now += 1
    assert at.schedule("counted") == "n1"
    at.annotate_node("n1", names.TOPOLOGY, text)
    assert state(at).unplanned == ()


def test_a_pod_that_is_left_alone_or_placed_by_count_came_not_past_it() -> None:
    at = Cluster(settings=CoreSettings(namespaces=("canary",)))
    at.add_node("n1")
    at.settle()
    at.now += 60
    at.add_pod("theirs", 1, node="n1")
    assert state(at).unplanned == ()
