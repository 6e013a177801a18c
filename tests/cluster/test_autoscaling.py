"""Tainted GPU nodes with the API server's ExtendedResourceToleration, and a Deployment of GPU pods
that a HorizontalPodAutoscaler scales; and what a node autoscaler sees of pods that wait."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.api.external_metrics import METRIC, ExternalMetrics
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF, GPU
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    NODES,
    PODS,
    SchedulingWorld,
    started_world,
)

TOLERATION = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
PER_POD = 10  # requests
CONTROLLERS = "deployment-controller,replicaset-controller,horizontal-pod-autoscaler-controller"
LIFTED_AFTER = "2s"


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    control = ControlPlane(
        run_directory / "autoscaling",
        disable_admission=ADMISSION_OFF,
        api_flags=[
            "--enable-admission-plugins=ExtendedResourceToleration",
            "--enable-aggregator-routing=true",  # no kube-proxy makes Service addresses work
        ],
        # Others would taint nodes without kubelets.
        controller_flags=[
            f"--controllers={CONTROLLERS}",
            "--horizontal-pod-autoscaler-sync-period=1s",
        ],
    )
    control.start()
    flags = [f"--lift-gates-after={LIFTED_AFTER}"]
    with started_world(SchedulingWorld(control, extender_flags=flags)) as world:
        control.kubectl("taint", "node", "--all", f"{GPU}=present:NoSchedule")
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    """Four tainted nodes with eight GPUs each. After the test all GPUs must be free again."""
    yield started
    started.clear()


@pytest.fixture
def metrics(world: SchedulingWorld) -> Iterator[ExternalMetrics]:
    with closing(ExternalMetrics(world.control)) as served:
        served.start()
        yield served


def test_pods_with_gpus_alone_tolerate_the_taint(world: SchedulingWorld) -> None:
    world.wait_bound([world.create("single", 4)])
    assert TOLERATION in tolerations(world, "single")
    spec = {"containers": [{"name": "main", "image": "none"}]}
    world.client.post(PODS, {"metadata": {"name": "server"}, "spec": spec})
    world.wait_waiting("server", "untolerated taint")
    assert TOLERATION not in tolerations(world, "server")


def test_gangs_with_and_without_the_gate_are_placed_on_tainted_nodes(
    world: SchedulingWorld,
) -> None:
    members = [*world.create_gang("plain", 2), *world.create_gang("gated", 2, gated=True)]
    world.wait_bound(members)
    assert sorted(map(world.node_of, members)) == sorted(NODES)
    assert all(len(world.gpus_of(name)) == 8 for name in members)


def test_a_gang_stays_off_nodes_with_another_taint(world: SchedulingWorld) -> None:
    world.control.kubectl("taint", "node", "n1", "maintenance=now:NoSchedule")
    try:
        members = world.create_gang("train", 4)
        # kube-scheduler may try the first ones before the gang is whole, and then not again.
        wait_for(
            lambda: any("no room for the whole gang" in world.reason(each) for each in members),
            "a member waits for room for the whole gang",
        )
        assert not world.taken()
    finally:
        world.control.kubectl("taint", "node", "n1", "maintenance-")
    world.wait_bound(members)


def test_a_node_autoscaler_sees_a_gated_gang_that_is_too_large(world: SchedulingWorld) -> None:
    """Cluster Autoscaler and Karpenter look for this condition, on pods without nomination."""
    members = world.create_gang("large", 5, gated=True)
    wait_for(
        lambda: all(scheduled_reason(world, name) == "Unschedulable" for name in members),
        "kube-scheduler has found all members unschedulable",
    )
    assert not any(world.nominated(name) for name in members)
    assert not world.taken()


def test_a_horizontal_pod_autoscaler_leaks_no_gpu(
    world: SchedulingWorld, metrics: ExternalMetrics
) -> None:
    """Four pods fill the nodes; the autoscaler wants up to six."""
    metrics.value = PER_POD
    world.control.kubectl("apply", "-f", "-", stdin=_manifests("serve"))
    try:
        for wanted in (1, 4, 1, 6, 2, 3, 1):
            metrics.value = wanted * PER_POD
            wait_for(lambda: settled(world) == (wanted, min(wanted, len(NODES))), f"{wanted} pods")  # noqa: B023 - called in this round
            gpus = 8 * min(wanted, len(NODES))
            wait_for(lambda: len(world.taken()) == gpus, f"{gpus} GPUs are taken")  # noqa: B023
    finally:
        kinds = "horizontalpodautoscalers,deployments,replicasets"  # there is no garbage collector
        world.control.kubectl("delete", f"-n={NAMESPACE}", kinds, "--all")


def tolerations(world: SchedulingWorld, pod: str) -> list[dict[str, str]]:
    found: dict[str, Any] = world.client.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}", dict)
    return list(found["spec"].get("tolerations", ()))


def scheduled_reason(world: SchedulingWorld, pod: str) -> str:
    conditions = world.read(pod).status.conditions
    return next((each.reason for each in conditions if each.type == "PodScheduled"), "")


def settled(world: SchedulingWorld) -> tuple[int, int]:
    """End pods as kubelets do. Return how many there are, and how many of them are bound."""
    world.bury_terminating()
    nodes = [pod.spec.node_name for pod in world.pods()]
    return len(nodes), sum(map(bool, nodes))


def _manifests(name: str) -> str:
    """Return a Deployment of 8-GPU pods, and an autoscaler that follows its metric at once."""
    labels = {"app": name}
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "8"}}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    any_number = {"type": "Pods", "value": 6, "periodSeconds": 1}
    at_once = {"stabilizationWindowSeconds": 0, "policies": [any_number]}
    target = {"type": "AverageValue", "averageValue": str(PER_POD)}
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": 1,
            "maxReplicas": 6,
            "metrics": [
                {"type": "External", "external": {"metric": {"name": METRIC}, "target": target}}
            ],
            "behavior": {"scaleUp": at_once, "scaleDown": at_once},
        },
    }
    return yaml.safe_dump_all([deployment, autoscaler])
