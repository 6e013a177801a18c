"""kube-scheduler's `preempt` call about a pod of a test's cluster."""

from linkwise.extender.state.extender_calls import PreemptCall, Victims
from tests.extender.cluster import Cluster


def preempt(at: Cluster, name: str, **victims: list[str]) -> dict[str, list[str]]:
    """By node, the names of the victims."""
    asked = {
        node: Victims(tuple(at.pod(pod).metadata.uid for pod in pods))
        for node, pods in victims.items()
    }
    answer = at.core.preempt(PreemptCall(at.pod(name), asked), at.now)
    return {
        node: sorted(at.pods[uid].metadata.name for uid in those.uids)
        for node, those in answer.victims.items()
    }
