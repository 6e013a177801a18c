"""A kubelet that has fewer GPUs than the extender counts: smaller pods go on."""

import pytest

from linkwise.extender.place.nodes.kubelet_admission import FIRST_PAUSE_SECONDS
from linkwise.topology import names
from tests.extender.cluster import GPU, Cluster, change
from tests.extender.place.nodes.refusals import cluster, refuse


def few(requested: int, available: int, resource: str = GPU) -> str:
    return (
        "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
        f"{resource}. Requested: {requested}, Available: {available}, which is unexpected"
    )


def refused(at: Cluster, name: str, gpus: int, said: str, reason: str = "") -> None:
    at.add_pod(name, gpus)
    assert at.schedule(name) == "n1"
    at.settle()
    refuse(at, name, reason or "UnexpectedAdmissionError", said)
    at.delete(name)
    at.settle()


def fits(at: Cluster, gpus: int) -> bool:
    at.add_pod("asks", gpus)
    fitting = at.filter("asks").node_names == ("n1",)
    at.delete("asks")
    return fitting


def test_pods_of_as_many_as_the_kubelet_has_go_on_and_larger_ones_wait() -> None:
    at = cluster("n1")
    refused(at, "first", 8, few(8, 7))
    assert [fits(at, gpus) for gpus in (1, 7, 8)] == [True, True, False]
    at.add_pod("holds", 4)
    assert at.schedule("holds") == "n1"
    at.settle()
    assert [fits(at, gpus) for gpus in (3, 4)] == [True, False]
    assert at.sound()


def test_gpus_of_bound_pods_are_not_among_those_that_lack() -> None:
    at = cluster("n1")
    at.add_pod("holds", 4)
    assert at.schedule("holds") == "n1"
    at.settle()
    refused(at, "first", 4, few(4, 2))
    assert [fits(at, gpus) for gpus in (2, 3)] == [True, False]
    at.delete("holds")
    at.settle()
    assert [fits(at, gpus) for gpus in (6, 7)] == [True, False]


def test_a_plan_for_more_than_the_kubelet_has_is_made_elsewhere() -> None:
    at = cluster("n1")
    at.add_pod("first", 2)
    assert at.schedule("first") == "n1"
    at.add_gang("g", 3, 2)
    at.settle()
    assert at.phase("g") == "planned"
    refuse(at, "first", "UnexpectedAdmissionError", few(2, 1))
    at.delete("first")
    at.settle()
    assert at.phase("g") == "forming"
    at.add_node("n2", "hgx-h100")
    at.settle()
    assert at.phase("g") == "planned"
    assert at.sound()


def test_a_plan_for_gpus_that_are_there_stays() -> None:
    at = cluster("n1")
    at.add_pod("holds", 4)
    assert at.schedule("holds") == "n1"
    at.add_pod("planned", 1, gates=[names.GATE])
    at.settle()
    plan = at.plan("planned")
    assert plan is not None
    refused(at, "first", 2, few(2, 1))
    assert at.plan("planned") == plan


def test_one_that_waits_is_planned_once_all_count_again() -> None:
    at = cluster("n1")
    refused(at, "first", 8, few(8, 7))
    at.add_pod("waits", 8, gates=[names.GATE])
    at.settle()
    assert at.plan("waits") is None
    at.pass_time(FIRST_PAUSE_SECONDS)
    assert at.plan("waits") is not None


def test_what_the_kubelet_counts_by_requests_is_such_a_number_too() -> None:
    at = cluster("n1")
    said = "Node didn't have enough resource: nvidia.com/gpu, requested: 8, used: 2, capacity: 8"
    refused(at, "first", 8, said, "OutOfnvidia.com/gpu")
    assert [fits(at, gpus) for gpus in (6, 7)] == [True, False]


def test_it_is_as_any_once_its_allocatable_gpus_change() -> None:
    at = cluster("n1")
    refused(at, "first", 8, few(8, 7))
    for gpus in (7, 8):
        status = at.nodes["n1"].status
        allocatable = {**status.allocatable, GPU: str(gpus)}
        at.put_node(change(at.nodes["n1"], status=change(status, allocatable=allocatable)))
        at.settle()
    assert fits(at, 8)


def test_a_larger_one_is_tried_after_a_pause_that_doubles() -> None:
    """The kubelet may only have counted the GPUs of a pod that had ended."""
    at = cluster("n1")
    refused(at, "first", 8, few(8, 7))
    for pause in (FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS):
        at.pass_time(pause - 1)
        assert not fits(at, 8)
        at.pass_time(1)
        refused(at, "next", 8, few(8, 7))
    at.pass_time(4 * FIRST_PAUSE_SECONDS)
    assert fits(at, 8)
    at.pass_time(3600)
    assert fits(at, 8)
    refused(at, "late", 8, few(8, 7))
    at.pass_time(FIRST_PAUSE_SECONDS)
    assert fits(at, 8), "what was an hour ago makes no pause longer"


def test_of_several_containers_some_have_theirs_when_another_is_refused() -> None:
    at = cluster("n1")
    refused(at, "first", 8, few(4, 3))  # a container of four has got them
    assert [fits(at, gpus) for gpus in (7, 8)] == [True, False]


@pytest.mark.parametrize("said", [few(8, 8), few(8, 12), few(1, 0, "rdma/hca")])
def test_a_number_that_explains_nothing_closes_the_template_alone(said: str) -> None:
    at = cluster("n1")
    refused(at, "first", 8, said)
    assert [fits(at, gpus) for gpus in (7, 8)] == [True, False]


def test_none_at_all_closes_the_node() -> None:
    at = cluster("n1")
    refused(at, "first", 8, few(8, 0))
    assert not fits(at, 1)


def test_a_number_of_thousands_of_digits_is_none() -> None:
    """Found: nothing of such a pod was read, so it had its GPUs for as long as it existed."""
    at = cluster("n1")
    at.add_pod("first", 8)
    at.bind("first", "n1")
    refuse(at, "first", "UnexpectedAdmissionError", few(1, 0).replace("1", "9" * 5000))
    assert at.core.take_defects() == []
    assert at.free("n1") == 8
