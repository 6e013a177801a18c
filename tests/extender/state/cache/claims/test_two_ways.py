"""A cluster with nodes of a device plugin and nodes of a DRA driver: a pod gets its GPUs in one of
the two ways, and is told so."""

from linkwise.extender.next.gangs.scheduling_gates import PATIENCE_SECONDS
from linkwise.extender.show.explain.texts import explanation_text
from linkwise.extender.state.actions import CreateClaim
from linkwise.extender.state.cache.node_info import ClosedBy
from linkwise.extender.state.extender_calls import Outcome
from linkwise.topology import names
from tests.extender import claimed
from tests.extender.cluster import GPU, Cluster, change
from tests.extender.late_claims import ClaimCluster, add, cluster

CLAIMED = "a DRA driver gives out its GPUs, only to claims"
NOT_CLAIMED = "no DRA driver gives out its GPUs, and the pod has them from a claim"


def offers_by_kubelet(at: Cluster, node: str, gpus: int) -> None:
    status = at.nodes[node].status
    allocatable = {**status.allocatable, GPU: str(gpus)}
    at.put_node(change(at.nodes[node], status=change(status, allocatable=allocatable)))


def explained(at: Cluster, pod: str) -> str:
    found = at.core.explain("ml", pod, at.now)
    assert found is not None
    return explanation_text.pod(found, at.now)


def test_kube_scheduler_may_let_a_plain_pod_through_and_the_extender_does_not() -> None:
    """It does if it would make a claim for the request itself (DRAExtendedResource)."""
    at = cluster("n1")
    at.add_pod("plain", 2)
    refused = at.filter("plain", ["n1"])
    assert refused.node_names == ()
    assert refused.failed == {"n1": f"linkwise: {CLAIMED}"}


def test_both_kinds_of_pods_are_told_why_the_other_nodes_are_not_theirs() -> None:
    at = cluster("n1")
    at.add_node("p1")
    for name in ("n1", "p1"):
        at.cordon(name)
    add(at, "claims", 8)
    at.add_pod("plain", 8, gates=[names.GATE])
    at.settle()
    at.uncordon("n1")
    at.uncordon("p1")
    claimed.add_pod(at, "other", "n1", 0)
    at.add_pod("more", 1, node="p1")
    at.pass_time(PATIENCE_SECONDS)
    assert NOT_CLAIMED in explained(at, "claims")
    assert CLAIMED in explained(at, "plain")
    told = {event.pod.name: event.message for event in at.events}
    assert NOT_CLAIMED in told["claims"]
    assert "fewer free GPUs than wanted" in told["claims"]
    assert CLAIMED in told["plain"]


def test_nothing_is_planned_where_both_give_out_the_gpus() -> None:
    at = cluster("n1")
    offers_by_kubelet(at, "n1", 8)
    add(at, "a", 2)
    at.settle()
    assert at.places("a") == [""]
    assert at.core.nodes(at.now)[0].closed == ClosedBy.CLAIMS


def test_a_node_changes_from_a_driver_to_a_device_plugin_and_back() -> None:
    at = cluster("n1")
    add(at, "a", 2)
    at.settle()
    there = at.slices["n1-gpu.nvidia.com"]
    claimed.withdraw(at, there.metadata.name)
    offers_by_kubelet(at, "n1", 8)
    at.settle()
    assert at.places("a") == [""]
    at.add_pod("plain", 2, gates=[names.GATE])
    at.settle()
    assert at.places("plain") == ["n1"]
    at.delete("plain")
    offers_by_kubelet(at, "n1", 0)
    claimed.publish(at, there)
    at.pass_time(120)
    assert at.run_scheduler("a")
    assert at.sound()


def test_a_pod_with_a_claim_is_not_placed_by_count() -> None:
    at = ClaimCluster()
    at.add_node("n1")
    at.annotate_node("n1", names.TOPOLOGY, None)
    add(at, "a", 1)
    at.settle()
    at.pass_time(60)
    assert at.gates("a") == [names.GATE]


def test_a_gate_is_lifted_once_the_watch_shows_the_claim() -> None:
    at = cluster("n1")
    add(at, "a", 2)
    created = None
    while created is None:
        for action in at.core.decide(at.now):
            if isinstance(action, CreateClaim):
                created = action
                at.core.done(action, Outcome.DONE, at.now)
            else:
                at.core.done(action, at.carry_out(action), at.now)
    at.settle()
    assert at.gates("a") == [names.GATE]
    at.carry_out(created)  # the watch is late
    at.settle()
    assert at.gates("a") == []


def test_a_new_leader_keeps_the_plan_of_a_pod_that_kube_scheduler_has_tried() -> None:
    """kube-scheduler clears nominations. The claim is what counts."""
    at = cluster("n1", "n2")
    add(at, "a", 2)
    at.settle()
    before, pod = at.created["a"], at.pod("a")
    at.pods[pod.metadata.uid] = change(pod, status=change(pod.status, nominated_node_name=""))
    at.restart()
    at.settle()
    assert at.created["a"] is before
    assert at.dropped == []
    assert at.run_scheduler("a") == tuple(before.gpus["main"])


def test_what_waits_for_gpus_of_claims_knows_when_they_come_free() -> None:
    at = cluster("n1")
    add(at, "runs", 8, expected_duration="1h")
    at.settle()
    at.run_scheduler("runs")
    add(at, "waits", 8)
    at.settle()
    at.pass_time(60)
    (reservation,) = at.core.reservations.all()
    assert reservation.earliest.known
    assert 0 < reservation.start - at.now <= 3600


def test_only_a_pod_that_is_too_large_waits_in_vain() -> None:
    at = cluster("n1")
    server = claimed.add_pod(at, "server", "n1", *range(8))
    at.put_pod(change(server, spec=change(server.spec, restart_policy="Always")))
    add(at, "waits", 8)
    add(at, "large", 9)
    at.settle()
    at.pass_time(60)
    found = {name: at.core.explain("ml", name, at.now) for name in ("waits", "large")}
    told = [each.in_vain for each in found.values() if each is not None]
    assert told[0] != told[1] == "even without other pods"
