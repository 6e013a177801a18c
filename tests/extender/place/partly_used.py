"""Nodes of which pods use some GPUs."""

from dataclasses import replace

from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from tests.extender.cluster import Cluster

LEAF = "network.topology.nvidia.com/leaf"
ZONE = "topology.kubernetes.io/zone"


def busy(at: Cluster, node: str, *gpus: int) -> None:
    """A pod runs on these GPUs."""
    if gpus:
        name = f"busy-{node}"
        at.add_pod(name, len(gpus), node=node, cpu="0")
        at.set_in_use(node, {f"ml/{name}": {"main": at.uuids(node, *gpus)}})


def free(at: Cluster, node: str, count: int) -> None:
    """So many GPUs stay free, those with the lowest indices."""
    busy(at, node, *range(count, len(at.machine(node).gpus)))


def add(
    at: Cluster, *nodes: str, machine: str, free_gpus: int | None = None, **labels: str
) -> None:
    for node in nodes:
        keys = {"leaf": LEAF, "zone": ZONE}
        at.add_node(node, machine, labels={keys[key]: value for key, value in labels.items()})
        if free_gpus is not None:
            free(at, node, free_gpus)


def named(node: str, model: str) -> Machine:
    """An HGX H100 whose GPUs are called otherwise, and are as fast."""
    machine = recorded_machine("hgx-h100", node=node)
    gpus = tuple(replace(gpu, model=f"NVIDIA H100 {model}") for gpu in machine.gpus)
    return replace(machine, gpus=gpus)
