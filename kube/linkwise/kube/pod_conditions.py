"""What kube-scheduler writes into a pod's condition PodScheduled."""

import re
from collections.abc import Iterable

from linkwise.kube.objects import Condition

# From Kubernetes 1.37 on, kube-scheduler tries no member of a PodGroup whose pods differ in the
# scheduler, the priority or the preemption policy; the priority must be the PodGroup's own
# (`validatePodGroup` in its schedule_one_podgroup.go).
GROUP_REFUSED = "all pods in a single pod group should have the same "

_PORT = re.compile(r":\d+(?=->)")  # of the caller: each try has another


def scheduler_error(conditions: Iterable[Condition]) -> str:
    """Why kube-scheduler broke off its last try, as when it cannot call an extender; empty: it did
    not. The text is the same for all tries that fail alike."""
    for condition in conditions:
        if condition.type == "PodScheduled" and condition.reason == "SchedulerError":
            return _PORT.sub("", condition.message)
    return ""
