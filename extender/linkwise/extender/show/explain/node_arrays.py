"""The GPU nodes of a snapshot as arrays, for explanations."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.next.queue.reservations import Claimant, may_pass
from linkwise.extender.place.cluster_view import ClusterView, Level
from linkwise.extender.place.nodes.node_filters import why_not
from linkwise.extender.place.nodes.reasons import (
    CLAIMED,
    NOT_CLAIMED,
    REFUSING,
    SUCH_REFUSED,
    why_closed_exactly,
)
from linkwise.extender.show.explain.snapshot import NodeState, Snapshot
from linkwise.extender.show.explain.worth_view import domain_of
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.extender.state.cache.node_info import ClosedBy
from linkwise.extender.state.cache.node_table import NO_DOMAIN, NOT_USABLE, Bools, Ints, NodeTable
from linkwise.extender.state.records import Template, natural
from linkwise.extender.state.views import ReasonCount
from linkwise.pods.spans import Spans, ordered

_OF_KUBELETS = frozenset({REFUSING, SUCH_REFUSED})
NOT_READY, CORDONED = "node is not ready", "cordoned"


class Field:
    """All arrays are [nodes], in the natural order of names."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.nodes = [node for node in snapshot.nodes if has_gpus(node)]
        self.nodes.sort(key=lambda node: natural(node.name))
        self.kinds: list[MachineKind] = []
        numbers: dict[int, int] = {}
        for node in self.nodes:
            if node.kind is not None and id(node.kind) not in numbers:
                numbers[id(node.kind)] = len(self.kinds)
                self.kinds.append(node.kind)
        self.kind_of: Ints = np.array(
            [
                NOT_USABLE if node.closed or node.kind is None else numbers[id(node.kind)]
                for node in self.nodes
            ],
            dtype=np.int64,
        )
        self.usable: Bools = self.kind_of != NOT_USABLE
        self.free: Ints = np.array([node.free for node in self.nodes], dtype=np.int64)
        self.rows: Ints = np.array([node.row for node in self.nodes], dtype=np.int64)
        self.left = snapshot.left.of_rows(self.rows)
        self._place = {node.name: place for place, node in enumerate(self.nodes)}
        self.closed = cache(self._closed)
        self.level = cache(self._level)
        self.nodes_for = cache(self._nodes_for)

    def counted(
        self, template: Template | None, texts: Sequence[str], places: Sequence[int]
    ) -> tuple[ReasonCount, ...]:
        """Count the *texts*, why nodes at these *places* take no pod of *template*; most first."""
        examples: dict[str, str] = {}
        for text, at in zip(texts, places, strict=True):
            if text in _OF_KUBELETS:
                examples.setdefault(text, self._refused(template, at))
        counted = sorted(Counter(texts).items(), key=lambda item: (-item[1], item[0]))
        return tuple(
            ReasonCount(text.removeprefix("linkwise: "), count, examples.get(text, ""))
            for text, count in counted
        )

    def _refused(self, template: Template | None, at: int) -> str:
        """Which pod its kubelet refused, and why, if it takes none of *template*; else empty."""
        node, away = self.nodes[at], self.snapshot.turned_away
        of_template = away.get(template, {}) if template is not None else {}
        return refused_pod(node) or of_template.get(node.name, "")

    def open_to(self, claimant: Claimant) -> frozenset[int]:
        """The indices of the reservations whose GPUs *claimant* may use now (`may_pass`)."""
        at = self.snapshot.at
        return frozenset(
            place
            for place, reservation in enumerate(self.snapshot.reservations)
            if may_pass(claimant, reservation, at)
        )

    def free_to(self, reservations: frozenset[int]) -> Ints:
        """Bitmasks of the free GPUs for a claimant to which these reservations are open."""
        if not reservations:
            return self.free
        free = self.free.copy()
        for reservation in reservations:
            for name, mask in self.snapshot.reservations[reservation].gpus.items():
                place = self._place.get(name)
                if place is not None:
                    free[place] |= self.nodes[place].reserved & mask
        return free

    def _closed(self, template: Template | None) -> NDArray[np.object_]:
        """Why pods of *template* may not use each node; empty if they may."""
        if template is None:
            return np.full(len(self.nodes), "", dtype=object)
        return np.array([_why_closed(template, node) for node in self.nodes], dtype=object)

    def table(self) -> NodeTable:
        """A table of its own for a search: what is free and not reserved."""
        table = NodeTable()
        for node in self.nodes:
            table.add(node.name)
        table = table.copy()
        table.kinds = self.kind_of.copy()
        table.free = np.where(self.usable, self.free, 0)
        table.left = self.left.of_rows(slice(None))
        return table

    def view(self, table: NodeTable, spans: Spans) -> ClusterView:
        """The cluster for a search in *table*, with the levels at which some node has a domain."""
        levels = [self.level(key) for key in ordered(self.snapshot.levels, spans)]
        known = tuple(level for level in levels if (level.numbers != NO_DOMAIN).any())
        return ClusterView(table, tuple(self.kinds), known)

    def _level(self, key: str) -> Level:
        numbers: dict[str, int] = {"": NO_DOMAIN}
        of_nodes = [
            numbers.setdefault(domain, len(numbers) - 1)
            for domain in (domain_of(node, key) for node in self.nodes)
        ]
        return Level(key, np.array(of_nodes, dtype=np.int64), tuple(numbers)[1:])

    def _nodes_for(self, template: Template) -> Bools:
        """Whether pods of *template* may use each node."""
        refusing = self.snapshot.refusing.get(template, frozenset())
        refusing |= self.snapshot.turned_away.get(template, {}).keys()
        refused = np.array([node.name in refusing for node in self.nodes], dtype=np.bool_)
        able: Bools = (self.closed(template) == "") & ~refused
        return able

    def by_kind(
        self,
        nodes: Bools,
        free: Ints,
        judge: Callable[[MachineKind, Ints], NDArray[np.generic] | int],
    ) -> Ints:
        """Apply *judge* to each kind and its bitmasks of free GPUs; 0 for nodes not in *nodes*."""
        found = np.zeros(len(self.nodes), dtype=np.int64)
        for number, kind in enumerate(self.kinds):
            places = np.flatnonzero(nodes & (self.kind_of == number))
            if len(places):
                found[places] = judge(kind, free[places])
        return found


def has_gpus(node: NodeState) -> bool:
    """Whether explanations consider the node at all."""
    offers = node.record.offers.gpus if node.record is not None else 0
    return bool(node.machine is not None or node.owned or offers)


def refused_pod(node: NodeState) -> str:
    """Which pod its kubelet refused, and why, if it takes none with GPUs; else empty."""
    closed = node.closed
    return closed.error if closed is not None and closed.by is ClosedBy.REFUSES else ""


def why_closed(node: NodeState) -> str:
    """Why the node takes no new pods, except for those that tolerate it; empty: it takes some."""
    return why_closed_exactly(node.closed) or closed_by_cluster(node)


def closed_by_cluster(node: NodeState) -> str:
    """`why_closed` for reasons that also hold where pods are placed by count."""
    if node.record is None or not node.record.ready:
        return NOT_READY
    return CORDONED if node.record.unschedulable else ""


def _why_closed(template: Template, node: NodeState) -> str:
    if node.record is None or not node.record.ready:
        return NOT_READY
    by_claims = node.machine is not None and bool(node.machine.mask_of(node.claimed.gpus))
    if by_claims is not template.by_claim:
        return (CLAIMED if by_claims else NOT_CLAIMED).removeprefix("linkwise: ")
    return why_not(template, node.record)
