"""The door: what a tenant writes into one pod has a bound in bytes before anything else reads it.

Reading a pod, comparing it with others and remembering it takes time and memory in proportion to
what it says, and the API server takes a megabyte and more. Of a pod over the bound only the sum of
what it requests counts; with GPUs it is refused. So does one of a refused pod.
"""

from collections.abc import Iterable, Sequence

import msgspec

from linkwise.kube.filters.requests import lenient_amount, pod_requests
from linkwise.kube.labels import MIRROR_POD
from linkwise.kube.objects import LARGEST, Container, ObjectMeta, Pod, PodSpec, Quantity, Resources
from linkwise.topology import names

MOST_BYTES = 40 * 1024  # of JSON; a pod of 20 containers, volumes and labels has some 5 KiB
_MOST_NAMES = 16  # of resources
_FIRST = ("cpu", "memory", "ephemeral-storage", "pods")


class LargePod(Pod, frozen=True):
    """What is kept of a pod over a bound, or of one that is refused."""

    refusal: str = ""  # why, if it has GPUs


def size_of(pod: Pod) -> int:
    """Bytes of what Linkwise reads of a pod's labels, owners and spec, as JSON."""
    meta = pod.metadata
    return len(msgspec.json.encode((meta.labels, meta.owner_references, pod.spec)))


def too_large(pod: Pod, size: int) -> str:
    """Why a pod with GPUs of that *size* is refused; empty: it is not."""
    if size > MOST_BYTES:
        return (
            f"labels, owners and spec of {size >> 10} KiB: expected {MOST_BYTES >> 10} KiB at "
            "most; images, commands and environments do not count"
        )
    return f"more than {_MOST_NAMES} names of resources" if _has_many_names(pod) else ""


def _has_many_names(pod: Pod) -> bool:
    requested: set[str] = set()
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        requested.update(container.resources.requests, container.resources.limits)
        if len(requested) > _MOST_NAMES:
            return True
    return False


def shortened(pod: Pod, refusal: str, resources: Sequence[str]) -> LargePod:
    """What is kept of *pod*: who and where it is, its state, Linkwise's own annotations, and
    one container that requests all that kube-scheduler counts; of *resources* first."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    wanted = pod_requests(pod, lenient_amount)
    requests: dict[str, Quantity] = {
        name: f"{amount}m" if name == "cpu" else amount
        for name in _most_important(wanted, resources)
        if (amount := min(wanted[name], LARGEST))
    }
    return LargePod(
        refusal=refusal,
        metadata=ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            annotations={
                key: meta.annotations[key]
                for key in (*names.BY_LINKWISE, MIRROR_POD)
                if key in meta.annotations
            },
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
        ),
        spec=PodSpec(
            node_name=spec.node_name,
            containers=(Container(name="all", resources=Resources(requests=requests)),),
            priority=spec.priority,
            preemption_policy=spec.preemption_policy,
            restart_policy=spec.restart_policy,
            scheduler_name=spec.scheduler_name,
            scheduling_gates=spec.scheduling_gates[:_MOST_NAMES],
            resource_claims=spec.resource_claims[:_MOST_NAMES],
        ),
        status=msgspec.structs.replace(
            status,
            container_statuses=status.container_statuses[:1],
            init_container_statuses=status.init_container_statuses[:1],
        ),
    )


def _most_important(wanted: Iterable[str], resources: Sequence[str]) -> list[str]:
    def rank(name: str) -> tuple[bool, bool, str]:
        is_gpu = any(name == each or names.is_share(name, each) for each in resources)
        return not is_gpu, name not in _FIRST, name

    return sorted(wanted, key=rank)[:_MOST_NAMES]
