"""Pods that could leave their nodes, and one that waits for room."""

from collections.abc import Callable, Mapping

import pytest

from linkwise.extender.next.core_settings import CoreSettings, MovePolicy, Moves
from linkwise.extender.show.explain.moves import emptied_nodes, view_emptying
from linkwise.extender.state.actions import Evict
from linkwise.extender.state.views import EmptyingView
from linkwise.kube.objects import (
    OwnerReference,
    Pod,
)
from linkwise.topology import names
from tests.extender.cluster import Cluster, change

HOUR = 3600.0
MOVABLE = {"movable": "true"}
IGNORES = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
NEVER_TRUE = {"type": "DisruptionTarget", "status": "False"}
COUNTS = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}


both = pytest.mark.parametrize("standby", [False, True])
"""Whether the next leader is a standby that takes over, or a process that starts."""


def lead(at: Cluster, *, standby: bool) -> None:
    if standby:
        at.core.lead(at.core.latest_term(1 << 30) + 1, at.now)
    else:
        at.restart()
    at.settle()


def fail(at: Cluster, name: str, node: str) -> None:
    """The pod ends by itself, with an error."""
    at.set_phase(name, "Failed")
    at.stop(name, node)
    at.settle()


def fails_on(operator: str, *codes: int) -> dict[str, object]:
    return {"action": "FailJob", "onExitCodes": {"operator": operator, "values": [*codes]}}


def owned_by(kind: str, name: str) -> Callable[[Pod], Pod]:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    owner = OwnerReference(kind, name, f"uid-of-{name}", version, controller=True)

    def alter(pod: Pod) -> Pod:
        labels = {"app": name}
        return change(pod, metadata=change(pod.metadata, owner_references=(owner,), labels=labels))

    return alter


def cluster(moves: Moves = Moves.CONSENT, *, nodes: int = 2) -> Cluster:
    at = Cluster(settings=CoreSettings(moves=MovePolicy(moves)))
    for number in range(1, nodes + 1):
        at.add_node(f"n{number}")
    return at


def run(
    at: Cluster,
    name: str,
    gpus: int,
    node: str,
    *,
    kind: str = "ReplicaSet",
    priority: int = 0,
    said: Mapping[str, str] | None = None,
    server: bool = False,
    only_there: bool = False,
    labels: Mapping[str, str] | None = None,
) -> None:
    alter = owned_by(kind, f"owner-of-{name}")

    def made(pod: Pod) -> Pod:
        spec = change(pod.spec, restart_policy="Always") if server else pod.spec
        if only_there:
            spec = change(spec, node_selector={"kubernetes.io/hostname": node})
        meta = alter(pod).metadata
        return change(
            pod, metadata=change(meta, labels={**meta.labels, **(labels or {})}), spec=spec
        )

    at.add_pod(name, gpus, priority=priority, alter=made, said=said)
    at.settle()
    at.filter(name, [node])
    at.bind(name, node)
    at.start(name)
    at.set_phase(name, "Running")


def scattered(at: Cluster, *, kind: str = "ReplicaSet", **said: str) -> None:
    """Eight GPUs are free, two nodes have four and one has none: `web` could leave its node."""
    run(at, "web", 4, "n1", kind=kind, said={"movable": "true", **said})
    run(at, "stays", 4, "n2")
    at.pass_time(5 * HOUR)


def waits(at: Cluster, name: str = "big", gpus: int = 8, *, priority: int = 0) -> None:
    at.add_pod(name, gpus, gates=[names.GATE], priority=priority)
    at.settle()
    at.pass_time(HOUR)


def until_it_evicts(at: Cluster) -> Evict:
    """Let an hour pass, and carry out what the core decides until it evicts a pod: return that
    eviction, which is not carried out."""
    at.add_pod("big", 8, gates=[names.GATE])
    at.settle()
    at.now += HOUR
    for _ in range(10):
        evictions = []
        for action in at.core.decide(at.now):
            if isinstance(action, Evict):
                evictions.append(action)
            else:
                at.core.done(action, at.carry_out(action), at.now)
        if evictions:
            [evict] = evictions
            return evict
    raise AssertionError("it evicts no pod")


def recreated(
    at: Cluster, name: str, replacement: str, *, kind: str = "ReplicaSet", gpus: int = 4
) -> Pod:
    """Its controller makes another pod, and the evicted one is gone."""
    made = at.add_pod(replacement, gpus, alter=owned_by(kind, f"owner-of-{name}"), said=MOVABLE)
    bury(at, name)
    return made


def bury(at: Cluster, name: str) -> None:
    node = at.pod(name).spec.node_name
    at.delete(name)
    at.stop(name, node)
    at.settle()


def empty(at: Cluster, *nodes: str, said: str | None = "true") -> None:
    """A person annotates these nodes."""
    for node in nodes:
        at.annotate_node(node, names.EMPTY, said)
    at.settle()


def shown(at: Cluster, *nodes: str) -> EmptyingView:
    """What `kubectl linkwise empty` shows."""
    snapshot = at.core.snapshot(at.now)
    asked = nodes or emptied_nodes(snapshot)
    return view_emptying(snapshot, asked, at.core.look_at_emptying(asked, at.now))


def why_stays(at: Cluster, *nodes: str) -> dict[str, str]:
    return {pod.pod.removeprefix("ml/"): pod.why for pod in shown(at, *nodes).stays}


def going(at: Cluster, *nodes: str) -> dict[str, str]:
    return {move.pod.removeprefix("ml/"): move.target for move in shown(at, *nodes).moves}
