"""Nodes that publish no topology."""

from linkwise.topology import names
from tests.extender.cluster import GPU, Cluster, change


def bare(at: Cluster, name: str, gpus: int = 8) -> None:
    at.add_node(name)
    lose_topology(at, name)
    node = at.nodes[name]
    offered = {**node.status.allocatable, GPU: str(gpus)}
    at.put_node(change(node, status=change(node.status, allocatable=offered)))


def lose_topology(at: Cluster, name: str) -> None:
    at.annotate_node(name, names.TOPOLOGY, None)
