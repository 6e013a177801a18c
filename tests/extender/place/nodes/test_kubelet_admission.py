"""A node whose kubelet refuses pods with GPUs gets no others until it takes them again."""

from datetime import UTC, datetime

import pytest

from linkwise.extender.place.nodes.kubelet_admission import FIRST_PAUSE_SECONDS
from linkwise.extender.state.extender_calls import BindOrder, BindRefusal, Outcome
from linkwise.extender.state.views import ReasonCount
from tests.extender.cluster import GPU, Cluster, change
from tests.extender.place.nodes.refusals import NO_PLUGIN, cluster, refuse, refused_on_n1

REFUSES = "linkwise: kubelet refuses pods with GPUs"
SAID = (
    "Pod was rejected: Allocate failed due to cannot allocate unregistered device nvidia.com/gpu, "
    "which is unexpected"
)


def bound(at: Cluster, name: str, node: str, gpus: int = 1) -> None:
    at.add_pod(name, gpus)
    at.bind(name, node)
    at.settle()


def offer(at: Cluster, node: str, gpus: int) -> None:
    status = at.nodes[node].status
    at.put_node(
        change(
            at.nodes[node],
            status=change(status, allocatable={**status.allocatable, GPU: str(gpus)}),
        )
    )
    at.settle()


def test_after_the_first_that_is_refused_no_other_pod_is_placed_there() -> None:
    """Found: a dozen pods of a ReplicaSet failed one after the other."""
    at = refused_on_n1(NO_PLUGIN, 1)
    at.add_pod("second", 1)
    assert at.filter("second").failed == {"n1": REFUSES}
    assert isinstance(at.begin_bind("second", "n1"), BindRefusal)
    at.add_gang("g", 2, 1)
    at.settle()
    assert at.phase("g") == "forming"
    assert at.sound()


def test_other_nodes_are_taken_meanwhile() -> None:
    at = refused_on_n1(NO_PLUGIN, 1)
    at.add_node("n2", "hgx-h100")
    at.add_pod("second", 1)
    assert at.schedule("second") == "n2"


def test_what_was_planned_there_is_planned_elsewhere() -> None:
    at = cluster("n1")
    bound(at, "first", "n1")
    at.add_gang("g", 2, 1)
    at.settle()
    at.add_node("n2", "hgx-h100")
    refuse(at, "first", NO_PLUGIN)
    assert [at.schedule(member) for member in ("g-0", "g-1")] == ["n2", "n2"]


def test_a_binding_that_is_on_its_way_comes_to_its_end() -> None:
    at = cluster("n1")
    bound(at, "first", "n1")
    at.add_pod("second", 1)
    order = at.begin_bind("second", "n1")
    assert isinstance(order, BindOrder)
    refuse(at, "first", NO_PLUGIN)
    assert at.post_binding(order)
    at.core.end_bind(order, Outcome.DONE, at.now)
    assert at.sound()


def test_the_node_is_as_any_once_its_allocatable_gpus_are_back() -> None:
    at = refused_on_n1(NO_PLUGIN, 1)
    offer(at, "n1", 0)
    at.add_pod("second", 1)
    assert at.filter("second").node_names == ()
    offer(at, "n1", 8)
    assert at.filter("second").node_names == ("n1",)
    at.add_gang("g", 2, 1)
    at.settle()
    assert at.phase("g") == "planned"


def test_of_a_gang_one_pod_is_tried_and_only_where_that_is_all_of_it() -> None:
    at = refused_on_n1(NO_PLUGIN, 1)
    due = at.core.next_due()
    assert due is not None
    assert due <= at.now + FIRST_PAUSE_SECONDS
    at.add_gang("two", 2, 1)
    at.pass_time(FIRST_PAUSE_SECONDS)
    assert at.phase("two") == "forming"
    at.add_gang("one", 1, 1)
    at.settle()
    assert at.phase("one") == "planned"


def test_a_pod_that_fails_for_another_reason_closes_nothing() -> None:
    at = cluster("n1")
    bound(at, "first", "n1")
    at.set_phase("first", "Failed")
    at.add_pod("second", 1)
    assert at.schedule("second") == "n1"


def test_a_pod_that_ran_and_is_refused_by_a_kubelet_that_started_again_closes_nothing() -> None:
    """Its node reported no GPUs, and has them again before the extender hears of the pod."""
    at = cluster("n1")
    bound(at, "first", "n1")
    at.start("first")
    offer(at, "n1", 0)
    offer(at, "n1", 8)
    refuse(at, "first", NO_PLUGIN)
    at.delete("first")
    at.add_pod("second", 1)
    assert at.schedule("second") == "n1"


@pytest.mark.parametrize(("intruder", "closes"), [(8, False), (4, True)])
def test_a_pod_whose_gpus_another_took_by_naming_the_node_closes_nothing(
    intruder: int, closes: bool
) -> None:
    at = cluster("n1")
    at.add_pod("planned", 4)
    at.bind("planned", "n1")
    at.add_pod("intruder", intruder, node="n1")
    at.settle()
    refuse(at, "planned", "OutOfnvidia.com/gpu")
    at.delete("intruder")
    at.settle()
    at.add_pod("next", 1)
    assert at.filter("next").failed == ({"n1": REFUSES} if closes else {})


def test_what_failed_before_an_extender_came_closes_nothing() -> None:
    at = refused_on_n1(NO_PLUGIN, 1)
    bound_long_ago = at.add_pod("old", 1, node="n1")
    created = datetime.fromtimestamp(at.now - 86_400, UTC)
    at.put_pod(
        change(
            bound_long_ago,
            metadata=change(bound_long_ago.metadata, creation_timestamp=created),
            status=change(bound_long_ago.status, phase="Failed", reason="UnexpectedAdmissionError"),
        )
    )
    at.restart()
    at.add_pod("second", 1)
    assert at.schedule("second") == "n1"


def test_people_are_told_why_the_node_is_not_used() -> None:
    at = refused_on_n1(NO_PLUGIN, 1)
    (node,) = at.core.nodes(at.now)
    assert (node.usable, node.reason) == (
        False,
        f"kubelet refuses pods with GPUs: ml/first: {SAID}",
    )


def test_explain_gives_the_reason_that_filter_gives() -> None:
    at = refused_on_n1(NO_PLUGIN, 1)
    at.add_pod("second", 1)
    answer = at.filter("second")
    assert answer.failed == {"n1": REFUSES}
    found = at.core.explain("ml", "second", at.now)
    assert found is not None
    assert found.search is not None
    missing = [each for level in found.search.levels for each in level.missing]
    assert missing == [ReasonCount(REFUSES.removeprefix("linkwise: "), 1, f"ml/first: {SAID}")]
