"""The scheduler's view: nodes, the requests of their pods, and nominations.

A pod that the scheduler has placed counts there at once ("assumed"), before the API server confirms
it. PURE, but for the time that *other_filters* are told.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from linkwise.kube.objects import Node, Pod
from linkwise.simulator.scheduler import scoring
from linkwise.simulator.scheduler.feasible import (
    Rejection,
    Resources,
    amount,
    rejection,
    requests_of,
)
from linkwise.simulator.scheduler.queue import OTHER
from linkwise.simulator.scheduler.settings import OtherFilter


@dataclass(slots=True)
class NodeInfo:
    """A node and its pods. `node` is None while only pods of it are known."""

    node: Node | None = None
    allocatable: dict[str, int] = field(default_factory=dict)
    pods: dict[str, tuple[Pod, Resources]] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)
    presumed: dict[str, int] = field(default_factory=dict)  # see scoring.presumed


class SchedulerCache:
    def __init__(
        self,
        other_filters: Sequence[OtherFilter] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._other_filters, self._clock = other_filters, clock
        self._infos: dict[str, NodeInfo] = {}
        self._node_of: dict[str, str] = {}  # pod uid -> node
        self._assumed: set[str] = set()
        self._nominated: dict[str, dict[str, Pod]] = {}  # node -> uid -> pod
        self._requests: dict[str, tuple[Pod, dict[str, int]]] = {}

    # Nodes

    def set_node(self, node: Node) -> None:
        """Add or replace a node. Raises ValueError if one of its amounts does not parse."""
        allocatable = {r: amount(r, q) for r, q in node.status.allocatable.items()}
        info = self._infos.setdefault(node.metadata.name, NodeInfo())
        info.node, info.allocatable = node, allocatable

    def remove_node(self, name: str) -> None:
        """Remove a node. Its pods stay known until they are deleted themselves."""
        info = self._infos.get(name)
        if info is not None:
            info.node = None
            self._drop_if_empty(name)

    def node(self, name: str) -> Node | None:
        info = self._infos.get(name)
        return info.node if info else None

    def info(self, name: str) -> NodeInfo:
        return self._infos[name]

    def names(self) -> list[str]:
        """Return the nodes in order of appearance."""
        return [name for name, info in self._infos.items() if info.node is not None]

    # Pods that have a node

    def add_pod(self, pod: Pod) -> None:
        """Count a pod on the node that the API server names."""
        self._place(pod, pod.spec.node_name)
        self._assumed.discard(pod.metadata.uid)

    def assume_pod(self, pod: Pod, node: str) -> None:
        """Count a pod on *node* while its binding is under way."""
        self._place(pod, node)
        self._assumed.add(pod.metadata.uid)

    def is_assumed(self, uid: str) -> bool:
        return uid in self._assumed

    def remove_pod(self, uid: str) -> bool:
        """Return False if the pod counted nowhere."""
        self._assumed.discard(uid)
        name = self._node_of.pop(uid, None)
        if name is None:
            return False
        info = self._infos[name]
        pod, requests = info.pods.pop(uid)
        _add(info.used, requests, -1)
        _add(info.presumed, scoring.presumed(pod), -1)
        self._drop_if_empty(name)
        return True

    def _place(self, pod: Pod, name: str) -> None:
        uid = pod.metadata.uid
        self.remove_pod(uid)
        self.forget_nomination(uid)
        self._requests.pop(uid, None)
        info = self._infos.setdefault(name, NodeInfo())
        requests = requests_of(pod)
        info.pods[uid] = (pod, requests)
        _add(info.used, requests)
        _add(info.presumed, scoring.presumed(pod))
        self._node_of[uid] = name

    def _drop_if_empty(self, name: str) -> None:
        info = self._infos[name]
        if info.node is None and not info.pods:
            del self._infos[name]

    # Waiting pods

    def nominate(self, pod: Pod) -> None:
        """Count a waiting pod on the node that its `status.nominatedNodeName` names."""
        self.forget_nomination(pod.metadata.uid)
        if node := pod.status.nominated_node_name:
            self._nominated.setdefault(node, {})[pod.metadata.uid] = pod

    def forget_nomination(self, uid: str) -> None:
        for node, pods in list(self._nominated.items()):
            if pods.pop(uid, None) is not None and not pods:
                del self._nominated[node]

    def requests(self, pod: Pod) -> dict[str, int]:
        """Return the requests of a waiting pod, computed once per version of its spec."""
        known = self._requests.get(pod.metadata.uid)
        if known is None or known[0].spec != pod.spec:
            known = (pod, requests_of(pod))
            self._requests[pod.metadata.uid] = known
        return known[1]

    def forget_pod(self, uid: str) -> None:
        """Drop a pod that no longer exists."""
        self.forget_nomination(uid)
        self._requests.pop(uid, None)

    def nominated_below(self, node: str, priority: int) -> list[Pod]:
        """Return the pods of lower priority that are nominated to *node*."""
        pods = self._nominated.get(node, {}).values()
        return [pod for pod in pods if pod.spec.priority < priority]

    # Questions

    def rejection(
        self, pod: Pod, name: str, *, without: frozenset[str] = frozenset()
    ) -> Rejection | None:
        """Say why *pod* may not run on *name* beside the pods that count there, or return None. The
        pods *without* do not count."""
        info = self._infos[name]
        assert info.node is not None, name
        used = dict(info.used)
        for other in self._beside(pod, name):
            _add(used, self.requests(other))
        for uid in without:
            _add(used, info.pods[uid][1], -1)
        own = rejection(pod, self.requests(pod), info.node, info.allocatable, used)
        return own or self._others_reject(pod, name, without)

    def _others_reject(self, pod: Pod, name: str, without: frozenset[str]) -> Rejection | None:
        if not self._other_filters:
            return None
        left_out = without | {pod.metadata.uid}
        there = [
            *(p for uid, (p, _) in self._infos[name].pods.items() if uid not in left_out),
            *self._beside(pod, name),
        ]
        for refuses in self._other_filters:
            if reason := refuses(pod, name, there, self._clock()):
                return Rejection(OTHER, (reason,), resolvable=True)
        return None

    def score(self, pod: Pod, name: str) -> int:
        """Return the score plugins' score of the node with *pod* on it, 0 to 200."""
        info = self._infos[name]
        used, presumed = dict(info.used), dict(info.presumed)
        _add(used, self.requests(pod))
        _add(presumed, scoring.presumed(pod))
        return scoring.least_allocated(info.allocatable, presumed) + scoring.balanced(
            info.allocatable, used
        )

    def _beside(self, pod: Pod, name: str) -> Iterator[Pod]:
        """Yield the pods nominated to the node with at least the pod's priority."""
        for uid, other in self._nominated.get(name, {}).items():
            if uid != pod.metadata.uid and other.spec.priority >= pod.spec.priority:
                yield other


def _add(total: dict[str, int], more: Resources, times: int = 1) -> None:
    for resource, needed in more.items():
        total[resource] = total.get(resource, 0) + times * needed
