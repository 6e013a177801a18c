"""Gangs and pods that may be evicted, and disruption budgets for them."""

from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.kube.objects import (
    LabelSelector,
    ObjectMeta,
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from tests.extender.cluster import Cluster, change

RACK = "linkwise.dev/test-rack"


def cluster(nodes: int = 2, who: Preempt = Preempt.CONSENTING, racks: int = 1) -> Cluster:
    at = Cluster(CoreSettings(preempt=who))
    for number in range(nodes):
        rack = number * racks // nodes + 1
        at.add_node(f"n{number + 1}", labels={RACK: f"rack-{rack}"})
    return at


def run(
    at: Cluster, name: str, gpus: int, node: str, priority: int = 0, preemptible: str = "true"
) -> str:
    at.add_pod(name, gpus, priority=priority, preemptible=preemptible)
    at.bind(name, node)
    at.settle()
    at.now += 1
    return name


def add_gang(
    at: Cluster, name: str, size: int, gpus: int = 8, *, priority: int = 0, **words: str
) -> list[str]:
    said = {"gang": name, "gang_size": str(size), **words}
    members = [f"{name}-{rank}" for rank in range(size)]
    for rank, member in enumerate(members):
        at.add_pod(member, gpus, priority=priority, said={**said, "rank": str(rank)})
    at.settle()
    at.now += 1
    return members


def budget(allowed: int, **labels: str) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name="budget", namespace="ml"),
        spec=PodDisruptionBudgetSpec(LabelSelector(labels)),
        status=PodDisruptionBudgetStatus(allowed),
    )


def label(at: Cluster, name: str, **labels: str) -> None:
    pod = at.pod(name)
    at.put_pod(change(pod, metadata=change(pod.metadata, labels=labels)))
