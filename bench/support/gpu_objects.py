"""Nodes and pods with GPUs, as values, for benchmarks of the core alone."""

from collections.abc import Mapping
from datetime import UTC, datetime

from linkwise.kube.objects import (
    Condition,
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    PodStatus,
    Quantity,
    Resources,
    SchedulingGate,
)
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.model import Machine

GPU = names.DEFAULT_RESOURCE
START = 1_750_000_000.0


def node_of(
    name: str,
    machine: Machine,
    labels: Mapping[str, str] | None = None,
    said: Mapping[str, str] | None = None,
) -> Node:
    gpus = str(len(machine.gpus))
    return Node(
        metadata=ObjectMeta(
            name=name,
            uid=f"uid-{name}",
            labels={"kubernetes.io/hostname": name, **(labels or {})},
            annotations={names.TOPOLOGY: write_topology(machine), **(said or {})},
        ),
        status=NodeStatus(
            allocatable={"cpu": "192", "memory": "2Ti", "pods": "110", GPU: gpus},
            conditions=(Condition(type="Ready", status="True"),),
        ),
    )


def pod_of(
    name: str,
    gpus: int,
    said: Mapping[str, str] | None = None,
    *,
    node: str = "",
    cpu: int = 4,
    priority: int = 0,
    gated: bool = False,
) -> Pod:
    """On a *node* it runs."""
    amounts: dict[str, Quantity] = {GPU: str(gpus), "cpu": str(cpu), "memory": "16Gi"}
    main = Container(name="main", resources=Resources(limits=amounts, requests=amounts))
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ml",
            uid=f"uid-{name}",
            annotations=dict(said or {}),
            creation_timestamp=datetime.fromtimestamp(START, UTC),
        ),
        spec=PodSpec(
            containers=(main,),
            node_name=node,
            priority=priority,
            scheduling_gates=(SchedulingGate(name=names.GATE),) if gated else (),
        ),
        status=PodStatus(phase="Running" if node else "Pending"),
    )
