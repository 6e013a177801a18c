"""Scores a node as kube-scheduler's default score plugins do. PURE.

Models the plugins that distinguish nodes for pods without placement rules: NodeResourcesFit
(LeastAllocated) and NodeResourcesBalancedAllocation, each over CPU and memory with weight 1, 0 to
100. By kube-scheduler's defaults GPUs count in neither. The other plugins (taints, affinity,
spread, images) give all such nodes the same score.
"""

from linkwise.kube.filters.requests import amount
from linkwise.kube.objects import Container, Pod
from linkwise.simulator.scheduler.feasible import Resources

_DEFAULTS = {"cpu": 100, "memory": 200 << 20}  # counted for a container without a request
MAX_SCORE = 100


def presumed(pod: Pod) -> dict[str, int]:
    """Return CPU and memory for LeastAllocated. A container without a request counts a little, so
    that such pods spread too."""
    sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
    containers = (*pod.spec.containers, *sidecars)
    return {name: sum(_asked(c, name) for c in containers) for name in _DEFAULTS}


def _asked(container: Container, resource: str) -> int:
    given = container.resources.requests.get(resource)
    given = container.resources.limits.get(resource) if given is None else given
    return _DEFAULTS[resource] if given is None else amount(resource, given)


def least_allocated(allocatable: Resources, presumed_use: Resources) -> int:
    """Return 0 to 100, higher for an emptier node. *presumed_use*: of its pods and the new one."""
    shares = [
        max(0, capacity - presumed_use.get(resource, 0)) * MAX_SCORE // capacity
        for resource in _DEFAULTS
        if (capacity := allocatable.get(resource, 0))
    ]
    return sum(shares) // len(shares) if shares else 0


def balanced(allocatable: Resources, use: Resources) -> int:
    """Return 0 to 100, higher if the used shares of CPU and memory are more alike."""
    shares = [
        min(1.0, use.get(resource, 0) / capacity)
        for resource in _DEFAULTS
        if (capacity := allocatable.get(resource, 0))
    ]
    spread = abs(shares[0] - shares[1]) / 2 if len(shares) == 2 else 0.0  # standard deviation
    return int((1 - spread) * MAX_SCORE)


def nodes_to_find(nodes: int, percentage: int = 0) -> int:
    """Return how many feasible nodes end the search.

    *percentage* 0 is the default rule: all if fewer than 100; else 50 % less one for each 125
    nodes, at least 5 %, and never fewer than 100.
    """
    if nodes < 100 or percentage >= 100:
        return nodes
    share = percentage or max(5, 50 - nodes // 125)
    return max(100, nodes * share // 100)
