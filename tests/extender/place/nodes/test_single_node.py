"""Filter returns only the best node for a single pod, unless there is a soft wish among several."""

import msgspec
import pytest

from linkwise.kube.objects import Pod, Taint, Toleration
from linkwise.topology import names
from tests.extender.cluster import Cluster, change

SOFT = Taint(key="old", effect="PreferNoSchedule")
ALL = ("cube", "pcie", "switch")


def mixed() -> Cluster:
    at = Cluster()
    at.add_node("cube", "dgx1-v100")
    at.add_node("pcie", "p100-pcie-8")
    at.add_node("switch", "hgx-h100")
    return at


def test_the_best_node_alone_is_answered() -> None:
    at = mixed()
    at.add_pod("a", 4)
    answer = at.filter("a")
    assert answer.node_names == ("switch",)
    assert not answer.failed
    assert not answer.unresolvable


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_it_is_the_one_that_prioritize_would_rate_best(gpus: int) -> None:
    at = mixed()
    at.add_pod("busy", 3, node="cube")
    at.add_pod("a", gpus)
    scores = at.prioritize("a").scores
    assert scores[at.filter("a").node_names[0]] == 100


def test_only_nodes_that_were_asked_for_are_answered() -> None:
    at = mixed()
    at.add_pod("a", 4)
    assert at.filter("a", ["cube", "pcie", "stranger"]).node_names == ("cube",)


def test_where_none_has_room_each_node_has_its_reason() -> None:
    at = mixed()
    for name in ALL:
        at.add_pod(f"on-{name}", 8, node=name)
    at.add_pod("a", 1)
    assert set(at.filter("a").failed) == set(ALL)
    at.delete("on-pcie")
    assert at.filter("a").node_names == ("pcie",)


def test_a_pod_that_comes_again_is_told_all_nodes() -> None:
    at = mixed()
    at.add_pod("a", 8)
    at.add_pod("busy", 1, node="cube")
    at.filter("a")
    again = at.filter("a")
    assert again.node_names == ("pcie", "switch")
    assert set(again.failed) == {"cube"}


def test_one_that_was_asked_for_alone_has_not_been_offered_one_of_several() -> None:
    at = mixed()
    at.add_pod("a", 4)
    assert at.filter("a", ["cube"]).node_names == ("cube",)
    assert at.filter("a").node_names == ("switch",)


def test_what_was_offered_is_forgotten_with_the_pod() -> None:
    at = mixed()
    offers = at.core.offers
    for name in ("bound", "deleted"):
        at.add_pod(name, 1)
        at.filter(name)
    assert offers.pending == 2
    at.schedule("bound")
    at.delete("deleted")
    assert offers.pending == 0


def wishing(at: Cluster, spec: dict[str, object]) -> None:
    """Add pod "a" with this beside its containers."""
    pod = at.add_pod("a", 4)
    built = msgspec.to_builtins(pod)
    built["spec"] |= spec
    at.put_pod(msgspec.convert(built, Pod, strict=False))


SOFTLY = "preferredDuringSchedulingIgnoredDuringExecution"
TERM = {"weight": 1, "preference": {"matchExpressions": []}}


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {SOFTLY: [TERM]}}},
        {"affinity": {"podAffinity": {SOFTLY: [TERM]}}},
        {"affinity": {"podAntiAffinity": {SOFTLY: [TERM]}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]},
    ],
)
def test_a_pod_with_soft_wishes_of_its_own_is_told_all_nodes(spec: dict[str, object]) -> None:
    at = mixed()
    wishing(at, spec)
    assert at.filter("a").node_names == ALL


@pytest.mark.parametrize(
    "spec",
    [
        {"affinity": {"nodeAffinity": {SOFTLY: []}, "podAffinity": None}},
        {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
    ],
)
def test_what_a_pod_requires_has_been_seen_to_when_we_are_asked(spec: dict[str, object]) -> None:
    at = mixed()
    wishing(at, spec)
    assert at.filter("a").node_names == ("switch",)


@pytest.mark.parametrize("owner", ["ReplicaSet", "StatefulSet", "ReplicationController", "Job"])
def test_replicas_are_kube_schedulers_to_spread(owner: str) -> None:
    at = mixed()
    pod = at.add_pod("a", 4)
    reference = {"kind": owner, "name": "of", "uid": "u", "apiVersion": "v1"}
    built = msgspec.to_builtins(pod.metadata) | {"ownerReferences": [reference]}
    at.put_pod(change(pod, metadata=msgspec.convert(built, type(pod.metadata), strict=False)))
    assert at.filter("a").node_names == (("switch",) if owner == "Job" else ALL)


def test_a_node_that_would_rather_not_be_taken_is_not_offered_alone() -> None:
    at = mixed()
    at.cordon("switch", SOFT)
    at.add_pod("a", 4)
    assert at.filter("a").node_names == ALL
    tolerant = at.add_pod("b", 4)
    tolerates = (Toleration(key="old", operator="Exists"),)
    at.put_pod(change(tolerant, spec=change(tolerant.spec, tolerations=tolerates)))
    assert at.filter("b").node_names == ("switch",)


def test_an_annotation_of_ours_is_no_soft_wish_that_kube_scheduler_knows() -> None:
    at = mixed()
    at.add_pod("a", 4, said={names.PREFER_LINK.removeprefix(names.PREFIX): "nvlink"})
    assert at.filter("a").node_names == ("switch",)


def test_a_node_that_is_not_known_is_none_of_those_that_are() -> None:
    at = Cluster()
    for number in range(64):  # as many as the arrays have rows
        at.add_node(f"n{number}")
    at.add_pod("a", 4)
    assert at.filter("a", ["stranger", "outsider"]).node_names == ()
