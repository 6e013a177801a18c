"""Clusters in which GPUs are free and scattered, and pods consent to moves."""

from tests.cli.what_if.asking import NOW, a_list, nodes_of, pods_of
from tests.extender.cluster import Cluster
from tests.extender.next.moves.movers import HOUR, MOVABLE, run
from tests.pods.podgrouper.pods import Object

BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "web", "namespace": "ml"},
    "spec": {"selector": {"matchLabels": {"app": "owner-of-web"}}},
    "status": {"disruptionsAllowed": 0},
}


def cluster(*machines: str, hours: float = 5) -> Cluster:
    """Nodes n1, n2, … of these machines, so many hours before the listing."""
    it = Cluster(now=NOW - hours * HOUR)
    for number, machine in enumerate(machines, start=1):
        it.add_node(f"n{number}", machine)
    return it


def two_nodes(kind: str = "ReplicaSet", *, hours: float = 5, **said: str) -> Cluster:
    """Eight GPUs are free, four on each node, and `web` could leave the first one."""
    it = cluster("hgx-h100", "hgx-h100", hours=hours)
    run(it, "web", 4, "n1", kind=kind, said={**MOVABLE, **said})
    run(it, "stays", 4, "n2")
    it.now = NOW
    return it


def given(it: Cluster, *more: Object) -> Object:
    return a_list([*nodes_of(it), *pods_of(it), *more])


def of_the_page() -> Object:
    """Two pods of Deployments consent, and two more nodes are half full."""
    it = Cluster(now=NOW - 5 * HOUR)
    for number in range(1, 5):
        it.add_node(f"gpu-{number}", "hgx-h100")
    run(it, "web", 2, "gpu-1", said=MOVABLE, server=True)
    run(it, "chat", 4, "gpu-2", said=MOVABLE, server=True)
    run(it, "notebook", 4, "gpu-3")
    run(it, "eval", 5, "gpu-4")
    it.now = NOW
    others = {**BUDGET, "metadata": {"name": "db", "namespace": "shop"}}
    return given(it, others)
