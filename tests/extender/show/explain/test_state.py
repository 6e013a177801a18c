"""What the extender says of its own part in the cluster, for `kubectl linkwise doctor`."""

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.show.explain.state import view_state
from linkwise.extender.state.views import KeptIdle, StateView, UnplannedPod
from linkwise.topology import names
from tests.extender.cluster import START, Cluster
from tests.extender.next.moves.movers import IGNORES
from tests.extender.next.preemption.jobs import own_job


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


def test_it_names_the_pods_whose_eviction_fails_their_job() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("fails", 1, alter=own_job(at, "fails"), preemptible="true")
    at.add_pod("idle", 1, alter=own_job(at, "idle"), reclaim_when_idle="1h")
    at.add_pod("ignores", 1, alter=own_job(at, "ignores", IGNORES), preemptible="true")
    at.add_pod("stays", 1, alter=own_job(at, "stays"))
    at.add_pod("bare", 1, preemptible="true")
    at.settle()
    assert state(at).failing == ("ml/fails", "ml/idle")


def kept(at: Cluster) -> list[tuple[str, tuple[str, ...]]]:
    at.settle()
    return [(each.gang, each.nodes) for each in state(at).kept_idle]


def test_it_names_the_idle_nodes_of_a_gang_that_the_cluster_cannot_hold() -> None:
    at = Cluster()
    for node in ("n1", "n2", "n3"):
        at.add_node(node)
    at.add_pod("server", 8, node="n2")
    created = at.now
    members = at.add_gang("g", 4, 8)
    assert kept(at) == [("ml/g", ("n1", "n3"))]
    assert state(at).kept_idle[0] == KeptIdle(
        "ml/g", "even without other pods", created, ("n1", "n3")
    )
    at.add_node("n4")  # now it waits for the server
    at.delete("server")
    at.stop("server", "n2")
    assert kept(at) == []
    assert at.plan(members[0]) is not None


def test_it_counts_the_members_that_no_autoscaler_sees() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_pod("g-0", 8, gang="g", gang_size="3", gang_to_come="nvidia.com/gpu=8")
    assert kept(at) == [("ml/g", ("n1",))]
    assert state(at).kept_idle[0].coming == 2


def test_no_node_is_kept_idle_for_pods_behind_the_gate_or_that_do_not_fit_there() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_gang("gated", 2, 8, gates=[names.GATE])
    at.add_pod("half", 1)
    at.settle()
    at.add_gang("large", 2, 16)
    assert kept(at) == []
