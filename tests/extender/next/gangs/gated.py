"""Nodes for pods behind the gate, and what these are told."""

from linkwise.topology import names
from tests.extender.cluster import Cluster

OURS = names.GATE


def cluster(*nodes: str, machine: str = "hgx-h100") -> Cluster:
    at = Cluster()
    for node in nodes or ("n1", "n2"):
        at.add_node(node, machine)
    return at


def told(at: Cluster, name: str) -> list[str]:
    return [event.message for event in at.events if event.pod.name == name]
