"""Pods with GPUs, as values, for benchmarks of the core alone."""

from collections.abc import Mapping
from datetime import UTC, datetime

from linkwise.kube.objects import ObjectMeta, Pod, PodSpec, PodStatus, SchedulingGate
from linkwise.replay.gpu_objects import container
from linkwise.topology import names

START = 1_750_000_000.0


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
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ml",
            uid=f"uid-{name}",
            annotations=dict(said or {}),
            creation_timestamp=datetime.fromtimestamp(START, UTC),
        ),
        spec=PodSpec(
            containers=(container("main", gpus, cpu=str(cpu)),),
            node_name=node,
            priority=priority,
            scheduling_gates=(SchedulingGate(name=names.GATE),) if gated else (),
        ),
        status=PodStatus(phase="Running" if node else "Pending"),
    )
