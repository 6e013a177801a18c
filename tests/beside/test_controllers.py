"""Kubernetes' own controllers: rollouts of a Deployment whose pods are a gang."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from linkwise.kube.objects import Pod
from tests.beside.workloads import DEPLOYMENTS, GPUS
from tests.beside.world import (
    Played,
    empty,
    leave_room,
    of,
    running,
    world_beside,
)
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld
from tests.cluster.support.scheduling.workload_pods import pod_template

GENERATION = "pod-template-hash"


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "controllers") as world:
        yield world


def create_deployment(world: SchedulingWorld, name: str, pods: int) -> None:
    spec = {
        "replicas": pods,
        "selector": {"matchLabels": {"app": name}},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        },
        "template": pod_template(name, GPUS, gang=name, gang_size=str(pods)),
    }
    world.client.post(DEPLOYMENTS, {"metadata": {"name": name}, "spec": spec})


def roll_out(world: SchedulingWorld, name: str) -> None:
    template = {"metadata": {"annotations": {"example.com/edition": "2"}}}
    world.client.patch(f"{DEPLOYMENTS}/{name}", {"spec": {"template": template}})


def generation(world: SchedulingWorld, name: str) -> str:
    (found,) = {pod.metadata.labels[GENERATION] for pod in of(world.pods(), name)}
    return found


def test_a_new_generation_of_a_gang_starts_when_there_is_room_for_all_of_it(
    world: SchedulingWorld,
) -> None:
    """With maxSurge 1 its second pod comes when its first is ready."""
    leave_room(world, "n1", "n2", "n3")
    create_deployment(world, "web", 2)
    Played(world).until_running("web", 2)
    old = generation(world, "web")

    def none_is_new(pods: Sequence[Pod]) -> str:
        new = [
            pod.metadata.name
            for pod in of(pods, "web")
            if pod.spec.node_name and pod.metadata.labels[GENERATION] != old
        ]
        return f"there is room for one of two, and it has started: {', '.join(new)}" if new else ""

    roll_out(world, "web")
    waits = Played(world, none_is_new)
    waits.until_waiting("web", 3)
    waits.settle()
    assert running(world, "web") == 2

    empty(world, "n4")

    def all_are_new() -> bool:
        pods = of(world.pods(), "web")
        new = [pod for pod in pods if pod.metadata.labels[GENERATION] != old]
        return len(pods) == len(new) == running(world, "web") == 2

    Played(world).until(all_are_new, "the new generation runs")
