"""How good a node is, as kube-scheduler's default score plugins see it. PURE.

Scored are those that tell nodes apart where pods say nothing about placement: NodeResourcesFit
(LeastAllocated) and NodeResourcesBalancedAllocation, each over CPU and memory with weight 1, 0 to
100. GPUs count in neither: that is kube-scheduler's default. The others (taints, affinity, spread,
images) would give every such node the same.
"""

from linkwise.simulator.scheduler.feasible import Resources

_DEFAULTS = {"cpu": 100, "memory": 200 << 20}  # what a pod without requests counts for
MAX_SCORE = 100


def score(requests: Resources, allocatable: Resources, used: Resources) -> int:
    """The node's score with the pod on it, 0 to 200."""
    fractions = []
    for resource, default in _DEFAULTS.items():
        capacity = allocatable.get(resource, 0)
        if capacity:
            wanted = used.get(resource, 0) + (requests.get(resource, 0) or default)
            fractions.append(min(1.0, wanted / capacity))
    if not fractions:
        return 0
    least = sum(int((1 - fraction) * MAX_SCORE) for fraction in fractions) // len(fractions)
    mean = sum(fractions) / len(fractions)
    spread = (sum((fraction - mean) ** 2 for fraction in fractions) / len(fractions)) ** 0.5
    return least + int((1 - spread) * MAX_SCORE)


def nodes_to_find(nodes: int, percentage: int = 0) -> int:
    """How many feasible nodes are enough; *percentage* 0 is the default rule: all of fewer than
    100, else 50 % less one for each 125 nodes, at least 5 %, and never fewer than 100."""
    if nodes < 100 or percentage >= 100:
        return nodes
    share = percentage or max(5, 50 - nodes // 125)
    return max(100, nodes * share // 100)
