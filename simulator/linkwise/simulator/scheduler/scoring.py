"""How good a node is, as kube-scheduler's default score plugins see it. PURE.

Scored are those that tell nodes apart where pods say nothing about placement: NodeResourcesFit
(LeastAllocated) and NodeResourcesBalancedAllocation, each over CPU and memory with weight 1, 0 to
100. GPUs count in neither: that is kube-scheduler's default. The others (taints, affinity, spread,
images) would give every such node the same.
"""

from linkwise.kube.objects import Container, Pod
from linkwise.simulator.scheduler.feasible import Resources, amount

_DEFAULTS = {"cpu": 100, "memory": 200 << 20}  # what a container that asks for none counts for
MAX_SCORE = 100


def presumed(pod: Pod) -> dict[str, int]:
    """CPU and memory that LeastAllocated counts: a container that asks for none still counts a
    little, so that pods without requests spread too."""
    sidecars = [c for c in pod.spec.init_containers if c.restart_policy == "Always"]
    containers = (*pod.spec.containers, *sidecars)
    return {name: sum(_asked(c, name) for c in containers) for name in _DEFAULTS}


def _asked(container: Container, resource: str) -> int:
    given = container.resources.requests.get(resource)
    given = container.resources.limits.get(resource) if given is None else given
    return _DEFAULTS[resource] if given is None else amount(resource, given)


def least_allocated(allocatable: Resources, presumed_use: Resources) -> int:
    """0 to 100, the emptier the higher. *presumed_use*: of the node's pods and the new one."""
    shares = [
        max(0, capacity - presumed_use.get(resource, 0)) * MAX_SCORE // capacity
        for resource in _DEFAULTS
        if (capacity := allocatable.get(resource, 0))
    ]
    return sum(shares) // len(shares) if shares else 0


def balanced(allocatable: Resources, use: Resources) -> int:
    """0 to 100, the more alike the shares of CPU and memory in use, the higher."""
    shares = [
        min(1.0, use.get(resource, 0) / capacity)
        for resource in _DEFAULTS
        if (capacity := allocatable.get(resource, 0))
    ]
    spread = abs(shares[0] - shares[1]) / 2 if len(shares) == 2 else 0.0  # standard deviation
    return int((1 - spread) * MAX_SCORE)


def nodes_to_find(nodes: int, percentage: int = 0) -> int:
    """How many feasible nodes are enough; *percentage* 0 is the default rule: all of fewer than
    100, else 50 % less one for each 125 nodes, at least 5 %, and never fewer than 100."""
    if nodes < 100 or percentage >= 100:
        return nodes
    share = percentage or max(5, 50 - nodes // 125)
    return max(100, nodes * share // 100)
