"""kube-scheduler's message about a pod that fits nowhere, word for word. PURE.

Equal reasons are counted over the nodes. A reason that differs between nodes makes the text long,
and one that differs between tries changes the pod's condition each time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from linkwise.kube.objects import Condition, Pod

POD_SCHEDULED = "PodScheduled"


def fit_error(
    nodes: int, reasons: Mapping[str, Sequence[str]], helpful: int, nowhere: str = ""
) -> str:
    """Return the message. *reasons*: node (or another key of an extender) -> reasons. *helpful*:
    nodes where removing other pods could have helped but did not. *nowhere*: the reason that holds
    for the pod as a whole."""
    if not nodes:
        return "no nodes available to schedule pods"
    counted = Counter(reason for texts in reasons.values() for reason in texts)
    histogram = nowhere or ", ".join(sorted(f"{n} {reason}" for reason, n in counted.items()))
    message = f"0/{nodes} nodes are available:"
    if histogram:
        message += f" {histogram}."
    return f"{message} preemption: {_preemption(nodes, helpful)}"


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
    """Return the merge patch of the pod's status that says why it waits; None if nothing changes.

    *nomination*: the node to nominate, "" to remove a nomination, None to leave it.
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
    """Return the merge patch of a pod's status that says why it is about to be deleted."""
    why = Condition(
        type="DisruptionTarget",
        status="True",
        reason="PreemptionByScheduler",
        message=f"{scheduler}: preempting to accommodate a higher priority pod",
    )
    status = {"conditions": _with(why, victim, moment)}
    return {"metadata": {"uid": victim.metadata.uid}, "status": status}


def _with(condition: Condition, pod: Pod, moment: str) -> list[dict[str, object]]:
    """Return the pod's conditions with this one instead of the one of its type."""
    others = [c for c in pod.status.conditions if c.type != condition.type]
    kept: list[dict[str, object]] = [msgspec.to_builtins(other) for other in others]
    return [*kept, {**msgspec.to_builtins(condition), "lastTransitionTime": moment}]
