"""The Nodes and Pods that the core sees: what an API server would hold for a trace."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from linkwise.kube.objects import Node, ObjectMeta, OwnerReference, Pod, PodSpec
from linkwise.replay.gpu_objects import container, node_of
from linkwise.replay.jobs import Job
from linkwise.topology import names
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine

EPOCH = 1_500_000_000.0  # second 0 of the trace for the core, in seconds since 1970
CONTAINER = "main"
LEAF = "network.topology.nvidia.com/leaf"  # as NVIDIA's topograph labels it
_LONGEST_SECONDS = 8760 * 3600  # the annotation's maximum


def node_name(number: int) -> str:
    return f"node-{number:05}"


def nodes(machines: Iterable[str], per_leaf: int = 0) -> Iterator[tuple[Node, Machine]]:
    """Return an idle node for each of the recorded *machines*, with CPU and memory for one pod per
    GPU, and with the label LEAF if there are so many nodes *per leaf*."""
    for number, machine in enumerate(machines):
        name = node_name(number)
        leaf = {LEAF: f"leaf-{number // per_leaf:05}"} if per_leaf else {}
        hardware = recorded_machine(machine, node=name)
        yield node_of(name, hardware, labels=leaf), hardware


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
            after = f"{round(job.movable_after)}s" if job.movable_after else "true"
            said |= {names.MOVABLE: after, names.MOVE_COST: f"{max(round(job.move_cost), 1)}s"}
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
            spec=PodSpec(containers=(container(CONTAINER, gpus),), restart_policy="Never"),
        )
