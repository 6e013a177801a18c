"""The scheduler's view: nodes, the requests of their pods, and nominations.

A pod that the scheduler has placed counts there at once ("assumed"), before the API server confirms
it. PURE, except for the time that *other_filters* are told.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from linkwise.kube.filters.nodes import Ints, NodeFacts, domains_of
from linkwise.kube.filters.placed_pods import PlacedPods
from linkwise.kube.filters.plugins import Candidate, PodFilters, World, candidate
from linkwise.kube.filters.pod_facts import pod_facts
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.requests import amount
from linkwise.kube.filters.volumes.storage import Storage
from linkwise.kube.objects import Namespace, Node, Pod
from linkwise.simulator.scheduler import scoring
from linkwise.simulator.scheduler.feasible import (
    Resources,
    node_facts,
    requests_of,
    resources_fit,
)
from linkwise.simulator.scheduler.queue import OTHER
from linkwise.simulator.scheduler.settings import OtherFilter


@dataclass(slots=True)
class NodeInfo:
    """A node and its pods. `node` is None while only pods of it are known."""

    row: int
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
        self._waiting: dict[str, tuple[Pod, dict[str, int], Candidate]] = {}
        self.storage = Storage()
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._placed = PlacedPods()
        self._rows: list[NodeFacts | None] = []
        self._unused_rows: list[int] = []
        self._domains: dict[str, Ints] = {}  # of the nodes as they are
        self._changes = 0  # of nodes and namespaces
        self._latest: tuple[object, PodFilters] | None = None  # what it depends on, and itself

    # Nodes

    def set_node(self, node: Node) -> None:
        """Add or replace a node. Raises ValueError if one of its amounts does not parse."""
        allocatable = {r: amount(r, q) for r, q in node.status.allocatable.items()}
        info = self._info(node.metadata.name)
        info.node, info.allocatable = node, allocatable
        self._set_facts(info.row, node_facts(node))

    def remove_node(self, name: str) -> None:
        """Remove a node. Its pods stay known until they are deleted themselves."""
        info = self._infos.get(name)
        if info is not None:
            info.node = None
            self._set_facts(info.row, None)
            self._drop_if_empty(name)

    def node(self, name: str) -> Node | None:
        info = self._infos.get(name)
        return info.node if info else None

    def info(self, name: str) -> NodeInfo:
        return self._infos[name]

    def names(self) -> list[str]:
        """Return the nodes in order of appearance."""
        return [name for name, info in self._infos.items() if info.node is not None]

    # Namespaces

    def replace_namespaces(self, namespaces: Iterable[Namespace]) -> None:
        self._namespaces.clear()
        self._changes += 1
        for namespace in namespaces:
            self.set_namespace(namespace)

    def set_namespace(self, namespace: Namespace) -> None:
        self._namespaces[namespace.metadata.name] = namespace.metadata.labels
        self._changes += 1

    def remove_namespace(self, name: str) -> None:
        self._namespaces.pop(name, None)
        self._changes += 1

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
        self._placed.drop(uid)
        _add(info.used, requests, -1)
        _add(info.presumed, scoring.presumed(pod), -1)
        self._drop_if_empty(name)
        return True

    def _place(self, pod: Pod, name: str) -> None:
        uid = pod.metadata.uid
        self.remove_pod(uid)
        self.forget_nomination(uid)
        self._waiting.pop(uid, None)
        info = self._info(name)
        requests = requests_of(pod)
        self._put(pod, info.row)
        info.pods[uid] = (pod, requests)
        _add(info.used, requests)
        _add(info.presumed, scoring.presumed(pod))
        self._node_of[uid] = name

    def _drop_if_empty(self, name: str) -> None:
        info = self._infos[name]
        if info.node is None and not info.pods:
            del self._infos[name]
            self._unused_rows.append(info.row)

    def _info(self, name: str) -> NodeInfo:
        info = self._infos.get(name)
        if info is None:
            row = self._unused_rows.pop() if self._unused_rows else len(self._rows)
            if row == len(self._rows):
                self._rows.append(None)
            info = self._infos[name] = NodeInfo(row)
        return info

    def _set_facts(self, row: int, facts: NodeFacts | None) -> None:
        self._rows[row] = facts
        self._domains.clear()
        self._changes += 1

    def _put(self, pod: Pod, row: int) -> None:
        leaving = pod.is_leaving
        self._placed.put(pod.metadata.uid, pod_facts(pod), row, leaving=leaving)

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
        """Return the requests of a waiting pod."""
        return self._read(pod)[1]

    def _read(self, pod: Pod) -> tuple[Pod, dict[str, int], Candidate]:
        """Read a waiting pod, once per version of its spec and labels."""
        known = self._waiting.get(pod.metadata.uid)
        if (
            known is None
            or known[0].spec != pod.spec
            or known[0].metadata.labels != pod.metadata.labels
        ):
            known = (pod, requests_of(pod), candidate(pod))
            self._waiting[pod.metadata.uid] = known
        return known

    def forget_pod(self, uid: str) -> None:
        """Drop a pod that no longer exists."""
        self.forget_nomination(uid)
        self._waiting.pop(uid, None)

    def nominated_below(self, node: str, priority: int) -> list[Pod]:
        """Return the pods of lower priority that are nominated to *node*."""
        pods = self._nominated.get(node, {}).values()
        return [pod for pod in pods if pod.spec.priority < priority]

    # Questions

    def nowhere(self, pod: Pod) -> Rejection | None:
        """Say why *pod* may run on no node, whatever the nodes are, or return None."""
        return self._filters(pod, frozenset()).nowhere

    def rejection(
        self, pod: Pod, name: str, *, without: frozenset[str] = frozenset()
    ) -> Rejection | None:
        """Say why *pod* may not run on *name* beside the pods that count there, or return None. The
        pods *without* do not count.

        Pods nominated to the node count, and the pod must fit without them too: they may never
        come, and a pod that needs one of them nearby would wait for it.
        """
        info = self._infos[name]
        assert info.node is not None, name
        beside = list(self._beside(pod, name))
        for other in beside:
            self._put(other, info.row)
        try:
            found = self._rejection(pod, info, without, beside)
        finally:
            for other in beside:
                self._placed.drop(other.metadata.uid)
        own = found or (self._rejection(pod, info, without, []) if beside else None)
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

    def _rejection(
        self, pod: Pod, info: NodeInfo, without: frozenset[str], beside: Iterable[Pod]
    ) -> Rejection | None:
        def fit() -> Rejection | None:
            used = dict(info.used)
            for other in beside:
                _add(used, self.requests(other))
            for uid in without:
                _add(used, info.pods[uid][1], -1)
            return resources_fit(self.requests(pod), info.allocatable, used)

        return self._filters(pod, without).rejection(info.row, fit)

    def _filters(self, pod: Pod, without: frozenset[str]) -> PodFilters:
        """Return the filters for the pod; a try asks them about many nodes."""
        waiting = self._read(pod)[2]
        key = (
            waiting,
            without,
            self._placed.changes,
            self._changes,
            self.storage.changes,
        )
        if self._latest is None or self._latest[0] != key:
            world = World(self._rows, self._domain, self._placed, self.storage, self._namespaces)
            self._latest = (key, PodFilters(waiting, world, without))
        return self._latest[1]

    def _domain(self, label: str) -> Ints:
        found = self._domains.get(label)
        if found is None:
            labels = [facts.labels if facts else {} for facts in self._rows]
            found = self._domains[label] = domains_of(label, labels)
        return found

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
