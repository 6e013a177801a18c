"""Nodes and containers with GPUs as values, where no kubelet and no user writes them."""

from collections.abc import Mapping

from linkwise.kube.objects import (
    Condition,
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Quantity,
    Resources,
)
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.model import Machine

GPU = names.DEFAULT_RESOURCE


def node_of(
    name: str,
    machine: Machine,
    *,
    cpu: str = "96",
    memory: str = "1Ti",
    pods: str = "110",
    labels: Mapping[str, str] | None = None,
    said: Mapping[str, str] | None = None,
) -> Node:
    """A node that is ready, and offers the healthy GPUs. *said*: annotations beside the machine."""
    gpus = str(machine.healthy_gpus.bit_count())
    return Node(
        metadata=ObjectMeta(
            name=name,
            uid=f"node-{name}",
            labels={"kubernetes.io/hostname": name, **(labels or {})},
            annotations={names.TOPOLOGY: write_topology(machine), **(said or {})},
        ),
        status=NodeStatus(
            allocatable={"cpu": cpu, "memory": memory, "pods": pods, GPU: gpus},
            conditions=(Condition(type="Ready", status="True"),),
        ),
    )


def container(name: str, gpus: int, *, cpu: str = "1", restart_policy: str = "") -> Container:
    limits: dict[str, Quantity] = {GPU: str(gpus)} if gpus else {}
    return Container(
        name=name,
        restart_policy=restart_policy,
        resources=Resources(limits=limits, requests={"cpu": cpu, "memory": "1Gi", **limits}),
    )
