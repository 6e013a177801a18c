"""The Nodes and Pods that the core sees: what an API server would hold for a trace."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from linkwise.kube.objects import (
    Condition,
    Container,
    Node,
    NodeStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    Resources,
)
from linkwise.replay.jobs import Job
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine

EPOCH = 1_500_000_000.0  # second 0 of the trace for the core, in seconds since 1970
CONTAINER = "main"
_LONGEST_SECONDS = 8760 * 3600  # the annotation's maximum


def node_name(number: int) -> str:
    return f"node-{number:05}"


def nodes(machines: Iterable[str]) -> Iterator[tuple[Node, Machine]]:
    """Return an idle node for each of the recorded *machines*, with CPU and memory for one pod per
    GPU."""
    for number, machine in enumerate(machines):
        name = node_name(number)
        hardware = recorded_machine(machine, node=name)
        gpus = str(len(hardware.gpus))
        offers: dict[str, str | int | float] = {
            "cpu": "96",
            "memory": "1Ti",
            "pods": "110",
            names.DEFAULT_RESOURCE: gpus,
        }
        node = Node(
            metadata=ObjectMeta(
                name=name,
                uid=name,
                labels={"kubernetes.io/hostname": name},
                annotations={names.TOPOLOGY: write_topology(hardware)},
            ),
            status=NodeStatus(
                allocatable=offers, conditions=(Condition(type="Ready", status="True"),)
            ),
        )
        yield node, hardware


def pods(job: Job, number: int, now: float) -> Iterator[Pod]:
    """Return the job's pods, a gang if there are several. *number* makes their names legal."""
    sizes = job.pods
    said = {}
    if job.expected is not None:
        said[names.EXPECTED_DURATION] = f"{min(max(round(job.expected), 1), _LONGEST_SECONDS)}s"
    for rank, gpus in enumerate(sizes):
        gang = {
            names.GANG: f"job-{number}",
            names.GANG_SIZE: str(len(sizes)),
            names.RANK: str(rank),
        }
        if job.move_cost is not None:
            said |= {names.MOVABLE: "true", names.MOVE_COST: f"{max(round(job.move_cost), 1)}s"}
        name = f"job-{number}-{rank}"
        yield Pod(
            metadata=ObjectMeta(
                name=name,
                namespace=job.namespace,
                uid=name,
                owner_references=(
                    OwnerReference("Job", name, f"of-{name}", "batch/v1", controller=True),
                ),
                annotations=said | (gang if len(sizes) > 1 else {}),
                creation_timestamp=datetime.fromtimestamp(now, UTC),
            ),
            spec=PodSpec(containers=(_container(gpus),), restart_policy="Never"),
        )


def _container(gpus: int) -> Container:
    limits: dict[str, str | int | float] = {names.DEFAULT_RESOURCE: str(gpus)}
    requests = {"cpu": "1", "memory": "1Gi", **limits}
    return Container(name=CONTAINER, resources=Resources(limits=limits, requests=requests))
