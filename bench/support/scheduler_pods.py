"""The nodes and pods of `bench.scheduler`: 8-GPU machines, and pods that take a whole machine.

A bare pod has one container and nothing else. A training pod also has the environment, volumes and
tolerations of a real one. Each of its updates costs the API server more, because `managedFields`
makes it walk through the whole pod.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from linkwise.topology import names
from linkwise.topology.annotations.plan import Plan, write_gpus, write_plan
from linkwise.topology.machine.recorded import recorded_machine
from tests.cluster.support.scheduling.extender_process import GPU, gpu_node

NAMESPACE = "ml"
MACHINE = "hgx-h100"
GANG_SIZE = 4


class Length(Enum):
    BARE = "bare"
    TRAINING = "training"


class Kind(Enum):
    SINGLE = "single pods"
    GANGS = f"gangs of {GANG_SIZE}"
    GATED = "gated pods"
    NATIVE = f"native gangs of {GANG_SIZE}"  # PodGroups of kube-scheduler's own


def nodes(count: int) -> Iterator[bytes]:
    for number in range(count):
        zone = {"topology.kubernetes.io/zone": f"eu-west-{number % 3}"}
        yield msgspec.json.encode(gpu_node(node_name(number), MACHINE, zone))


def node_name(number: int) -> str:
    return f"gpu-node-{number:05d}.eu-west.example.internal"


def groups(count: int, prefix: str) -> Iterator[bytes]:
    """The PodGroups of *count* pods of Kind.NATIVE."""
    for first in range(0, count, GANG_SIZE):
        policy = {"gang": {"minCount": min(GANG_SIZE, count - first)}}
        name = f"{prefix}-{first // GANG_SIZE}"
        yield msgspec.json.encode(
            {"metadata": {"name": name}, "spec": {"schedulingPolicy": policy}}
        )


def waiting(
    kind: Kind, length: Length, count: int, prefix: str, scheduler: str = "default-scheduler"
) -> dict[str, bytes]:
    """*count* pods, name -> body, that each request a whole machine."""
    bodies = {}
    for number in range(count):
        said, gates = {}, []
        if kind is Kind.GANGS:
            gang = number // GANG_SIZE
            size = min(GANG_SIZE, count - gang * GANG_SIZE)
            said = {names.GANG: f"{prefix}-{gang}", names.GANG_SIZE: str(size)}
        elif kind is Kind.GATED:
            gates = [{"name": names.GATE}]
        name = f"{prefix}-{number}"
        pod = _pod(name, length, 8, said)
        pod["spec"]["schedulingGates"] = gates
        pod["spec"]["schedulerName"] = scheduler
        if kind is Kind.NATIVE:
            pod["spec"]["schedulingGroup"] = {"podGroupName": f"{prefix}-{number // GANG_SIZE}"}
        bodies[name] = msgspec.json.encode(pod)
    return bodies


def running(nodes: int, pods: int) -> Iterator[bytes]:
    """Running pods with 2 GPUs each, spread over the nodes in turn; a pod on a full node takes
    none. Their plans are as older extenders wrote them: they name no pod."""
    machines = {}
    for number in range(pods):
        node, place = node_name(number % nodes), number // nodes
        if node not in machines:
            machines[node] = recorded_machine(MACHINE, node=node)
        machine = machines[node]
        uuids = machine.uuids_of(machine.all_gpus)[2 * place : 2 * place + 2]
        name = f"tenant-{number}"
        said = {
            names.GPUS: write_gpus({"main": uuids}),
            names.PLAN: write_plan(Plan(id=name, node=node, epoch=1)),
        }
        pod = _pod(name, Length.TRAINING, len(uuids), said if uuids else {})
        pod["spec"]["nodeName"] = node
        yield msgspec.json.encode(pod)


def _pod(name: str, length: Length, gpus: int, annotations: Mapping[str, str]) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "64Gi", **({GPU: str(gpus)} if gpus else {})}
    container: dict[str, Any] = {
        "name": "main",
        "image": "registry.example.internal/research/training@sha256:" + "0" * 64,
        "resources": {"limits": amounts, "requests": amounts},
    }
    spec: dict[str, Any] = {"containers": [container], "restartPolicy": "Never"}
    if length is Length.TRAINING:
        mounts = ("shared-memory", "scratch")
        container |= {
            "command": ["torchrun", "--nproc-per-node", str(gpus), "train.py"],
            "env": [{"name": f"NCCL_SETTING_{n}", "value": f"value-{n}"} for n in range(24)],
            "volumeMounts": [{"name": mount, "mountPath": f"/{mount}"} for mount in mounts],
        }
        spec |= {
            "volumes": [{"name": mount, "emptyDir": {}} for mount in mounts],
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app": "training", "team": "research", "job-name": name},
            "annotations": dict(annotations),
        },
        "spec": spec,
    }
