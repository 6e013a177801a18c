"""Decides whether a pod may run on a node, as kube-scheduler's own filter plugins do.

The plugins that matter to GPU pods, in kube-scheduler's order and words. The extender's planner has
its own version. This one checks it, so the two share no code. PURE.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from linkwise.kube.objects import (
    Container,
    Node,
    NodeSelectorTerm,
    Pod,
    Requirement,
    Taint,
    Toleration,
    milli,
    whole,
)

_NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")
_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a node does not fit. *resolvable*: it might if other pods were gone."""

    plugin: str
    reasons: tuple[str, ...]
    resolvable: bool


Resources = Mapping[str, int]
"""Resource -> amount: thousandths of a CPU, else units; "pods" counts the pods themselves."""


def amount(resource: str, quantity: str | int | float) -> int:
    """Return a quantity in the unit that this scheduler counts in."""
    return milli(quantity) if resource == "cpu" else whole(quantity)


def requests_of(pod: Pod) -> dict[str, int]:
    """Return what the pod requests of a node.

    Containers and sidecars add up. Ordinary init containers count by their largest moment together
    with the sidecars before them (KEP-753). The overhead is added.
    """
    total: dict[str, int] = {"pods": 1}
    for container in pod.spec.containers:
        _add(total, _requests(container))
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.spec.init_containers:
        moment = dict(sidecars)
        _add(moment, _requests(container))
        if container.restart_policy == "Always":
            sidecars = moment
        for resource, needed in moment.items():
            peak[resource] = max(peak.get(resource, 0), needed)
    _add(total, sidecars)
    for resource, needed in peak.items():
        total[resource] = max(total.get(resource, 0), needed)
    _add(total, {name: amount(name, q) for name, q in pod.spec.overhead.items()})
    return total


def _requests(container: Container) -> dict[str, int]:
    """A limit without a request is the request too, as the API server fills it in."""
    resources = container.resources
    quantities = {**resources.limits, **resources.requests}
    return {name: amount(name, quantity) for name, quantity in quantities.items()}


def _add(total: dict[str, int], more: Resources) -> None:
    for resource, needed in more.items():
        total[resource] = total.get(resource, 0) + needed


def rejection(
    pod: Pod, requests: Resources, node: Node, allocatable: Resources, used: Resources
) -> Rejection | None:
    """Return the first plugin's rejection of *node*, or None.

    *used* counts the node's pods and the pods nominated to it with at least the priority of *pod*.
    """
    if node.spec.unschedulable and not _tolerated(_UNSCHEDULABLE, pod.spec.tolerations):
        return Rejection("NodeUnschedulable", ("node(s) were unschedulable",), resolvable=False)
    if any(not _tolerated(taint, pod.spec.tolerations) for taint in _hard_taints(node)):
        reason = "node(s) had untolerated taint(s)"
        return Rejection("TaintToleration", (reason,), resolvable=False)
    if not _matches_affinity(pod, node):
        reason = "node(s) didn't match Pod's node affinity/selector"
        return Rejection("NodeAffinity", (reason,), resolvable=False)
    return _resources_fit(requests, allocatable, used)


def _resources_fit(
    requests: Resources, allocatable: Resources, used: Resources
) -> Rejection | None:
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


def _hard_taints(node: Node) -> Iterable[Taint]:
    """Return the taints that keep pods off. A node that is not ready counts as tainted: on a real
    cluster the controller manager sets that taint."""
    ready = next((c.status for c in node.status.conditions if c.type == "Ready"), "True")
    yield from (t for t in node.spec.taints if t.effect in ("NoSchedule", "NoExecute"))
    if ready != "True":
        yield _NOT_READY


def _tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def _matches_affinity(pod: Pod, node: Node) -> bool:
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is None:
        return True
    return any(_term_matches(term, node) for term in required.node_selector_terms)


def _term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """An empty term matches nothing."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.metadata.name}
    return all(_holds(r, node.metadata.labels) for r in term.match_expressions) and all(
        _holds(r, fields) for r in term.match_fields
    )


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    found = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return found in requirement.values
        case "NotIn":
            return found not in requirement.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            return _compares(requirement, found)
        case _:
            return False


def _compares(requirement: Requirement, found: str | None) -> bool:
    try:
        have, limit = int(found or ""), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return have > limit if requirement.operator == "Gt" else have < limit
