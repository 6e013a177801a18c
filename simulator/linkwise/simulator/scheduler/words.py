"""What kube-scheduler says about a pod that it cannot place, word for word. PURE.

Equal reasons are counted over the nodes, so a reason that differs from node to node makes the text
long, and one that differs from try to try makes the pod's condition change each time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from linkwise.kube.objects import Condition, Pod

POD_SCHEDULED = "PodScheduled"


def fit_error(nodes: int, reasons: Mapping[str, Sequence[str]], helpful: int) -> str:
    """*reasons*: node (or whatever an extender put there) -> why not. *helpful*: nodes on which
    removing other pods could have helped, and did not."""
    if not nodes:
        return "no nodes available to schedule pods"
    counted = Counter(reason for texts in reasons.values() for reason in texts)
    histogram = ", ".join(sorted(f"{count} {reason}" for reason, count in counted.items()))
    message = f"0/{nodes} nodes are available:"
    if histogram:
        message += f" {histogram}."
    # The first words are of the plugin for resource claims, which has nothing to do here.
    return f"{message} no new claims to deallocate, preemption: {_preemption(nodes, helpful)}"


def _preemption(nodes: int, helpful: int) -> str:
    counted = {
        "No preemption victims found for incoming pod.": helpful,
        "Preemption is not helpful for scheduling.": nodes - helpful,
    }
    texts = sorted(f"{count} {reason}" for reason, count in counted.items() if count)
    return f"0/{nodes} nodes are available: {', '.join(texts)}" if texts else ""


def condition_patch(
    pod: Pod, reason: str, message: str, moment: str, *, nomination: str | None
) -> dict[str, object] | None:
    """The merge patch of the pod's status that says why it waits; None where nothing changes.

    *nomination*: the node to nominate it to, "" to take a nomination away, None to leave it.
    """
    now = Condition(type=POD_SCHEDULED, status="False", reason=reason, message=message)
    before = next((c for c in pod.status.conditions if c.type == POD_SCHEDULED), None)
    status: dict[str, object] = {}
    if before != now:
        status["conditions"] = _with(now, pod, moment)
    if nomination is not None and nomination != pod.status.nominated_node_name:
        status["nominatedNodeName"] = nomination or None
    if not status:
        return None
    return {"metadata": {"uid": pod.metadata.uid}, "status": status}


def disruption_patch(victim: Pod, scheduler: str, moment: str) -> dict[str, object]:
    """The merge patch of a pod's status that says why it is about to be deleted."""
    why = Condition(
        type="DisruptionTarget",
        status="True",
        reason="PreemptionByScheduler",
        message=f"{scheduler}: preempting to accommodate a higher priority pod",
    )
    status = {"conditions": _with(why, victim, moment)}
    return {"metadata": {"uid": victim.metadata.uid}, "status": status}


def _with(condition: Condition, pod: Pod, moment: str) -> list[dict[str, object]]:
    """The pod's conditions, with this one instead of the one of its type."""
    others = [c for c in pod.status.conditions if c.type != condition.type]
    kept: list[dict[str, object]] = [msgspec.to_builtins(other) for other in others]
    return [*kept, {**msgspec.to_builtins(condition), "lastTransitionTime": moment}]
