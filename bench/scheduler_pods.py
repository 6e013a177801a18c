"""The nodes and pods of `bench.scheduler`: 8-GPU machines, and pods that take one whole.

Pods are as long as a training job's. Stock kube-scheduler gets the same ones, annotations and all;
only the gate is left out for it, as nobody would lift it.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from linkwise.topology import names
from linkwise.topology.plan import Plan, write_gpus, write_plan
from linkwise.topology.recorded import recorded_machine
from tests.cluster.scheduling import GPU, gpu_node

NAMESPACE = "ml"
MACHINE = "hgx-h100"
GANG_SIZE = 4


class Kind(Enum):
    SINGLE = "single pods"
    GANGS = f"gangs of {GANG_SIZE}"
    GATED = "gated pods"


def nodes(count: int) -> Iterator[bytes]:
    for number in range(count):
        zone = {"topology.kubernetes.io/zone": f"eu-west-{number % 3}"}
        yield msgspec.json.encode(gpu_node(node_name(number), MACHINE, zone))


def node_name(number: int) -> str:
    return f"gpu-node-{number:05d}.eu-west.example.internal"


def waiting(kind: Kind, count: int, prefix: str) -> list[bytes]:
    """That many pods that each want a whole machine."""
    bodies = []
    for number in range(count):
        said, gates = {}, []
        if kind is Kind.GANGS:
            gang = number // GANG_SIZE
            size = min(GANG_SIZE, count - gang * GANG_SIZE)
            said = {names.GANG: f"{prefix}-{gang}", names.GANG_SIZE: str(size)}
        elif kind is Kind.GATED:
            gates = [{"name": names.GATE}]
        pod = _pod(f"{prefix}-{number}", 8, said)
        pod["spec"]["schedulingGates"] = gates
        bodies.append(msgspec.json.encode(pod))
    return bodies


def running(nodes: int, pods: int) -> Iterator[bytes]:
    """Pods that are on their nodes already, with the GPUs they hold: 2 each, one node after the
    other, as many as the nodes have room for; the rest take none."""
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
        pod = _pod(name, len(uuids), said if uuids else {})
        pod["spec"]["nodeName"] = node
        yield msgspec.json.encode(pod)


def _pod(name: str, gpus: int, annotations: Mapping[str, str]) -> dict[str, Any]:
    environment = [
        {"name": f"NCCL_SETTING_{number}", "value": f"value-{number}"} for number in range(24)
    ]
    amounts = {"cpu": "8", "memory": "64Gi", **({GPU: str(gpus)} if gpus else {})}
    mounts = ("shared-memory", "scratch")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app": "training", "team": "research", "job-name": name},
            "annotations": dict(annotations),
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.internal/research/training@sha256:" + "0" * 64,
                    "command": ["torchrun", "--nproc-per-node", str(gpus), "train.py"],
                    "env": environment,
                    "resources": {"limits": amounts, "requests": amounts},
                    "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in mounts],
                }
            ],
            "volumes": [{"name": name, "emptyDir": {}} for name in mounts],
            "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
        },
    }
