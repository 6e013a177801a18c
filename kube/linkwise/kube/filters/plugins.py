"""All filters for one pod, over all nodes, in kube-scheduler's order.

What depends on the node alone is asked node by node; what depends on the pods around is an array
over all nodes. Either way the first plugin that refuses a node names the reason.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from linkwise.kube.filters import host_ports, pod_affinity, taints, topology_spread
from linkwise.kube.filters.node_affinity import NOT_NAMED, RequiredNodes, required_nodes
from linkwise.kube.filters.nodes import NO_DOMAIN, Bools, Ints, NodeFacts
from linkwise.kube.filters.placed_pods import PlacedPods
from linkwise.kube.filters.pod_affinity import AffinityTerm, Namespaces
from linkwise.kube.filters.pod_facts import PodFacts, pod_facts
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.selectors import selects
from linkwise.kube.filters.topology_spread import Spread, SpreadConstraint
from linkwise.kube.filters.volumes import claims as volume_claims
from linkwise.kube.filters.volumes.binding import unreachable
from linkwise.kube.filters.volumes.claims import Claims, claims_of, one_pod_only
from linkwise.kube.filters.volumes.limits import TOO_MANY, too_many
from linkwise.kube.filters.volumes.storage import Storage
from linkwise.kube.filters.volumes.zone import elsewhere
from linkwise.kube.objects import Pod, Toleration

Nodes = Sequence[NodeFacts | None]
Mask = tuple[Rejection, Bools]
"""[rows] the nodes that a plugin lets pass, and what it says of the others."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod that is to get a node."""

    facts: PodFacts
    tolerations: tuple[Toleration, ...] = ()
    required: RequiredNodes = field(default_factory=RequiredNodes)


def candidate(pod: Pod) -> Candidate:
    spec = pod.spec
    required = required_nodes(spec.node_selector, spec.affinity)
    return Candidate(pod_facts(pod), spec.tolerations, required)


@dataclass(frozen=True, slots=True)
class World:
    """What the filters look at. A node that is None is not there.

    *storage* and *namespaces* are None while they cannot be read; then what needs them is left to
    kube-scheduler.
    """

    nodes: Nodes  # [rows]
    domain: Callable[[str], Ints]  # label -> [rows] the number of its value, or NO_DOMAIN
    pods: PlacedPods
    storage: Storage | None
    namespaces: Namespaces | None


class OnNodes(Protocol):
    """What a pod says of nodes alone."""

    @property
    def tolerations(self) -> tuple[Toleration, ...]: ...
    @property
    def required(self) -> RequiredNodes: ...


def node_rejection(pod: OnNodes, node: NodeFacts) -> Rejection | None:
    """Return what the node refuses whatever pods are around."""
    if not (node.unschedulable or node.taints or pod.required):
        return None  # most nodes and most pods: every node is asked for every pod
    names = pod.required.names
    if names is not None and node.name not in names:
        return NOT_NAMED
    return taints.rejection(node, pod.tolerations) or pod.required.rejection(node)


class PodFilters:
    """The filters for *pod*, beside all pods but those *without*.

    *members*: the pods of its gang, if all are placed at once. They may be what it must be near,
    and how evenly they are spread is for `gang.between` to say.
    """

    def __init__(
        self,
        pod: Candidate,
        world: World,
        without: frozenset[str] = frozenset(),
        members: Sequence[PodFacts] = (),
    ) -> None:
        self._pod, self._world, self._without = pod, world, without
        self._members = members

    @cached_property
    def nowhere(self) -> Rejection | None:
        """Set if the pod fits no node, whatever the nodes are."""
        claims = self._claims
        return self._pod.required.conflict or (claims if isinstance(claims, Rejection) else None)

    def rejection(
        self, row: int, resources: Callable[[], Rejection | None] = lambda: None
    ) -> Rejection | None:
        """Return the first plugin's rejection of the node. *resources* stands for
        NodeResourcesFit."""
        node = self._world.nodes[row]
        assert node is not None, f"row {row} has no node"
        return (
            self.nowhere
            or node_rejection(self._pod, node)
            or _first(self.ports, row)
            or resources()
            or _first(self.volumes, row)
            or _first(self.around, row)
        )

    @property
    def allowed(self) -> Bools:
        """[rows] the nodes that pass all filters that depend on pods, claims and volumes."""
        if self.nowhere:
            return np.zeros(len(self._world.nodes), dtype=np.bool_)
        allowed = np.ones(len(self._world.nodes), dtype=np.bool_)
        for _, mask in (*self.ports, *self.volumes, *self.around):
            allowed &= mask
        return allowed

    @cached_property
    def ports(self) -> tuple[Mask, ...]:
        """NodePorts."""
        wanted = self._pod.facts.rules.ports
        if not wanted:
            return ()
        free = np.ones(len(self._world.nodes), dtype=np.bool_)
        for row, pods in self._world.pods.on_ports().items():
            used = (
                port
                for uid, pod in pods.items()
                if uid not in self._without
                for port in pod.facts.rules.ports
            )
            if row < len(free):
                free[row] = not host_ports.conflict(wanted, used)
        return ((host_ports.IN_USE, free),)

    @cached_property
    def volumes(self) -> tuple[Mask, ...]:
        """VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone."""
        storage, facts, nodes = self._world.storage, self._pod.facts, self._world.nodes
        claims = self._claims
        if storage is None or not facts.claims or isinstance(claims, Rejection):
            return ()
        pods, without = self._world.pods, self._without
        in_use = any(
            pods.users(facts.namespace, name, without) for name in one_pod_only(facts, storage)
        )

        def attachable(row: int, node: NodeFacts) -> Rejection | None:
            limits = storage.limits(node.name)
            if not limits:
                return None
            return too_many(facts, pods.with_claims(row, without), limits, storage)

        return (
            (volume_claims.IN_USE, np.full(len(nodes), not in_use)),
            (TOO_MANY, _each(nodes, lambda row, node: attachable(row, node) is None)),
            *_by_reason(nodes, lambda node: unreachable(claims, node)),
            *_by_reason(nodes, lambda node: elsewhere(claims, node)),
        )

    @cached_property
    def around(self) -> tuple[Mask, ...]:
        """PodTopologySpread and InterPodAffinity."""
        return (*self._spread(), *self._near(), *self._apart(), *self._kept_out())

    @cached_property
    def spreads(self) -> tuple[Spread, ...]:
        """The pod's hard constraints beside the pods that are there."""
        constraints = self._pod.facts.rules.spread
        if not constraints:
            return ()
        labelled = topology_spread.labelled([self._domain(each) for each in constraints])
        return tuple(
            topology_spread.spread(
                each,
                self._domain(each),
                self._selected(
                    (_in_namespace(each, self._pod.facts.namespace),), live=True, invites=True
                ),
                labelled & self._counting(each),
            )
            for each in constraints
        )

    @cached_property
    def _claims(self) -> Claims | Rejection:
        storage, facts = self._world.storage, self._pod.facts
        return claims_of(facts, storage) if storage is not None and facts.claims else Claims()

    def _spread(self) -> Iterator[Mask]:
        for each in self.spreads:
            yield topology_spread.NO_LABEL, each.domain != NO_DOMAIN
            if not self._members:
                itself = selects(each.constraint.selector, self._pod.facts.labels)
                yield topology_spread.TOO_UNEVEN, each.allows(selects_itself=itself)

    def _near(self) -> Iterator[Mask]:
        terms = self._pod.facts.rules.near
        if not terms or not all(map(self._is_known, terms)):
            return
        resolved = tuple(map(self._resolved, terms))
        coming = (self._pod.facts, *self._members)
        itself = any(pod_affinity.select_all(resolved, each, {}) for each in coming)
        domains = [self._domain(term) for term in resolved]
        near = pod_affinity.near(
            domains, self._selected(resolved, invites=True), selects_itself=itself
        )
        yield pod_affinity.NOT_NEAR, near

    def _apart(self) -> Iterator[Mask]:
        for term in map(self._resolved, self._pod.facts.rules.apart):
            apart = pod_affinity.apart(self._domain(term), self._selected((term,)))
            yield pod_affinity.NOT_APART, apart

    def _kept_out(self) -> Iterator[Mask]:
        """The pods that are there have terms too."""
        rows_of: dict[str, list[int]] = {}  # topology key -> rows
        for term, pods in self._world.pods.keeping_apart().items():
            if term.selects(self._pod.facts, self._world.namespaces or {}):
                those = (row for uid, row in pods.items() if uid not in self._without)
                known = (row for row in those if row < len(self._world.nodes))
                rows_of.setdefault(term.topology_key, []).extend(known)
        for key, rows in rows_of.items():
            of_rows = np.array(rows, dtype=np.int64)
            there = np.bincount(of_rows, minlength=len(self._world.nodes))
            yield pod_affinity.KEPT_OUT, pod_affinity.apart(self._world.domain(key), there)

    def _counting(self, each: SpreadConstraint) -> Bools:
        """[rows] the nodes that the constraint's policies let count."""
        nodes, pod = self._world.nodes, self._pod
        counting = np.array([node is not None for node in nodes], dtype=np.bool_)
        if each.honors_affinity and pod.required:
            counting &= _each(nodes, lambda _, node: pod.required.rejection(node) is None)
        if each.honors_taints:
            counting &= _each(nodes, lambda _, n: taints.tainted(n, pod.tolerations) is None)
        return counting

    def _domain(self, of: AffinityTerm | SpreadConstraint) -> Ints:
        return self._world.domain(of.topology_key)

    def _selected(
        self, terms: tuple[AffinityTerm, ...], *, live: bool = False, invites: bool = False
    ) -> Ints:
        rows = len(self._world.nodes)
        return self._world.pods.selected(
            terms, rows, live=live, invites=invites, without=self._without
        )

    def _is_known(self, term: AffinityTerm) -> bool:
        return self._world.namespaces is not None or not term.namespace_selector

    def _resolved(self, term: AffinityTerm) -> AffinityTerm:
        return term.resolved(self._world.namespaces or {})


def _first(masks: Sequence[Mask], row: int) -> Rejection | None:
    return next((rejection for rejection, passes in masks if not passes[row]), None)


def _each(nodes: Nodes, passes: Callable[[int, NodeFacts], bool]) -> Bools:
    found = (node is not None and passes(row, node) for row, node in enumerate(nodes))
    return np.fromiter(found, np.bool_, len(nodes))


def _by_reason(nodes: Nodes, judge: Callable[[NodeFacts], Rejection | None]) -> Iterator[Mask]:
    """Yield one mask for each different rejection."""
    found = [None if node is None else judge(node) for node in nodes]
    for rejection in dict.fromkeys(each for each in found if each is not None):
        yield rejection, np.array([each != rejection for each in found], dtype=np.bool_)


def _in_namespace(constraint: SpreadConstraint, namespace: str) -> AffinityTerm:
    selector = constraint.selector
    return AffinityTerm(constraint.topology_key, selector, frozenset([namespace]))
