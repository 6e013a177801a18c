"""Counts resources as kube-scheduler's NodeResourcesFit does; `kube/filters` has its other filters.

The extender's planner counts by itself. This count checks it, so the two share no code. PURE.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.objects import Node, Pod, Taint, milli, whole
from linkwise.kube.objects import Resources as OfPod

_NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


@dataclass(frozen=True, slots=True)
class FilteredNode:
    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool


Resources = Mapping[str, int]
"""Resource -> amount: thousandths of a CPU, else units; "pods" counts the pods themselves."""


def amount(resource: str, quantity: str | int | float) -> int:
    """Return a quantity in the unit that this scheduler counts in."""
    return milli(quantity) if resource == "cpu" else whole(quantity)


def requests_of(pod: Pod) -> dict[str, int]:
    """Return what the pod requests of a node.

    Containers and sidecars add up. Ordinary init containers count by their largest moment together
    with the sidecars before them (KEP-753). What the pod requests as a whole takes precedence. The
    overhead is added.
    """
    total: dict[str, int] = {"pods": 1}
    for container in pod.spec.containers:
        _add(total, _requests(container.resources))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers:
        moment = dict(sidecars)
        _add(moment, _requests(container.resources))
        if container.restart_policy == "Always":
            sidecars = moment
        for resource, needed in moment.items():
            peak[resource] = max(peak.get(resource, 0), needed)
    _add(total, sidecars)
    for resource, needed in peak.items():
        total[resource] = max(total.get(resource, 0), needed)
    total |= {
        name: needed
        for name, needed in _requests(pod.spec.resources).items()
        if name in ("cpu", "memory") or name.startswith("hugepages-")
    }
    _add(total, {name: amount(name, q) for name, q in pod.spec.overhead.items()})
    return total


def _requests(resources: OfPod) -> dict[str, int]:
    """A limit without a request is the request too, as the API server fills it in."""
    quantities = {**resources.limits, **resources.requests}
    return {name: amount(name, quantity) for name, quantity in quantities.items()}


def _add(total: dict[str, int], more: Resources) -> None:
    for resource, needed in more.items():
        total[resource] = total.get(resource, 0) + needed


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
