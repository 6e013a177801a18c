"""Nodes that offer GPUs and publish no topology: a vendor's plugin runs there alone."""

import re

import pytest

from linkwise.cli import kubectl_tables
from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.place.nodes import reasons
from linkwise.extender.state.extender_calls import (
    BindOrder,
    BindRefusal,
    Outcome,
    PreemptCall,
    Victims,
)
from linkwise.extender.state.views import CountView, ReasonCount
from linkwise.topology import names
from tests.extender.cluster import Cluster
from tests.extender.place.nodes.bare_nodes import bare, lose_topology
from tests.extender.place.nodes.refusals import NO_PLUGIN, refuse


def with_bare(*, known: bool = True) -> Cluster:
    """`known` has a topology, `bare` and `cpu` have none; `cpu` has no GPUs either."""
    at = Cluster()
    if known:
        at.add_node("known")
    bare(at, "bare")
    bare(at, "cpu", 0)
    return at


def test_a_pod_that_requires_nothing_passes_by_count_and_is_bound_without_a_plan() -> None:
    at = with_bare(known=False)
    at.add_pod("a", 2)
    answer = at.filter("a")
    assert answer.node_names == ("bare",)
    assert answer.failed == {"cpu": reasons.UNPUBLISHED}
    order = at.begin_bind("a", "bare")
    assert isinstance(order, BindOrder)
    assert order.annotations == {}
    at.bind("a", "bare")
    assert at.plan("a") is None
    assert at.pod("a").spec.node_name == "bare"
    assert at.sound()


def test_a_node_with_a_known_topology_is_better() -> None:
    at = with_bare()
    at.add_pod("a", 1)
    assert at.filter("a").node_names == ("known",)
    assert at.filter("a").node_names == ("bare", "known")  # it comes again: something else refused
    scores = at.prioritize("a").scores
    assert scores["known"] > scores["bare"] == 0


def test_every_known_node_that_fits_scores_more_than_one_by_count() -> None:
    at = with_bare()
    at.add_node("slow", "p100-pcie-8")
    at.add_pod("a", 8)
    scores = at.prioritize("a").scores
    assert min(scores["known"], scores["slow"]) > scores["bare"] == 0


def test_when_the_known_nodes_are_full_it_goes_by_count() -> None:
    at = with_bare()
    at.add_pod("busy", 8, node="known")
    at.add_pod("a", 1)
    assert at.filter("a").node_names == ("bare",)
    assert at.schedule("a") == "bare"


@pytest.mark.parametrize(
    "said",
    [{"require_link": "nvlink"}, {"gpu_model": "V100"}, {"gpu_memory": "10Gi"}],
    ids=lambda said: next(iter(said)),
)
def test_a_pod_with_requirements_is_refused_there(said: dict[str, str]) -> None:
    at = with_bare()
    at.add_pod("busy", 8, node="known")
    at.add_pod("a", 1, said=said)
    answer = at.filter("a")
    assert answer.node_names == ()
    assert answer.failed["bare"] == reasons.UNPUBLISHED
    assert at.begin_bind("a", "bare") == BindRefusal("linkwise: node bare: no topology published")


def test_a_preference_is_no_requirement() -> None:
    at = with_bare(known=False)
    at.add_pod("a", 2, prefer_link="nvlink")
    assert at.filter("a").node_names == ("bare",)


def test_a_mangled_topology_is_a_fault_and_no_node_by_count() -> None:
    at = with_bare(known=False)
    at.annotate_node("bare", names.TOPOLOGY, "mangled")
    at.add_pod("a", 1)
    assert at.filter("a").failed["bare"] == reasons.UNREADABLE


def test_a_gang_is_planned_on_known_nodes_only() -> None:
    at = with_bare()
    at.add_gang("g", 2, 8)
    at.settle()
    assert at.plan("g-0") is None
    assert at.filter("g-0").node_names == ()
    at.add_node("more")
    at.settle()
    assert {at.pod(f"g-{rank}").status.nominated_node_name for rank in range(2)} == {
        "known",
        "more",
    }


def test_the_gate_of_a_pod_that_only_nodes_by_count_have_room_for_is_lifted() -> None:
    at = with_bare()
    at.add_pod("busy", 8, node="known")
    at.add_pod("a", 2, gates=[names.GATE])
    at.settle()
    assert at.gates("a") == []
    assert at.plan("a") is None
    assert at.schedule("a") == "bare"


@pytest.mark.parametrize("gpus", [6, 9])
def test_a_gate_without_room_by_count_stays_until_there_is_some(gpus: int) -> None:
    at = with_bare()
    at.add_pod("busy", 8, node="known")
    at.add_pod("other", 4, node="bare")
    at.add_pod("a", gpus, gates=[names.GATE])
    at.settle()
    assert at.gates("a") == [names.GATE]
    at.delete("other")
    at.settle()
    assert at.gates("a") == ([] if gpus == 6 else [names.GATE])


def test_a_gate_with_requirements_stays() -> None:
    at = with_bare()
    at.add_pod("busy", 8, node="known")
    at.add_pod("a", 1, gates=[names.GATE], require_link="nvlink")
    at.settle()
    assert at.gates("a") == [names.GATE]


def test_victims_that_kube_scheduler_chose_by_count_stay_as_they_are() -> None:
    at = with_bare(known=False)
    at.add_pod("low", 8, node="bare")
    at.add_pod("a", 8, priority=10)
    asked = {"bare": Victims((at.pod("low").metadata.uid,), 0)}
    at.filter("a")
    assert at.core.preempt(PreemptCall(at.pod("a"), asked), at.now).victims == asked
    at.add_pod("picky", 8, priority=10, require_link="nvlink")
    assert at.core.preempt(PreemptCall(at.pod("picky"), asked), at.now).victims == {}


def test_a_node_whose_kubelet_refused_a_pod_takes_no_more_by_count() -> None:
    at = with_bare(known=False)
    at.add_pod("first", 1, node="bare")
    refuse(at, "first", NO_PLUGIN)
    at.add_pod("a", 1)
    assert at.filter("a").node_names == ()
    at.pass_time(31.0)  # then one as a trial
    assert at.filter("a").node_names == ("bare",)


def test_the_trial_after_a_refusal_wakes_a_pod_that_waits() -> None:
    at = with_bare(known=False)
    at.add_pod("first", 1, node="bare")
    refuse(at, "first", NO_PLUGIN)
    at.add_pod("a", 1)
    assert not at.schedule("a")
    at.pass_time(30.0)
    at.pass_time(2.0)
    assert at.pod("a").status.nominated_node_name == "bare"
    assert at.schedule("a") == "bare"


def test_the_trial_after_a_refusal_lifts_a_gate() -> None:
    at = with_bare(known=False)
    at.add_pod("first", 1, node="bare")
    refuse(at, "first", NO_PLUGIN)
    at.add_pod("a", 1, gates=[names.GATE])
    for _ in range(29):
        at.pass_time(1.0)
    assert at.gates("a") == [names.GATE]
    for _ in range(5):
        at.pass_time(1.0)
    assert at.gates("a") == []


def test_a_binding_by_count_without_a_response_ties_the_pod_to_no_node() -> None:
    at = with_bare(known=False)
    bare(at, "second")
    at.add_pod("a", 2)
    at.filter("a")
    order = at.begin_bind("a", "bare")
    assert isinstance(order, BindOrder)
    at.core.end_bind(order, Outcome.UNKNOWN, at.now)
    assert at.settle() == []
    assert at.filter("a").node_names == ("bare", "second")


def counted(at: Cluster, node: str) -> tuple[int, int]:
    """The node's GPUs that pods have, and that are free."""
    found = at.core.snapshot(at.now).node_named[node]
    return sum(gpus.bit_count() for gpus in found.owned.values()), found.free.bit_count()


def left(at: Cluster, node: str) -> int:
    snapshot = at.core.snapshot(at.now)
    return snapshot.left.on(snapshot.node_named[node].row).gpus


def test_nothing_is_counted_twice_when_a_node_gets_its_annotation_and_loses_it() -> None:
    at = Cluster()
    at.add_node("n1")
    text = at.nodes["n1"].metadata.annotations[names.TOPOLOGY]
    lose_topology(at, "n1")
    for name in ("a", "b"):
        at.add_pod(name, 2)
        assert at.schedule(name) == "n1"
    assert left(at, "n1") == 4
    at.annotate_node("n1", names.TOPOLOGY, text)
    assert counted(at, "n1") == (4, 4)  # presumed
    at.start("a", {"main": at.uuids("n1", 4, 7)})
    assert counted(at, "n1") == (4, 4)
    at.start("b", {"main": at.uuids("n1", 0, 5)})
    assert counted(at, "n1") == (4, 4)
    at.add_pod("c", 4)
    assert at.schedule("c") == "n1"
    assert set(at.indices("c")) == {1, 2, 3, 6}
    assert at.sound()
    lose_topology(at, "n1")
    assert counted(at, "n1") == (0, 0)
    at.add_pod("d", 1)
    assert left(at, "n1") == 0
    at.annotate_node("n1", names.TOPOLOGY, text)
    assert counted(at, "n1") == (8, 0)
    assert at.filter("d").node_names == ()
    for name in ("a", "b", "c"):
        at.delete(name)
        at.stop(name, "n1")
    assert counted(at, "n1") == (0, 8)
    assert at.sound()


def test_a_plan_on_a_node_that_loses_its_annotation_is_withdrawn() -> None:
    at = Cluster()
    at.add_node("n1")
    at.add_gang("g", 1, 2)
    at.settle()
    assert at.plan("g-0") is not None
    lose_topology(at, "n1")
    at.settle()
    assert at.plan("g-0") is None
    assert at.filter("g-0").node_names == ()


def test_left_alone_beats_every_rule() -> None:
    at = Cluster(settings=CoreSettings(namespaces=("canary",)))
    bare(at, "bare")
    at.add_pod("a", 2, require_link="nvlink")
    assert at.filter("a").node_names == ("bare",)


def test_such_nodes_and_pods_are_shown_as_placed_by_count() -> None:
    at = with_bare()
    at.add_pod("a", 3, node="bare")
    at.add_pod("b", 1, node="known")
    views = {view.name: view for view in at.core.nodes(at.now)}
    assert views.keys() == {"known", "bare"}
    assert views["bare"].by_count == CountView(8, 3)
    assert views["known"].by_count is None
    counts = at.core.counts(at.now)
    assert counts.nodes == {"usable": 1, "unusable": 0, "emptied": 0, "by-count": 1, "claims": 0}
    assert (counts.by_count, counts.gpus["used"], counts.gpus["held"]) == (1, 0, 1)
    explained = at.core.explain("ml", "a", at.now)
    assert explained is not None
    assert explained.by_count
    assert "placed by count" in explained.summary
    other = at.core.explain("ml", "b", at.now)
    assert other is not None
    assert not other.by_count
    table = kubectl_tables.nodes(list(views.values()))
    assert re.search(r"bare +8 +3 +0 +0 +5 +- +- +no topology published: placed by count", table)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"gang": "g", "gang_size": "2"}, "not used for gangs"),
        ({"require_link": "nvlink"}, "cannot tell its links, models and memory"),
        ({}, "kube-scheduler places the pod there by count"),
    ],
    ids=["gang", "requires", "by-count"],
)
def test_explain_says_what_such_nodes_are_for_a_pod_that_waits(
    said: dict[str, str], why: str
) -> None:
    at = with_bare()
    bare(at, "bare-2")
    at.add_pod("busy", 8, node="known")
    at.add_pod("a", 8, said=said)
    at.add_pod("other", 8, said=said)
    at.settle()
    explained = at.core.explain("ml", "a", at.now)
    assert explained is not None
    assert explained.search is not None
    topology = explained.search.levels[0]
    assert topology.missing == (ReasonCount(f"no topology published: {why}", 2),)
