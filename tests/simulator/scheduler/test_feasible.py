"""The stand-in's own filters and scores: what kube-scheduler's plugins say, case by case."""

from typing import Any

import msgspec
import pytest

from linkwise.kube.objects import Node, Pod
from linkwise.simulator.scheduler import scoring
from linkwise.simulator.scheduler.feasible import amount, rejection, requests_of

GPU = "nvidia.com/gpu"
ALLOCATABLE = {"cpu": "8", "memory": "64Gi", "pods": "10", GPU: "8"}


def node(spec: dict[str, Any] | None = None, *, ready: str = "True", **labels: str) -> Node:
    body = {
        "metadata": {"name": "n1", "labels": labels},
        "spec": spec or {},
        "status": {
            "allocatable": ALLOCATABLE,
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }
    return msgspec.convert(body, Node)


def pod(spec: dict[str, Any] | None = None, **requests: str) -> Pod:
    container = {"name": "main", "resources": {"requests": requests}}
    return msgspec.convert({"spec": {"containers": [container], **(spec or {})}}, Pod)


def why_not(one: Pod, on: Node, used: dict[str, int] | None = None) -> tuple[str, ...] | None:
    allocatable = {r: amount(r, q) for r, q in on.status.allocatable.items()}
    found = rejection(one, requests_of(one), on, allocatable, used or {})
    return found.reasons if found else None


TAINT = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
TOLERATIONS: list[tuple[dict[str, str], bool]] = [
    ({"key": "gpu", "operator": "Exists"}, True),
    ({"key": "gpu", "value": "yes"}, True),
    ({"key": "gpu", "value": "no"}, False),
    ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
    ({"key": "other", "operator": "Exists"}, False),
    ({"operator": "Exists"}, True),
    ({"operator": "Equal", "value": "yes"}, False),
]


@pytest.mark.parametrize(("toleration", "tolerated"), TOLERATIONS)
def test_a_taint_keeps_out_pods_that_do_not_tolerate_it(
    toleration: dict[str, str], tolerated: bool
) -> None:
    reasons = None if tolerated else ("node(s) had untolerated taint(s)",)
    assert why_not(pod({"tolerations": [toleration]}), node(TAINT)) == reasons


def test_a_taint_that_only_prefers_keeps_nobody_out() -> None:
    spec = {"taints": [{"key": "gpu", "effect": "PreferNoSchedule"}]}
    assert why_not(pod(), node(spec)) is None


def test_a_node_that_is_not_ready_counts_as_tainted() -> None:
    assert why_not(pod(), node(ready="Unknown")) == ("node(s) had untolerated taint(s)",)
    tolerates = {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}
    assert why_not(pod({"tolerations": [tolerates]}), node(ready="False")) is None


def test_a_cordoned_node_is_no_candidate() -> None:
    assert why_not(pod(), node({"unschedulable": True})) == ("node(s) were unschedulable",)


SELECTED = ("node(s) didn't match Pod's node affinity/selector",)


@pytest.mark.parametrize(("value", "reasons"), [("a", None), ("b", SELECTED)])
def test_the_node_selector_holds(value: str, reasons: tuple[str, ...] | None) -> None:
    assert why_not(pod({"nodeSelector": {"pool": value}}), node(pool="a")) == reasons


AFFINITIES: list[tuple[dict[str, object], bool]] = [
    ({"key": "pool", "operator": "In", "values": ["a", "b"]}, True),
    ({"key": "pool", "operator": "In", "values": ["b"]}, False),
    ({"key": "pool", "operator": "NotIn", "values": ["b"]}, True),
    ({"key": "pool", "operator": "NotIn", "values": ["a"]}, False),
    ({"key": "absent", "operator": "NotIn", "values": ["a"]}, True),
    ({"key": "pool", "operator": "Exists"}, True),
    ({"key": "absent", "operator": "Exists"}, False),
    ({"key": "absent", "operator": "DoesNotExist"}, True),
    ({"key": "pool", "operator": "DoesNotExist"}, False),
    ({"key": "gpus", "operator": "Gt", "values": ["7"]}, True),
    ({"key": "gpus", "operator": "Gt", "values": ["8"]}, False),
    ({"key": "gpus", "operator": "Lt", "values": ["9"]}, True),
    ({"key": "pool", "operator": "Lt", "values": ["9"]}, False),
    ({"key": "gpus", "operator": "Near", "values": ["8"]}, False),
]


def affinity(*terms: dict[str, object]) -> Pod:
    required = {"nodeSelectorTerms": list(terms)}
    return pod(
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    )


@pytest.mark.parametrize(("expression", "matches"), AFFINITIES)
def test_required_node_affinity_holds(expression: dict[str, object], matches: bool) -> None:
    asked = affinity({"matchExpressions": [expression]})
    assert why_not(asked, node(pool="a", gpus="8")) == (None if matches else SELECTED)


def test_one_term_is_enough_and_an_empty_one_matches_nothing() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    assert why_not(affinity({}), node()) == SELECTED
    assert why_not(affinity({}, {"matchFields": [field]}), node()) is None


def test_every_resource_that_is_short_is_named() -> None:
    wants = pod(None, cpu="4", memory="8Gi", **{GPU: "8"})
    assert why_not(wants, node()) is None
    used = {"cpu": 4001, GPU: 1, "pods": 10}
    assert why_not(wants, node(), used) == (
        "Too many pods",
        "Insufficient cpu",
        "Insufficient nvidia.com/gpu",
    )


def test_more_than_the_node_has_cannot_be_helped_by_evicting_others() -> None:
    for gpus, resolvable in (("8", True), ("9", False)):
        wants = pod(None, **{GPU: gpus})
        found = rejection(wants, requests_of(wants), node(), {GPU: 8, "pods": 10}, {GPU: 1})
        assert found is not None
        assert found.resolvable is resolvable


def test_containers_and_sidecars_add_up_and_init_containers_count_by_their_peak() -> None:
    def container(name: str, gpus: int, **more: str) -> dict[str, object]:
        return {"name": name, "resources": {"limits": {GPU: str(gpus)}}, **more}

    def gpus(*init: dict[str, object]) -> int:
        spec = {
            "initContainers": list(init),
            "containers": [container("a", 2), container("b", 1)],
        }
        return requests_of(msgspec.convert({"spec": spec}, Pod))[GPU]

    side = container("side", 1, restartPolicy="Always")
    assert gpus() == 3
    assert gpus(container("i", 2)) == 3
    assert gpus(container("i", 5)) == 5
    assert gpus(side) == 4
    assert gpus(side, container("i", 5)) == 6
    assert gpus(container("i", 5), side) == 5


def test_overhead_counts_and_each_pod_is_one() -> None:
    wants = pod({"overhead": {"cpu": "250m"}}, cpu="1")
    assert requests_of(wants) == {"pods": 1, "cpu": 1250}


def test_an_emptier_node_scores_higher_and_gpus_do_not_count() -> None:
    allocatable = {"cpu": 1000, "memory": 1000, GPU: 8}
    assert scoring.least_allocated(allocatable, {}) == 100
    assert scoring.least_allocated(allocatable, {GPU: 8}) == 100
    assert scoring.least_allocated(allocatable, {"cpu": 500, "memory": 100}) == 70
    assert scoring.least_allocated(allocatable, {"cpu": 2000, "memory": 1000}) == 0


def test_cpu_and_memory_in_balance_score_higher() -> None:
    allocatable = {"cpu": 1000, "memory": 1000}
    assert scoring.balanced(allocatable, {"cpu": 500, "memory": 500}) == 100
    assert scoring.balanced(allocatable, {"cpu": 500}) == 75


def test_a_container_without_requests_is_presumed_to_use_a_little() -> None:
    assert scoring.presumed(pod(cpu="2")) == {"cpu": 2000, "memory": 200 << 20}
    assert scoring.presumed(pod(cpu="0", memory="1Gi")) == {"cpu": 0, "memory": 1 << 30}


@pytest.mark.parametrize(
    ("nodes", "enough"), [(5, 5), (99, 99), (100, 100), (1000, 420), (5000, 500), (20000, 1000)]
)
def test_of_many_nodes_a_share_is_enough(nodes: int, enough: int) -> None:
    assert scoring.nodes_to_find(nodes) == enough


def test_the_share_can_be_told() -> None:
    assert scoring.nodes_to_find(5000, 100) == 5000
    assert scoring.nodes_to_find(5000, 10) == 500
