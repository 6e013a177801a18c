"""NodeUnschedulable and TaintToleration."""

from collections.abc import Iterable

from linkwise.kube.filters.nodes import NodeFacts
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.objects import Taint, Toleration

CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
KEEPS_OUT = frozenset({"NoSchedule", "NoExecute"})
# Kubernetes sets and removes taints of these keys: cordoned, not ready, under pressure.
_OF_THE_MOMENT = "node.kubernetes.io/"
UNSCHEDULABLE = Rejection("NodeUnschedulable", ("node(s) were unschedulable",), resolvable=False)
UNTOLERATED = Rejection("TaintToleration", ("node(s) had untolerated taint(s)",), resolvable=False)


def rejection(node: NodeFacts, tolerations: Iterable[Toleration]) -> Rejection | None:
    return cordoned(node, tolerations) or tainted(node, tolerations)


def cordoned(node: NodeFacts, tolerations: Iterable[Toleration]) -> Rejection | None:
    closed = node.unschedulable and not tolerated(CORDONED, tolerations)
    return UNSCHEDULABLE if closed else None


def tainted(node: NodeFacts, tolerations: Iterable[Toleration]) -> Rejection | None:
    return UNTOLERATED if untolerated(node.taints, tolerations) is not None else None


def untolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """Return the first taint that keeps the pod out."""
    for taint in taints:
        if taint.effect in KEEPS_OUT and not tolerated(taint, tolerations):
            return taint
    return None


def avoided(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> bool:
    """Whether kube-scheduler would prefer another node for the pod."""
    return any(t.effect == "PreferNoSchedule" and not tolerated(t, tolerations) for t in taints)


def lasting(taints: Iterable[Taint]) -> tuple[Taint, ...]:
    return tuple(taint for taint in taints if not taint.key.startswith(_OF_THE_MOMENT))


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """The operators Lt and Gt tolerate nothing: they are behind a feature gate that is off."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"
