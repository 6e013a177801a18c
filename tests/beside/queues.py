"""Queues of Kueue, and workloads in them. As everywhere, each pod takes a node."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.beside.workloads import BATCH, GPUS, job_template
from tests.beside.world import NODES, RACK
from tests.cluster.support.scheduling.extender_process import GPU
from tests.cluster.support.scheduling.scheduling_world import (
    NAMESPACE,
    PODS,
    ZONE,
    SchedulingWorld,
)
from tests.cluster.support.scheduling.workload_pods import pod_template

QUOTA_OF_ONE, ALL, IN_RACKS = "quota-of-one", "all", "in-racks"
HIGH = "high"  # a PriorityClass and a WorkloadPriorityClass
_KUEUE = "kueue.x-k8s.io/"


def create_queues(world: SchedulingWorld) -> None:
    """Quota for one workload of two pods, for all nodes, and for all nodes with topology-aware
    scheduling. A more important workload preempts others of its queue."""
    create_objects(world, *_objects())


def create_objects(world: SchedulingWorld, *objects: Mapping[str, Any]) -> None:
    made = {"apiVersion": "v1", "kind": "List", "items": objects}
    world.control.kubectl("create", "-f=-", stdin=json.dumps(made))


def _objects() -> Iterator[dict[str, Any]]:
    yield _kueue("ResourceFlavor", "gpus")
    yield from flavor_in("gpus-in-racks", RACK)
    yield from queue_of(QUOTA_OF_ONE, "gpus", 2 * GPUS)
    yield from queue_of(ALL, "gpus", len(NODES) * GPUS)
    yield from queue_of(IN_RACKS, "gpus-in-racks", len(NODES) * GPUS)
    important = {"metadata": {"name": HIGH}, "value": 1000}
    yield {**_kueue("WorkloadPriorityClass", HIGH), **important}
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    # Kueue alone preempts.
    yield {**kind, **important, "preemptionPolicy": "Never"}


def flavor_in(name: str, *levels: str) -> Iterator[dict[str, Any]]:
    """Topology-aware scheduling by labels of nodes, the widest level first."""
    yield _kueue("Topology", name, levels=[{"nodeLabel": level} for level in levels])
    zone = {ZONE: "eu-west-1"}
    yield _kueue("ResourceFlavor", name, nodeLabels=zone, topologyName=name)


def queue_of(name: str, flavor: str, gpus: int) -> Iterator[dict[str, Any]]:
    quota = {"name": GPU, "nominalQuota": str(gpus)}
    group = {"coveredResources": [GPU], "flavors": [{"name": flavor, "resources": [quota]}]}
    yield _kueue(
        "ClusterQueue",
        name,
        namespaceSelector={},
        resourceGroups=[group],
        preemption={"withinClusterQueue": "LowerPriority"},
    )
    local = _kueue("LocalQueue", name, clusterQueue=name)
    yield {**local, "metadata": {"name": name, "namespace": NAMESPACE}}


def _kueue(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    made = {"apiVersion": _KUEUE + "v1beta2", "kind": kind, "metadata": {"name": name}}
    return {**made, "spec": spec} if spec else made


def queued(queue: str, importance: str = "") -> dict[str, str]:
    """Return the labels of a workload. *importance* is its WorkloadPriorityClass."""
    by = {_KUEUE + "priority-class": importance} if importance else {}
    return {_KUEUE + "queue-name": queue, **by}


def create_in_queue(
    world: SchedulingWorld,
    name: str,
    queue: str,
    *,
    importance: str = "",
    priority_class: str = "",
    said: Mapping[str, str] | None = None,
) -> None:
    """Create a Job of two pods. *said* are annotations of its template."""
    spec = job_template(name, 2)
    template = spec["template"]
    template["metadata"]["annotations"].update(said or {})
    if priority_class:
        template["spec"]["priorityClassName"] = priority_class
    metadata = {"name": name, "labels": queued(queue, importance)}
    world.client.post(BATCH, {"metadata": metadata, "spec": spec})


def create_pod_group(world: SchedulingWorld, name: str, queue: str) -> None:
    """Create two plain pods, as one group of Kueue."""
    for rank in range(2):
        made = pod_template(name, GPUS)
        made["spec"]["restartPolicy"] = "Never"
        made["metadata"]["name"] = f"{name}-{rank}"
        made["metadata"]["labels"].update(queued(queue), **{_KUEUE + "pod-group-name": name})
        made["metadata"]["annotations"][_KUEUE + "pod-group-total-count"] = "2"
        world.client.post(PODS, made)
