"""Members of a gang that could leave their nodes."""

from collections.abc import Callable, Mapping

from linkwise.kube.labels import COMPLETION_INDEX
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from tests.extender.cluster import Cluster, change
from tests.extender.next.moves.movers import MOVABLE, owned_by

RACK = "topology.example.com/rack"
GANG = {**MOVABLE, "gang": "g", "gang_size": "2"}
Said = Mapping[str, str]


def member(
    at: Cluster,
    name: str,
    rank: int | None,
    gpus: int = 4,
    *,
    kind: str = "ReplicaSet",
    said: Said | None = None,
    priority: int = 0,
    server: bool = False,
) -> None:
    """Of a Job, its completion index tells the rank."""
    is_indexed = kind == "Job" and rank is not None
    told = {} if rank is None or is_indexed else {"rank": str(rank)}

    def made(pod: Pod) -> Pod:
        meta = owned_by(kind, "g")(pod).metadata
        index = {COMPLETION_INDEX: str(rank)} if is_indexed else {}
        meta = change(meta, annotations={**meta.annotations, **index})
        spec = change(pod.spec, restart_policy="Always") if server else pod.spec
        return change(pod, metadata=meta, spec=spec)

    words = {**GANG, **told, **(said or {})}
    at.add_pod(name, gpus, alter=made, said=words, priority=priority)


def start(at: Cluster, *pods: str) -> list[str]:
    at.settle()
    nodes = [at.schedule(name) for name in pods]
    for name in pods:
        at.start(name)
    at.settle()
    return nodes


def job(at: Cluster, *rules: object) -> None:
    assert at.owners is not None
    at.owners[ObjectRef("batch", "Job", "ml", "g")] = {
        "metadata": {"uid": "uid-of-g"},
        "spec": {"podFailurePolicy": {"rules": [*rules]}},
    }


def on_node(alter: Callable[[Pod], Pod], selector: dict[str, str]) -> Callable[[Pod], Pod]:
    def made(pod: Pod) -> Pod:
        return change(alter(pod), spec=change(pod.spec, node_selector=selector))

    return made
