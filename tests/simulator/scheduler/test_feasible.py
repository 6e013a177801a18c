"""The stand-in's own filters and scores: what kube-scheduler's plugins say, case by case."""

from typing import Any

import msgspec
import pytest

from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.requests import amount
from linkwise.kube.objects import Node, Pod
from linkwise.simulator.scheduler import scoring
from linkwise.simulator.scheduler.feasible import node_facts, requests_of, resources_fit

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


def short_of(one: Pod, on: Node, used: dict[str, int] | None = None) -> Rejection | None:
    allocatable = {r: amount(r, q) for r, q in on.status.allocatable.items()}
    return resources_fit(requests_of(one), allocatable, used or {})


def why_not(one: Pod, on: Node, used: dict[str, int] | None = None) -> tuple[str, ...] | None:
    found = short_of(one, on, used)
    return found.reasons if found else None


def test_a_node_that_is_not_ready_counts_as_tainted() -> None:
    assert node_facts(node()).taints == ()
    (taint,) = node_facts(node(ready="Unknown")).taints
    assert (taint.key, taint.effect) == ("node.kubernetes.io/not-ready", "NoSchedule")


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
        found = short_of(pod(None, **{GPU: gpus}), node(), {GPU: 1})
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


def test_what_a_pod_requests_as_a_whole_takes_precedence() -> None:
    whole = {"requests": {"cpu": "2", GPU: "8"}, "limits": {"memory": "1Gi"}}
    wants = pod({"resources": whole, "overhead": {"cpu": "1"}}, cpu="4", **{GPU: "1"})
    assert requests_of(wants) == {"pods": 1, "cpu": 3000, "memory": 2**30, GPU: 1}


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
