"""A node n1 whose kubelet has refused a pod."""

from tests.extender.cluster import Cluster, change

NO_PLUGIN = "UnexpectedAdmissionError"  # without a message, as while no plugin is registered
AFFINITY = "TopologyAffinityError"


def cluster(*nodes: str) -> Cluster:
    at = Cluster()
    for node in nodes:
        at.add_node(node, "hgx-h100")
    return at


def refuse(at: Cluster, name: str, reason: str, message: str = "") -> None:
    pod = at.pod(name)
    at.put_pod(
        change(pod, status=change(pod.status, phase="Failed", reason=reason, message=message))
    )
    at.settle()


def refused_on_n1(reason: str, gpus: int, *others: str, message: str = "") -> Cluster:
    """The pod is deleted; *others* are nodes that come then."""
    at = cluster("n1")
    at.add_pod("first", gpus)
    at.bind("first", "n1")
    at.settle()
    refuse(at, "first", reason, message)
    at.delete("first")
    for node in others:
        at.add_node(node, "hgx-h100")
    return at
