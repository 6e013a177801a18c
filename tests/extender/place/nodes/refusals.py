"""A node n1 whose kubelet has refused a pod."""

from tests.extender.cluster import Cluster, change

NO_PLUGIN = "UnexpectedAdmissionError"
AFFINITY = "TopologyAffinityError"
_SAID = {
    NO_PLUGIN: "Pod was rejected: Allocate failed due to cannot allocate unregistered device "
    "nvidia.com/gpu, which is unexpected"
}


def cluster(*nodes: str) -> Cluster:
    at = Cluster()
    for node in nodes:
        at.add_node(node, "hgx-h100")
    return at


def refuse(at: Cluster, name: str, reason: str, message: str = "") -> None:
    pod, said = at.pod(name), message or _SAID.get(reason, "")
    at.put_pod(change(pod, status=change(pod.status, phase="Failed", reason=reason, message=said)))
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
