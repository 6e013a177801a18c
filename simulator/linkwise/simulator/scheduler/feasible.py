"""Whether a node has the resources for a pod; `kube/filters` has kube-scheduler's other rules.

The extender's planner adds up what a node has left by itself, in arrays. This checks it. PURE.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.requests import pod_requests
from linkwise.kube.objects import Node, Pod, Taint

_NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


@dataclass(frozen=True, slots=True)
class FilteredNode:
    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool


Resources = Mapping[str, int]
"""Resource -> amount: thousandths of a CPU, else units; "pods" counts the pods themselves."""


def requests_of(pod: Pod) -> dict[str, int]:
    """Return what the pod requests of a node, and its place."""
    return {"pods": 1, **pod_requests(pod)}


def node_facts(node: Node) -> FilteredNode:
    """Return what the filters read. A node that is not ready counts as tainted: on a real cluster
    the controller manager sets that taint."""
    ready = next((c.status for c in node.status.conditions if c.type == "Ready"), "True")
    taints = node.spec.taints if ready == "True" else (*node.spec.taints, _NOT_READY)
    meta = node.metadata
    return FilteredNode(meta.name, meta.labels, taints, node.spec.unschedulable)


def resources_fit(requests: Resources, allocatable: Resources, used: Resources) -> Rejection | None:
    short = [
        resource
        for resource, needed in requests.items()
        if needed and used.get(resource, 0) + needed > allocatable.get(resource, 0)
    ]
    if not short:
        return None
    reasons = ("Too many pods" if name == "pods" else f"Insufficient {name}" for name in short)
    resolvable = all(requests[name] <= allocatable.get(name, 0) for name in short)
    return Rejection("NodeResourcesFit", tuple(reasons), resolvable)
