"""Karpenter adds and removes nodes for gangs.

Its provider is the module's own, whose machines are Node objects. The test plays what comes later
on a machine: the GPUs of the vendor's plugin, and the topology of Linkwise's.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from linkwise.kube.objects import Node, Pod
from tests.beside.world import Law, Played
from tests.cluster.support.api.control_plane import ControlPlane, free_port
from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.programs.operators import KARPENTER
from tests.cluster.support.scheduling.extender_process import ADMISSION_OFF, GPU, gpu_node
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld, started_world

_HOST = "127.0.0.1"
_POOL = "gpus"
_INSTANCE_TYPES = "instance-types.json"
# The provider's nodes have their GPUs at once. A machine's come with the vendor's plugin.
_GPUS_COME_LATER = """
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: gpus-come-later}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [nodes]}
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >
        [JSONPatch{op: "remove", path: "/status/allocatable/nvidia.com~1gpu"},
         JSONPatch{op: "remove", path: "/status/capacity/nvidia.com~1gpu"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: gpus-come-later}
spec: {policyName: gpus-come-later}
"""


class NodeItems(msgspec.Struct):
    items: tuple[Node, ...]


@pytest.fixture(scope="module")
def started(run_directory: Path) -> Iterator[SchedulingWorld]:
    control = ControlPlane(
        run_directory / "karpenter",
        disable_admission=ADMISSION_OFF,
        controller_flags=["--controllers=garbage-collector-controller"],
    )
    control.start()
    for folder in ("charts", "apis"):
        definitions = KARPENTER.build() / "kwok" / folder / "crds"
        control.kubectl("apply", "--server-side", f"-f={definitions}")
    control.kubectl("apply", "--server-side", "-f=-", stdin=_GPUS_COME_LATER)
    world = SchedulingWorld(control, extender_flags=["--lift-gates-after=2s"])
    with started_world(world, ()):
        manager = karpenter(control)
        manager.start()
        control.parts[manager.name] = manager
        yield world


@pytest.fixture
def world(started: SchedulingWorld) -> Iterator[SchedulingWorld]:
    """No node; Karpenter may create those of a test's `allow`. After it all are gone."""
    yield started
    for pod in started.pods():
        started.delete(pod.metadata.name)
    started.control.kubectl("delete", "nodepools,nodeclaims", "--all")
    started.clear()


def karpenter(control: ControlPlane) -> LoggedProcess:
    types = control.directory / _INSTANCE_TYPES
    types.write_text(json.dumps([instance_type()]))
    env = {
        "KUBECONFIG": str(control.kubeconfig()),
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": str(free_port(_HOST)),
        "HEALTH_PROBE_PORT": str(free_port(_HOST)),
        "INSTANCE_TYPES_FILE_PATH": str(types),
    }
    program = str(KARPENTER.build() / KARPENTER.name)
    return LoggedProcess(KARPENTER.name, [program], control.logs / "karpenter.log", env)


def instance_type() -> dict[str, Any]:
    where = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "a"}
    requirements = [{"key": k, "operator": "In", "values": [v]} for k, v in where.items()]
    return {
        "name": "gpu-8x",
        "offerings": [{"Price": 1, "Available": True, "Requirements": requirements}],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": {"cpu": "192", "memory": "2Ti", "pods": "110", GPU: "8"},
    }


def allow(world: SchedulingWorld, machines: int) -> None:
    """Let Karpenter have so many nodes, and remove those that are empty for a second."""
    group = "karpenter.kwok.sh"
    node_class = {"group": group, "kind": "KWOKNodeClass", "name": _POOL}
    spec = {
        "template": {"spec": {"requirements": [], "nodeClassRef": node_class}},
        "limits": {GPU: str(8 * machines)},
        "disruption": {
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "consolidateAfter": "1s",
        },
    }
    metadata = {"name": _POOL}
    items = [
        {"apiVersion": f"{group}/v1alpha1", "kind": node_class["kind"], "metadata": metadata},
        {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": metadata, "spec": spec},
    ]
    made = {"apiVersion": "v1", "kind": "List", "items": items}
    world.control.kubectl("apply", "-f=-", stdin=json.dumps(made))


def nodes(world: SchedulingWorld) -> list[str]:
    found = world.client.get("/api/v1/nodes", NodeItems).items
    return sorted(node.metadata.name for node in found)


def offer_gpus(world: SchedulingWorld, node: str) -> None:
    """As the kubelet, once the vendor's plugin has registered."""
    amounts = {GPU: "8"}
    is_ready = {"type": "Ready", "status": "True"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [is_ready]}
    world.client.patch(f"/api/v1/nodes/{node}/status", {"status": status})


def publish_topology(world: SchedulingWorld, node: str) -> None:
    """As Linkwise's plugin."""
    said = gpu_node(node)["metadata"]
    metadata = {"labels": said["labels"], "annotations": said["annotations"]}
    world.client.patch(f"/api/v1/nodes/{node}", {"metadata": metadata})


def come_whole(world: SchedulingWorld, node: str) -> None:
    offer_gpus(world, node)
    publish_topology(world, node)


def waits_whole(members: Sequence[str]) -> Law:
    def look(pods: Sequence[Pod]) -> str:
        early = [p.metadata.name for p in pods if p.metadata.name in members and p.spec.node_name]
        return f"bound too early: {', '.join(early)}" if early else ""

    return look


def wait_nodes(world: SchedulingWorld, played: Played, count: int) -> list[str]:
    played.until(lambda: len(nodes(world)) == count, f"there are {count} nodes", 120.0)
    return nodes(world)


def wait_bound(world: SchedulingWorld, members: Sequence[str]) -> None:
    Played(world).until(lambda: all(map(world.node_of, members)), "all members are bound")
    assert sorted(map(world.node_of, members)) == nodes(world), "one on each node"


def test_nodes_come_one_by_one_gpus_late_and_topology_later(world: SchedulingWorld) -> None:
    allow(world, machines=5)
    members = world.create_gang("train", 3)
    played = Played(world, waits_whole(members))
    there = wait_nodes(world, played, 3)
    for node in there:
        offer_gpus(world, node)
        played.settle(2)
    for node in there[:2]:
        publish_topology(world, node)
        played.settle(2)
    publish_topology(world, there[2])
    wait_bound(world, members)


def test_a_gang_larger_than_its_pool_starts_once_the_pool_may_grow(world: SchedulingWorld) -> None:
    allow(world, machines=2)
    members = world.create_gang("train", 3)
    played = Played(world, waits_whole(members))
    kept = wait_nodes(world, played, 2)
    for node in kept:
        come_whole(world, node)
    played.settle(45)  # it removes an empty node within 30 s
    assert nodes(world) == kept, "Karpenter keeps a node that a waiting pod fits on"
    said = json.loads(world.asked("/explain/ml/train-0"))["summary"]
    assert said == "Gang train: no room for the whole gang, even without other pods."

    allow(world, machines=3)
    for node in set(wait_nodes(world, played, 3)) - set(kept):
        come_whole(world, node)
    wait_bound(world, members)


def test_karpenter_adds_the_nodes_of_a_gated_gang_and_removes_them_after_its_end(
    world: SchedulingWorld,
) -> None:
    allow(world, machines=2)
    members = world.create_gang("train", 2, gated=True)
    played = Played(world)
    for node in wait_nodes(world, played, 2):
        come_whole(world, node)
    wait_bound(world, members)
    for member in members:
        world.delete(member)
    wait_nodes(world, played, 0)
