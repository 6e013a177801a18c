"""A simulated cluster on the API server's stand-in: nodes of mixed machines, GPUs in use at random.

The stand-in runs in a process of its own. This module creates objects over its HTTP API, so the
program under test reads them by its own list and watch.
"""

import random
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from linkwise.kube.client import KubeClient
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.labels import node_labels
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.annotations.plan import InUse, Plan, write_gpus, write_in_use, write_plan
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine

GPU = names.DEFAULT_RESOURCE
NAMESPACE = "ml"
MACHINES = (
    "dgx-a100",
    "dgx1-v100",
    "dgx2-v100",
    "hgx-h100",
    "h200-nvl-2x4",
    "a100-pcie-8-bridged",
    "p100-pcie-8",
    "mixed-5",
)
_WRITERS = 8


@contextmanager
def api_server() -> Iterator[str]:
    """The URL of a stand-in in its own process."""
    context = get_context("spawn")  # a fork would copy the locks of this process's threads
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("stop")
        process.join(10)
        process.kill()


def _serve(orders: Connection) -> None:
    with ApiServer() as server:
        orders.send(server.url)
        orders.recv()


@dataclass(frozen=True, slots=True)
class Job:
    """The GPUs and annotations of each of its pods."""

    gpus: int
    annotations: Mapping[str, str]


def fill(url: str, nodes: int, seed: int) -> list[str]:
    """Create *nodes* nodes with about a third of their GPUs in use; return their names."""
    draw = random.Random(seed)
    client = KubeClient.load(kubeconfig=None, server=url)
    node_names = [f"gpu-node-{number:05d}.eu-west.example.internal" for number in range(nodes)]
    objects = []
    for name in node_names:
        machine = recorded_machine(draw.choice(MACHINES), node=name)
        pods = _tenants(name, machine, draw)
        objects.append((_node(name, machine, pods), pods))

    def create(made: tuple[dict[str, Any], dict[str, tuple[str, ...]]]) -> None:
        node, pods = made
        client.post("/api/v1/nodes", node)
        for pod, gpus in pods.items():
            path = f"/api/v1/namespaces/{NAMESPACE}/pods"
            client.post(path, _tenant(pod, node["metadata"]["name"], gpus))
            client.patch(f"{path}/{pod}/status", {"status": {"phase": "Running"}})

    with ThreadPoolExecutor(_WRITERS) as writers:
        list(writers.map(create, objects))
    return node_names


def waiting_pod(client: KubeClient, name: str, job: Job) -> dict[str, Any]:
    """Create a pod that waits to be placed; return it as kube-scheduler would send it."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    pod = _pod(name, job.gpus, job.annotations)
    # For pods of a ReplicaSet, filter returns all passing nodes, and prioritize scores them; for
    # other pods, filter returns one node.
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "bench", "uid": "1"}
    pod["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    client.post(path, pod)
    return client.get(f"{path}/{name}", dict[str, Any])


def _tenants(node: str, machine: Machine, draw: random.Random) -> dict[str, tuple[str, ...]]:
    """The running pods of a node: name -> UUIDs of their GPUs."""
    free = list(machine.uuids_of(machine.all_gpus))
    draw.shuffle(free)
    pods: dict[str, tuple[str, ...]] = {}
    for number in range(draw.randint(0, 3)):
        size = min(draw.choice((1, 1, 2, 4)), len(free))
        if size:
            pods[f"tenant-{node.split('.')[0]}-{number}"] = tuple(free[:size])
            free = free[size:]
    return pods


def _node(name: str, machine: Machine, pods: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "110", GPU: str(len(machine.gpus))}
    in_use = InUse(pods={f"{NAMESPACE}/{pod}": {"main": gpus} for pod, gpus in pods.items()})
    zone = {"topology.kubernetes.io/zone": f"eu-west-{len(name) % 3}"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **zone, **node_labels(machine)},
            "annotations": {
                names.TOPOLOGY: write_topology(machine),
                names.IN_USE: write_in_use(in_use),
            },
        },
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _tenant(name: str, node: str, gpus: tuple[str, ...]) -> dict[str, Any]:
    """A pod that runs, with a plan as older extenders wrote it: it names no pod."""
    plan = write_plan(Plan(id=name, node=node, epoch=1))
    said = {names.GPUS: write_gpus({"main": gpus}), names.PLAN: plan}
    pod = _pod(name, len(gpus), said)
    pod["spec"]["nodeName"] = node
    return pod


def _pod(name: str, gpus: int, annotations: Mapping[str, str]) -> dict[str, Any]:
    """A pod as large as a training pod with the API server's defaults, about 4 kB."""
    environment = [
        {"name": f"NCCL_SETTING_{number}", "value": f"value-{number}"} for number in range(24)
    ]
    amounts = {"cpu": "8", "memory": "64Gi", GPU: str(gpus)}
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
            "schedulerName": "default-scheduler",
            "priority": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.internal/research/training@sha256:" + "0" * 64,
                    "command": ["torchrun", "--nproc-per-node", str(gpus), "train.py"],
                    "env": environment,
                    "resources": {"limits": amounts, "requests": amounts},
                    "volumeMounts": [
                        {"name": f"volume-{number}", "mountPath": f"/mnt/{number}"}
                        for number in range(6)
                    ],
                    "terminationMessagePath": "/dev/termination-log",
                    "imagePullPolicy": "IfNotPresent",
                }
            ],
            "volumes": [
                {"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": f"c-{number}"}}
                for number in range(6)
            ],
            "tolerations": [
                {"key": GPU, "operator": "Exists", "effect": "NoSchedule"},
                {
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                },
            ],
            "restartPolicy": "Never",
        },
    }
