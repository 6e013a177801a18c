"""Kubelets that align GPUs: a node whose free GPUs are on two sockets refuses no row of pods."""

from functools import partial
from typing import Any

from linkwise.topology import names
from linkwise.topology.annotations.plan import read_in_use
from linkwise.topology.machine.topology_manager import Policy, Scope, TopologyManager
from tests.end_to_end import manifests, promises
from tests.end_to_end.world import World, running_world
from tests.waiting import wait_for

SINGLE = TopologyManager(Policy.SINGLE_NUMA_NODE)
MOST_REFUSED = 3


def job(name: str, gpus: int) -> dict[str, Any]:
    """A Job of one pod, which is created again each time that it fails."""
    pod = manifests.pod(name, gpus)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "completionMode": "Indexed",
            "backoffLimit": 500,
            "template": {"metadata": {"annotations": {}}, "spec": pod["spec"]},
        },
    }


def leave_two_and_one(world: World) -> None:
    """On n1, two GPUs of the one socket are free, and one of the other."""
    for number, (name, gpus) in enumerate((("two", 2), ("three", 3)), 1):
        world.submit(manifests.pod(name, gpus, node="n1"))
        wait_for(partial(has_in_use, world, number), f"{name} runs, and its Node says so")


def has_in_use(world: World, pods: int) -> bool:
    notes = (node.metadata.annotations for node in world.read_nodes())
    return sum(len(read_in_use(said.get(names.IN_USE, "{}")).pods) for said in notes) == pods


def pods_of(world: World, name: str) -> dict[str, list[str]]:
    """phase -> reasons of the Job's pods"""
    found: dict[str, list[str]] = {}
    for pod in world.read_pods():
        if pod.metadata.name.startswith(f"{name}-"):
            found.setdefault(pod.status.phase, []).append(pod.status.reason)
    return found


def node_of(world: World, name: str) -> str:
    nodes = {
        pod.spec.node_name
        for pod in world.read_pods()
        if pod.metadata.name.startswith(f"{name}-") and pod.status.phase == "Running"
    }
    assert len(nodes) == 1
    return nodes.pop()


def test_a_pod_goes_where_its_gpus_can_be_aligned() -> None:
    with running_world(["hgx-h100"] * 2, topology_manager=SINGLE) as world:
        leave_two_and_one(world)
        world.submit(job("big", 3))
        wait_for(lambda: "Running" in pods_of(world, "big"), "big runs")
        assert node_of(world, "big") == "n2"
        assert "Failed" not in pods_of(world, "big")


def test_what_is_planned_is_what_the_kubelet_gives() -> None:
    pod_scope = TopologyManager(Policy.RESTRICTED, Scope.POD)
    for manager in (SINGLE, pod_scope):
        with running_world(["hgx-h100"], topology_manager=manager) as world:
            pods = {"a": 1, "b": 3, "c": 2, "d": 2}
            for name, gpus in pods.items():  # in another order, not all would fit
                world.submit(manifests.pod(name, gpus))
                wait_for(lambda: world.pod(name).status.phase == "Running", f"{name} runs")  # noqa: B023
            wait_for(lambda: not promises.unsettled(world), "all is as it should be")
            assert world.counted_by_all("swaps") == 0


def test_where_the_policy_is_unknown_few_pods_are_refused_before_the_idle_node_is_used() -> None:
    """Found: 414 pods failed in 55 s beside the idle node."""
    with running_world(["hgx-h100"] * 2, topology_manager=SINGLE, is_read=False) as world:
        leave_two_and_one(world)
        world.submit(job("big", 3))
        wait_for(lambda: "Running" in pods_of(world, "big"), "big runs")
        assert node_of(world, "big") == "n2"
        refused = pods_of(world, "big").get("Failed", [])
        assert refused == ["TopologyAffinityError"] * len(refused)
        assert 1 <= len(refused) <= MOST_REFUSED
