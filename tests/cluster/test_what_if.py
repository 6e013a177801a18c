"""`linkwise what-if` with the real kubectl's listing: its prediction comes true.

Kubernetes' own controllers create the pods, and kube-scheduler binds them as the extender says.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from linkwise.cli.__main__ import main
from linkwise.topology.machine.recorded import recorded_machine
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF, gpu_node
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    SchedulingWorld,
    started_world,
)
from tests.cluster.support.scheduling.workload_pods import CONTROLLERS, free, pod_template, pods_of

MACHINES = {"a1": "dgx1-v100", "a2": "a100-pcie-8-bridged"}
NODES = ("n1", "n2")
Places = list[tuple[str, tuple[int, ...]]]


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    directory = run_directory / "what-if"
    control = ControlPlane(
        directory,
        disable_admission=ADMISSION_OFF,
        controller_flags=(f"--controllers={CONTROLLERS}",),
    )
    control.start()
    with started_world(SchedulingWorld(control), NODES) as world:
        for name, machine in MACHINES.items():
            world.client.post("/api/v1/nodes", gpu_node(name, machine))
        wait_for(lambda: len(world.known()) == len(MACHINES) + len(NODES), "all nodes are known")
        yield world
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    yield started
    for kind in ("jobs", "deployments"):
        started.control.kubectl("delete", kind, "--all", f"-n={NAMESPACE}", "--cascade=background")
    wait_for(lambda: is_empty(started), "no pods, and all GPUs are free")


def is_empty(world: SchedulingWorld) -> bool:
    for pod in world.pods():
        free(world, pod.metadata.name)
    return not world.taken()


def told(world: SchedulingWorld, manifest: object, tmp_path: Path) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(manifest))
    listed = world.control.kubectl("get", "nodes,pods", "-A", "-o", "json")
    arguments = ["what-if", "--submit", str(path), "-o", "json"]
    result = CliRunner().invoke(main, arguments, input=listed)
    assert result.exit_code in (0, 1), result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return result.exit_code, found


def places_told(found: dict[str, Any]) -> Places:
    return sorted(
        (place["node"], tuple(place["gpus"])) for part in found["parts"] for place in part["places"]
    )


def places_got(world: SchedulingWorld, pods: list[str]) -> Places:
    machines = {**dict.fromkeys(NODES, "hgx-h100"), **MACHINES}
    got = []
    for name in pods:
        node = world.node_of(name)
        machine = recorded_machine(machines[node], node=node)
        got.append((node, machine.indices_of(machine.mask_of(world.gpus_of(name)))))
    return sorted(got)


def job(name: str, pods: int, gpus: int) -> dict[str, Any]:
    template = pod_template(name, gpus)
    template["spec"]["restartPolicy"] = "Never"
    counts = {"completions": pods, "parallelism": pods, "completionMode": "Indexed"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {**counts, "template": template},
    }


def deployment(name: str, pods: int, gpus: int) -> dict[str, Any]:
    selector = {"matchLabels": {"app": name}}
    template = pod_template(name, gpus)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"replicas": pods, "selector": selector, "template": template},
    }


def occupy(world: SchedulingWorld) -> None:
    """Take some GPUs of each machine."""
    for name, node, gpus in (("o1", "n1", 3), ("o2", "n2", 5), ("o3", "a1", 2), ("o4", "a2", 1)):
        resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
        container = {"name": "main", "image": "none", "resources": resources}
        spec = {
            "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        world.client.post(path, {"metadata": {"name": name}, "spec": spec})
        world.wait_bound([name])


@pytest.mark.parametrize(
    "manifest",
    [job("train", 4, 2), job("wide", 2, 4), job("many", 6, 1), deployment("serve", 1, 3)],
    ids=lambda manifest: str(manifest["metadata"]["name"]),
)
def test_pods_go_where_it_said(
    world: SchedulingWorld, manifest: dict[str, Any], tmp_path: Path
) -> None:
    occupy(world)
    status, found = told(world, manifest, tmp_path)
    assert (status, found["left_out"], found["guesses"]) == (0, [], [])
    world.control.kubectl("create", "-f=-", stdin=json.dumps(manifest))
    name, count = manifest["metadata"]["name"], len(places_told(found))
    wait_for(lambda: len(pods_of(world, name)) == count, "its pods are made")
    world.wait_bound(pods_of(world, name))
    assert places_got(world, pods_of(world, name)) == places_told(found)


def test_a_gang_starts_once_those_pods_end_that_it_named(
    world: SchedulingWorld, tmp_path: Path
) -> None:
    occupy(world)
    manifest = job("large", 2, 8)
    status, found = told(world, manifest, tmp_path)
    assert (status, found["parts"][0]["start"]) == (1, None)
    (room,) = found["room"]
    assert (len(room["pods"]), room["fewest"]) == (2, True)
    world.control.kubectl("create", "-f=-", stdin=json.dumps(manifest))
    wait_for(lambda: len(pods_of(world, "large")) == 2, "its pods are made")
    world.wait_waiting(pods_of(world, "large")[0], "nodes are available")
    again = told(world, manifest, tmp_path)[1]
    assert any("in the cluster already and waits" in note for note in again["notes"])
    assert again["room"] == found["room"]
    for each in room["pods"]:
        world.delete(each["pod"].removeprefix(f"{NAMESPACE}/"))
    world.wait_bound(pods_of(world, "large"))
    freed = {each["node"] for each in room["pods"]}
    assert {node for node, _ in places_got(world, pods_of(world, "large"))} == freed
