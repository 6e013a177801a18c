"""Pods and gangs that run, and do nothing for hours."""

from collections.abc import Iterable, Mapping

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.topology import names
from linkwise.topology.annotations.activity import Activity, PodActivity, write_activity
from tests.extender.cluster import START, Cluster

HOUR = 3600.0
NOTICE = 600.0
LONG_AGO = 400.0  # the plugin keeps back no news any more


def cluster(nodes: int = 1, settings: CoreSettings | None = None) -> Cluster:
    at = Cluster(settings or CoreSettings())
    for number in range(nodes):
        at.add_node(f"n{number + 1}")
    return at


def run(
    at: Cluster,
    name: str,
    gpus: int,
    node: str,
    *,
    priority: int = 0,
    said: Mapping[str, str] | None = None,
) -> None:
    at.add_pod(name, gpus, priority=priority, said=said)
    at.bind(name, node)
    at.start(name)
    at.settle()


def run_gang(at: Cluster, name: str, size: int, **said: str) -> list[str]:
    members = at.add_gang(name, size, 8, **said)
    at.settle()
    for member in members:
        assert at.schedule(member), member
        at.start(member)
    at.settle()
    return members


def say(
    at: Cluster, idle: Iterable[str], works: Iterable[str] = (), *, age: float = LONG_AGO
) -> None:
    """What the plugins wrote so many seconds ago: *idle* since they were created."""
    at_ = at.now - age
    said: dict[str, dict[str, PodActivity]] = {}
    for name in idle:
        pod = at.pod(name)
        created = pod.metadata.creation_timestamp
        assert created is not None
        since = int(created.timestamp())
        said.setdefault(pod.spec.node_name, {})[f"ml/{name}"] = PodActivity(
            since=since, whole=True, idle=since
        )
    for name in works:
        said.setdefault(at.pod(name).spec.node_name, {})[f"ml/{name}"] = PodActivity(
            since=int(START), whole=True
        )
    for node in at.nodes:
        text = write_activity(Activity(at=int(at_), pods=said.get(node, {})))
        at.annotate_node(node, names.ACTIVITY, text)


def idle_for(at: Cluster, seconds: float, *pods: str, works: Iterable[str] = ()) -> None:
    at.now += seconds
    say(at, pods, works)
    at.settle()


def wait(at: Cluster, name: str, size: int = 1, gpus: int = 8, *, priority: int = 0) -> list[str]:
    members = [f"{name}-{rank}" for rank in range(size)]
    for rank, member in enumerate(members):
        said = {"gang": name, "gang-size": str(size), "rank": str(rank)}
        at.add_pod(member, gpus, priority=priority, said=said)
    at.settle()
    return members


FOUR_HOURS = {"reclaim-when-idle": "4h"}
