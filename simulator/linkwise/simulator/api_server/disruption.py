"""Decides whether a pod may be evicted: a PodDisruptionBudget counts what it has allowed. Pure.

The disruption controller is missing: the client that creates a budget writes its status too.
"""

from collections.abc import Iterable
from datetime import datetime

from linkwise.simulator.api_server.refusals import Object, RequestRefusedError
from linkwise.simulator.api_server.rules import timestamp
from linkwise.simulator.api_server.selectors import reads_labels

_NEED_NO_BUDGET = ("Pending", "Succeeded", "Failed")


def use_budget(pod: Object, budgets: Iterable[Object], now: datetime) -> Object | None:
    """Return the budget of *pod* with its eviction counted, or None if no budget applies.

    Raises RequestRefusedError: 429 if the budget allows none, 500 if several budgets match.
    """
    if pod["status"].get("phase") in _NEED_NO_BUDGET or "deletionTimestamp" in pod["metadata"]:
        return None
    found = [b for b in budgets if reads_labels(b["spec"].get("selector") or {}).matches(pod)]
    if not found:
        return None
    if len(found) > 1:
        message = (
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does "
            "not support."
        )
        raise RequestRefusedError(500, "InternalError", message)
    (budget,) = found
    status = budget["status"]
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if not _is_ready(pod) and healthy >= desired > 0:
        return None  # the budget does not count this pod
    allowed = status.get("disruptionsAllowed", 0)
    if not allowed:
        raise _not_now(budget["metadata"]["name"], healthy, desired)
    disrupted = {**status.get("disruptedPods", {}), pod["metadata"]["name"]: timestamp(now)}
    used = {"disruptionsAllowed": allowed - 1, "disruptedPods": disrupted}
    return budget | {"status": status | used}


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _not_now(budget: str, healthy: int, desired: int) -> RequestRefusedError:
    why = "does not allow evicting pods currently"
    if healthy <= desired:
        why = f"needs {desired} healthy pods and has {healthy} currently"
    return RequestRefusedError(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        {
            "causes": [
                {"reason": "DisruptionBudget", "message": f"The disruption budget {budget} {why}"}
            ]
        },
    )
