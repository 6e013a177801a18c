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

from bench.support.scheduler_pods import NAMESPACE as NAMESPACE
from bench.support.scheduler_pods import Length, pod_body
from linkwise.kube.client import KubeClient
from linkwise.simulator.api_server import ApiServer
from linkwise.topology import names
from linkwise.topology.annotations.plan import InUse, Plan, write_gpus, write_in_use, write_plan
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from tests.cluster.support.scheduling.extender_process import gpu_node

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
        machine = draw.choice(MACHINES)
        pods = _tenants(name, recorded_machine(machine, node=name), draw)
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


def waiting_pod(client: KubeClient, name: str, job: Job, *, owned: bool = True) -> dict[str, Any]:
    """Create a pod that waits to be placed, of a ReplicaSet if it is *owned*; return it as
    kube-scheduler would send it."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    pod = pod_body(name, Length.TRAINING, job.gpus, job.annotations)
    # For pods of a ReplicaSet, filter returns all passing nodes, and prioritize scores them; for
    # other pods, filter returns one node.
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "bench", "uid": "1"}
    pod["metadata"]["ownerReferences"] = [{**owner, "controller": True}] * owned
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


def _node(name: str, machine: str, pods: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    in_use = InUse(pods={f"{NAMESPACE}/{pod}": {"main": gpus} for pod, gpus in pods.items()})
    node = gpu_node(name, machine, {"topology.kubernetes.io/zone": f"eu-west-{len(name) % 3}"})
    node["metadata"]["annotations"][names.IN_USE] = write_in_use(in_use)
    return node


def _tenant(name: str, node: str, gpus: tuple[str, ...]) -> dict[str, Any]:
    """A pod that runs, with a plan as older extenders wrote it: it names no pod."""
    plan = write_plan(Plan(id=name, node=node, epoch=1))
    said = {names.GPUS: write_gpus({"main": gpus}), names.PLAN: plan}
    pod = pod_body(name, Length.TRAINING, len(gpus), said)
    pod["spec"]["nodeName"] = node
    return pod
