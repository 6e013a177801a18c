"""Finds the pods of lower priority to evict so that a pod fits: kube-scheduler's DefaultPreemption.

The dry run asks the plugins, never the extender's filter. A node that the plugins accept needs no
victim, so it is no candidate. If only the extender refuses, nothing is evicted (kube-scheduler up
to 1.37). PodDisruptionBudgets are not modelled. PURE.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.objects import Pod
from linkwise.simulator.scheduler.cache import SchedulerCache
from linkwise.simulator.scheduler.extender import ExtenderError

Victims = Mapping[str, Sequence[Pod]]
"""node -> the pods to evict there, most important first."""


def is_eligible(pod: Pod, cluster: SchedulerCache, rejections: Mapping[str, Rejection]) -> bool:
    """False while victims on the pod's nominated node are still ending."""
    name = pod.status.nominated_node_name
    refused = rejections.get(name)
    if not name or cluster.node(name) is None or (refused and not refused.resolvable):
        return True
    return not any(
        other.is_leaving and other.spec.priority < pod.spec.priority
        for other, _ in cluster.info(name).pods.values()
    )


def candidates(
    pod: Pod, cluster: SchedulerCache, rejections: Mapping[str, Rejection]
) -> dict[str, tuple[Pod, ...]]:
    """Return every node where evicting pods of lower priority would satisfy the plugins."""
    found = {}
    for name, rejection in rejections.items():
        if rejection.resolvable and cluster.node(name) is not None:
            victims = _victims(pod, cluster, name)
            if victims:
                found[name] = victims
    return found


def _victims(pod: Pod, cluster: SchedulerCache, name: str) -> tuple[Pod, ...]:
    """Remove all pods of lower priority, then restore each that need not go, the most important and
    oldest first."""
    others = [other for other, _ in cluster.info(name).pods.values()]
    lower = [other for other in others if other.spec.priority < pod.spec.priority]
    gone = {other.metadata.uid for other in lower}
    if not lower or cluster.rejection(pod, name, without=frozenset(gone)) is not None:
        return ()
    victims = []
    for other in sorted(lower, key=lambda p: (-p.spec.priority, _started(p))):
        spared = frozenset(gone - {other.metadata.uid})
        if cluster.rejection(pod, name, without=spared) is None:
            gone.remove(other.metadata.uid)
        else:
            victims.append(other)
    return tuple(victims)


def agreed_victims(
    answer: Mapping[str, Sequence[str]], cluster: SchedulerCache
) -> dict[str, tuple[Pod, ...]]:
    """Return the pods that an extender's preempt *answer* names by uid, for each node.

    Raises ExtenderError if a node has no victims, or one that does not run on it.
    """
    agreed = {}
    for node, uids in answer.items():
        there = cluster.info(node).pods
        unknown = [uid for uid in uids if uid not in there]
        if unknown or not uids:
            problem = f"pod {unknown[0]} is not on it" if unknown else "no victims"
            raise ExtenderError(f"extender's preempt answer for {node}: {problem}")
        agreed[node] = tuple(there[uid][0] for uid in uids)
    return agreed


def pick(found: Victims) -> str:
    """Return the node whose victims have the lowest top priority, then the lowest sum of
    priorities, then the smallest number, then the shortest run time."""

    def cost(name: str) -> tuple[int, int, int, float]:
        priorities = [victim.spec.priority for victim in found[name]]
        top = max(priorities)
        oldest = min(_started(v) for v in found[name] if v.spec.priority == top)
        return top, sum(priorities), len(priorities), -oldest.timestamp()

    return min(found, key=cost)


def _started(pod: Pod) -> datetime:
    return pod.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC)
