"""The descheduler evicts one pod of a gang that runs, while another pod waits for GPUs."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from linkwise.kube.objects import Pod
from tests.beside.workloads import create_job
from tests.beside.world import (
    leave_room,
    one_that_goes_gets_its_place_back,
    world_beside,
)
from tests.cluster.support.programs.operators import DESCHEDULER
from tests.cluster.support.scheduling.scheduling_world import PODS, SchedulingWorld

MARK = "example.com/old"


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    with world_beside(run_directory / "descheduler") as world:
        yield world


def test_a_pod_that_is_descheduled_gets_its_place_back(
    world: SchedulingWorld, tmp_path: Path
) -> None:
    leave_room(world, "n1", "n2")
    create_job(world, "one")

    def deschedule(world: SchedulingWorld, pod: Pod) -> None:
        labels = {"metadata": {"labels": {MARK: "true"}}}
        world.client.patch(f"{PODS}/{pod.metadata.name}", labels)
        run_descheduler(world, tmp_path / "policy.yaml")

    one_that_goes_gets_its_place_back(world, goes=deschedule)


def run_descheduler(world: SchedulingWorld, policy: Path) -> None:
    """Once, on pods with the mark that are older than a second."""
    life_time = {"maxPodLifeTimeSeconds": 1, "labelSelector": {"matchLabels": {MARK: "true"}}}
    profile = {
        "name": "old",
        "pluginConfig": [
            {"name": "DefaultEvictor"},
            {"name": "PodLifeTime", "args": life_time},
        ],
        "plugins": {"deschedule": {"enabled": ["PodLifeTime"]}},
    }
    kind = {"apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerPolicy"}
    policy.write_text(json.dumps({**kind, "profiles": [profile]}))
    program = DESCHEDULER.build() / DESCHEDULER.name
    flags = f"--policy-config-file={policy}", f"--kubeconfig={world.control.kubeconfig()}"
    subprocess.run([program, *flags, "--descheduling-interval=0"], check=True, timeout=60)
