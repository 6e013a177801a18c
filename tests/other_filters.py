"""Filters of kube-scheduler that Linkwise does not know, as a seed draws them.

Each refuses for a reason of its own: the node, the members of the gang on it, or the time. What it
refuses forever leaves a gang other ways to go, or none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from zlib import crc32

from linkwise.kube.objects import Node, Pod
from linkwise.simulator.scheduler import OtherFilter
from linkwise.simulator.scheduler.cache import SchedulerCache
from tests.all_or_nothing import gang_of


def workload_of(pod: Pod) -> str:
    """Its gang, or what its name has before the rank."""
    return gang_of(pod) or pod.metadata.name.rpartition("-")[0] or pod.metadata.name


@dataclass(frozen=True, slots=True)
class Drawn:
    """One workload in *one_in* is concerned, and so of its nodes; 1: all of them."""

    seed: int
    one_in: int
    one_node_in: int = 1

    def hits(self, pod: Pod, node: str) -> bool:
        who = f"{self.seed} {workload_of(pod)}"
        return not crc32(who.encode()) % self.one_in and not (
            crc32(f"{who} {node}".encode()) % self.one_node_in
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """Pods of one template, from some nodes, for some time."""

    who: Drawn
    begins: float = 0.0
    ends: float = float("inf")

    def __call__(self, pod: Pod, node: str, _there: Sequence[Pod], now: float) -> str | None:
        is_now = self.begins <= now < self.ends
        return "node(s) refuse this template" if is_now and self.who.hits(pod, node) else None


@dataclass(frozen=True, slots=True)
class Apart:
    """No more than *most* members of a gang on one node, as by a required anti-affinity."""

    who: Drawn
    most: int = 1

    def __call__(self, pod: Pod, _node: str, there: Sequence[Pod], _now: float) -> str | None:
        gang = gang_of(pod)
        if not gang or not self.who.hits(pod, ""):
            return None
        taken = sum(gang_of(other) == gang for other in there)
        return "node(s) have enough members of this gang" if taken >= self.most else None


@dataclass(frozen=True, slots=True)
class NodeClosed:
    """One node, to all pods, for some time."""

    node: str
    begins: float
    ends: float

    def __call__(self, _pod: Pod, node: str, _there: Sequence[Pod], now: float) -> str | None:
        is_closed = node == self.node and self.begins <= now < self.ends
        return "node(s) are closed" if is_closed else None


def drawn_filters(
    seed: int, nodes: Sequence[str], begins: float, seconds: float
) -> list[OtherFilter]:
    """Return three filters. Those that refuse for a time do so within *seconds*."""
    draw = Random(f"other filters {seed}")

    def window(longest: float) -> tuple[float, float]:
        start = begins + draw.uniform(0.0, seconds)
        return start, min(start + draw.uniform(0.01, longest) * seconds, begins + seconds)

    kinds: list[OtherFilter] = [
        Apart(Drawn(seed, draw.choice([1, 2])), draw.choice([1, 1, 2])),
        Refused(Drawn(seed + 1, draw.choice([2, 3]), draw.choice([2, 3]))),
        Refused(Drawn(seed + 2, draw.choice([2, 3])), *window(0.2)),
        NodeClosed(draw.choice(nodes), *window(0.3)),
        NodeClosed(draw.choice(nodes), *window(0.05)),
    ]
    return draw.sample(kinds, 3)


def room_of(
    filters: Sequence[OtherFilter], nodes: Iterable[Node], pods: Iterable[Pod], now: float
) -> SchedulerCache:
    """Return kube-scheduler's cache with the nodes, and of the pods those that are bound."""
    room = SchedulerCache(filters, lambda: now)
    for node in nodes:
        room.set_node(node)
    for pod in pods:
        if pod.spec.node_name and not pod.has_ended:
            room.add_pod(pod)
    return room


def go_together(room: SchedulerCache, placed: Iterable[tuple[Pod, str]]) -> bool:
    """Whether kube-scheduler lets these pods go to their nodes, one beside the other. They stay in
    the room."""
    for pod, node in placed:
        if room.node(node) is None or room.rejection(pod, node) is not None:
            return False
        room.assume_pod(pod, node)
    return True
