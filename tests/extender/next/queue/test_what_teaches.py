"""Only pods that had their GPUs teach how long pods run, and no tenant's take away what was learnt
of another's."""

import pytest

from linkwise.extender.next.queue.run_times import KnownRunTimes
from linkwise.kube.objects import ContainerStatus, OwnerReference, Pod
from tests.extender.cluster import Cluster, change

PLENTY = 4200  # more kinds of pods than are remembered


def cluster() -> Cluster:
    at = Cluster()
    at.add_node("n1")
    return at


def lives(
    at: Cluster,
    namespace: str,
    owner_kind: str,
    seconds: float,
    *,
    node: str = "n1",
    phase: str = "Running",
    **said: str,
) -> None:
    def of_it(pod: Pod) -> Pod:
        owner = OwnerReference(kind=owner_kind, name="o", uid="o", controller=True)
        meta = change(pod.metadata, namespace=namespace, owner_references=(owner,))
        return change(pod, metadata=meta)

    at.add_pod("p", 8, node=node, said=said, alter=of_it)
    at.set_phase("p", phase)
    at.now += seconds
    at.delete("p")


def known(at: Cluster) -> KnownRunTimes:
    return at.core.snapshot(at.now).run_times


def ml_is_known() -> Cluster:
    """Jobs of namespace ml run for a minute, as they declare, and Notebooks for longer."""
    at = cluster()
    for _ in range(8):
        lives(at, "ml", "Job", 60.0, expected_duration="60s")
        lives(at, "ml", "Notebook", 600.0, expected_duration="60s")
    assert known(at).half["ml", "Job", "8"] == 60.0
    assert known(at).broken == {"ml"}
    return at


def test_pods_on_a_node_that_does_not_exist_teach_nothing() -> None:
    at = ml_is_known()
    before, kinds = known(at), len(at.core._run_times)
    for number in range(PLENTY):
        # kube-controller-manager fails pods that have no node, and deletes them
        phase = ("Pending", "Failed")[number % 2]
        kind = f"Kind{number}"
        lives(at, "b", kind, 3600.0, node="gone", phase=phase, expected_duration="1s")
    assert known(at) == before
    assert len(at.core._run_times) == kinds


def test_short_pods_of_one_namespace_take_nothing_from_another() -> None:
    at = ml_is_known()
    before = known(at)
    for number in range(PLENTY):
        lives(at, "b", f"Kind{number}", 1.0, expected_duration="60s")
    after = known(at)
    assert after.half["b",] == 1.0
    assert after.half["ml",] == before.half["ml",]
    assert after.half["ml", "Job", "8"] == 60.0
    assert after.half["ml", "Notebook", "8"] == 600.0
    assert after.broken == {"ml"}


def test_of_the_whole_cluster_each_namespace_counts_alike() -> None:
    """Where a namespace has few pods of its own, the cluster's tell how long they run."""
    at = cluster()
    for _ in range(32):
        lives(at, "ml", "Job", 7200.0)
    for _ in range(200):
        lives(at, "b", "Job", 1.0)
    assert known(at).half[()] == 7200.0


def test_a_pod_whose_init_container_runs_has_its_gpus() -> None:
    """Its phase is Pending until the last of them has ended."""
    at = cluster()
    for name in ("p", "q", "r"):
        pod = at.add_pod(name, 2, node="n1", expected_duration="1s")
        there = (ContainerStatus(name="init"),)
        at.put_pod(change(pod, status=change(pod.status, init_container_statuses=there)))
    at.now += 3600.0
    at.settle()
    assert known(at).broken == {"ml"}


def test_a_pod_of_which_no_kubelet_is_heard_breaks_no_word() -> None:
    at = cluster()
    for number in range(3):
        at.add_pod(f"p{number}", 2, node="n1", expected_duration="1s")
    at.now += 3600.0
    at.settle()
    assert known(at).broken == frozenset()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_run_counts_however_it_ends(phase: str) -> None:
    at = cluster()
    for number in range(8):
        at.add_pod(f"p{number}", 8, node="n1")
        at.set_phase(f"p{number}", "Running")
        at.now += 300.0
        at.set_phase(f"p{number}", phase)
    assert known(at).half["ml",] == 300.0


def test_a_pod_teaches_once_however_often_its_kubelet_lets_it_end() -> None:
    at = cluster()
    at.add_pod("p", 8, node="n1", expected_duration="1s")
    for _ in range(20):
        for phase in ("Running", "Succeeded"):
            at.set_phase("p", phase)
            at.now += 100.0
    at.delete("p")
    assert known(at) == KnownRunTimes({}, frozenset())


@pytest.mark.parametrize(("phase", "teaches"), [("Succeeded", True), ("Failed", False)])
def test_a_run_too_short_to_be_seen_counts_if_it_succeeded(phase: str, *, teaches: bool) -> None:
    """A pod that failed may have been refused by its kubelet, or collected without a node."""
    at = cluster()
    for number in range(8):
        at.add_pod(f"p{number}", 8, node="n1", expected_duration="1s")
        at.now += 300.0
        at.set_phase(f"p{number}", phase)
    assert known(at).half.get(("ml",)) == (300.0 if teaches else None)
    assert known(at).broken == ({"ml"} if teaches else frozenset())
