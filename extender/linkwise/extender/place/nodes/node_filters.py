"""Which nodes a pod may run on, by kube-scheduler's own filters (`linkwise.kube.filters`).

`rows` knows those that look at the node alone: ready and schedulable, taints, node selector and
required node affinity. A node has GPUs by one resource, and takes no pod that has them by another.
`beside` knows those that look at the pods around, at ports and volumes. What nodes have left is in
`state.cache.resources`. The extender learns all others from kube-scheduler's calls
(`scheduler_feedback`).
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np

from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.cache.node_table import Bools, Ints
from linkwise.extender.state.records import NodeRecord, PodRecord, Template
from linkwise.kube.filters import taints
from linkwise.kube.filters.gang import Demands, Kind, between
from linkwise.kube.filters.node_affinity import NodeColumns, matching_rows
from linkwise.kube.filters.nodes import NO_DOMAIN
from linkwise.kube.filters.plugins import Candidate, PodFilters, World, node_rejection
from linkwise.kube.filters.pod_facts import NO_FACTS, PodFacts, rules_of
from linkwise.kube.filters.selectors import selects
from linkwise.kube.objects import Taint
from linkwise.pods.spans import CLIQUE

_FEW = 32  # changed nodes: to test each is faster than to test all at once
_NOT_READY = -1
_MOST_STATES = 1024


class NodeFilters:
    """The result per template, cached and updated for the nodes that changed."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._nodes: tuple[int, list[NodeRecord | None]] | None = None  # of which generation
        self._known: WeakKeyDictionary[Template, tuple[Bools, int]] = WeakKeyDictionary()
        self._states = _States(cache)

    def rows(self, template: Template) -> Bools:
        """[rows] whether a pod of this template may run on the node. Read only."""
        rows = self._of_nodes(template)
        away = self._cache.turned_away
        closed = [node for node in away.of(template) if away.takes_none(template, node)]
        if closed:
            rows = rows.copy()
            places = self._cache.rows.rows_of(closed)
            rows[places[places >= 0]] = False
        return rows

    def _of_nodes(self, template: Template) -> Bools:
        cache = self._cache
        count, log = len(cache.rows), cache.changed_rows
        known, seen = self._known.get(template, (None, 0))
        if known is not None and seen == log.generation:
            return known
        changed = None if known is None else {*log.since(seen, count)}
        if known is None or changed is None or len(changed) > _FEW:
            fresh = self._states.suitable(template)
            if template.required:
                fresh &= matching_rows(template.required, self._columns(count))
        else:
            fresh = np.zeros(count, dtype=np.bool_)
            fresh[: len(known)] = known
            for row in changed:
                name = cache.rows.names[row]
                info = None if name is None else cache.nodes.get(name)
                fresh[row] = info is not None and may_run_on(template, info)
        self._known[template] = (fresh, log.generation)
        return fresh

    def _columns(self, count: int) -> NodeColumns:
        return NodeColumns(count, self._labels_of, self._cache.rows.row_of.get)

    def _labels_of(self, key: str) -> tuple[Ints, Mapping[str, int]]:
        """See `NodeColumns`."""
        if key != CLIQUE:
            return self._domain(key), self._cache.domains.number_of(key)
        # Domains know the clique of machines too, of which kube-scheduler knows nothing.
        number_of: dict[str, int] = {}
        nodes = (None if n is None else self._cache.nodes.get(n) for n in self._cache.rows.names)
        labels = (i.record.labels if i is not None and i.record is not None else {} for i in nodes)
        values = [each.get(key) for each in labels]
        numbers = [
            NO_DOMAIN if value is None else number_of.setdefault(value, len(number_of))
            for value in values
        ]
        return np.array(numbers, dtype=np.int64), number_of

    def beside(
        self,
        pod: PodRecord,
        members: Sequence[PodRecord] = (),
        without: frozenset[str] = frozenset(),
    ) -> Bools | None:
        """[rows] the nodes that let the pod in beside the pods that are bound, assumed or planned
        there, except for itself, *members* and those *without*; None: all do.

        *members*: the pods of its gang that are placed with it. `between` tells what they demand of
        each other.
        """
        if pod.facts is None:
            return None
        kinds = self._kinds(members)
        gone = without | {pod.uid} | {member.uid for member in members}
        return self._beside(_candidate(pod, pod.facts), [*dict.fromkeys(kinds)], gone)

    def beside_each(self, members: Sequence[PodRecord]) -> list[Bools | None]:
        """`beside` for each of these members, which are placed together."""
        kinds = self._kinds(members)
        objects = {id(kind): kind for kind in kinds}  # to compare each member would take longer
        distinct = [*dict.fromkeys(objects.values())]
        gone = frozenset(member.uid for member in members)
        known = {kind: self._beside(kind, distinct, gone) for kind in distinct}
        masks = {number: known[kind] for number, kind in objects.items()}
        return [masks[id(kind)] for kind in kinds]

    def _beside(
        self, pod: Candidate, kinds: Sequence[Candidate], gone: frozenset[str]
    ) -> Bools | None:
        around = self._cache.around
        if not (pod.facts.demands or around.keeps_out(pod.facts, self._labels())):
            return None
        return PodFilters(pod, self._world(), gone, [kind.facts for kind in kinds]).allowed

    def _kinds(self, members: Sequence[PodRecord]) -> list[Candidate]:
        """The members without the labels that no filter looks at: most are one object then."""
        facts = [member.facts or NO_FACTS for member in members]
        keys = set(self._cache.around.apart_keys())
        for rules in rules_of(facts):
            keys |= rules.label_keys
        looked_at = sorted(keys)
        known: dict[Hashable, Candidate] = {}
        kinds = []
        for member, each in zip(members, facts, strict=True):
            labels = tuple(map(each.labels.get, looked_at))
            # Equal pods share rules and template.
            alike = (each.namespace, labels, id(each.rules), each.claims, member.template)
            if alike not in known:
                known[alike] = _candidate(member, each.with_labels(keys))
            kinds.append(known[alike])
        return kinds

    def count_kinds(self, members: Sequence[PodRecord]) -> int:
        """How many of these members differ to filters."""
        if not any(member.facts is not None and member.facts.demands for member in members):
            return 1
        return len(set(self._kinds(members)))

    def between(
        self, members: Sequence[PodRecord], rooms: Sequence[Ints]
    ) -> tuple[Demands, Sequence[int]]:
        """What members that are placed together demand of each other, and the kind of each by
        number. *rooms*: of each member, [rows] how many of its like fit for all other reasons."""
        pods = self._kinds(members)
        kinds = Counter(pods)
        numbers = {pod: number for number, pod in enumerate(kinds)}
        gone = frozenset(member.uid for member in members)
        rooms_of: dict[Candidate, dict[int, Ints]] = {pod: {} for pod in kinds}
        for pod, room in zip(pods, rooms, strict=True):
            rooms_of[pod][id(room)] = room  # most members share one
        equal = [
            Kind(pod, count, np.minimum.reduce([*rooms_of[pod].values()]))
            for pod, count in kinds.items()
        ]
        return between(equal, self._world(), gone), [numbers[pod] for pod in pods]

    def _labels(self) -> Mapping[str, Mapping[str, str]]:
        return self._cache.surroundings.namespaces or {}

    def _world(self) -> World:
        cache = self._cache
        generation = cache.changed_rows.generation
        if self._nodes is None or self._nodes[0] != generation:
            found = (None if name is None else cache.nodes.get(name) for name in cache.rows.names)
            self._nodes = generation, [None if info is None else info.record for info in found]
        around, surroundings = cache.around, cache.surroundings
        return World(
            self._nodes[1],
            self._domain,
            around,
            surroundings.storage,
            surroundings.namespaces,
        )

    def _domain(self, label: str) -> Ints:
        """[rows] the domain of each node; a node that only pods name has none."""
        numbers, rows = self._cache.domains.numbers(label), len(self._cache.rows)
        unknown = np.full(max(rows - len(numbers), 0), NO_DOMAIN)
        return np.concatenate([numbers[:rows], unknown])

    def on(self, template: Template | None, node: str) -> bool:
        info = self._cache.nodes.get(node)
        if info is None or template is None or self._cache.turned_away.is_closed(template, node):
            return False
        return may_run_on(template, info)


class _States:
    """What, apart from a node's labels and name, decides whether a pod may run on it; by which
    resource it has GPUs, and whether these come from claims, as those of some pods do. Few nodes
    differ in that, so each distinct state is tested once for a template."""

    def __init__(self, cache: Cache) -> None:
        self._cache, self._seen = cache, 0
        self._number_of: dict[tuple[bool, tuple[Taint, ...], bool, str], int] = {}
        self._samples: list[tuple[NodeRecord, bool]] = []  # [numbers]; whether by claims
        self._of_row: Ints = np.zeros(0, dtype=np.int64)  # _NOT_READY: no pod may run there

    def suitable(self, template: Template) -> Bools:
        """[rows] whether the node is ready, and its taints, and whether it is cordoned, let pods of
        this template in."""
        self._look()
        suits = [
            by_claims is template.by_claim
            and template.takes(node.resource)
            and taints.rejection(node, template.tolerations) is None
            for node, by_claims in self._samples
        ]
        found: Bools = np.array([*suits, False], dtype=np.bool_)[self._of_row]
        return found

    def _look(self) -> None:
        cache = self._cache
        count, log = len(cache.rows), cache.changed_rows
        if self._seen == log.generation and len(self._of_row) == count:
            return
        before = self._of_row
        self._of_row = np.full(count, _NOT_READY)
        self._of_row[: len(before)] = before
        rows: Iterable[int] = {*log.since(self._seen, count), *range(len(before), count)}
        if len(self._number_of) > _MOST_STATES:  # of nodes that are gone, or are no more like that
            self._number_of, self._samples, rows = {}, [], range(count)
        for row in rows:
            name = cache.rows.names[row]
            info = None if name is None else cache.nodes.get(name)
            node = None if info is None else info.record
            self._of_row[row] = _NOT_READY
            if info is not None and node is not None and node.ready:
                by_claims = info.gives_by_claims
                number = self._number_of.setdefault(
                    (node.unschedulable, node.taints, by_claims, node.resource),
                    len(self._samples),
                )
                if number == len(self._samples):
                    self._samples.append((node, by_claims))
                self._of_row[row] = number
        self._seen = log.generation


def _candidate(pod: PodRecord, facts: PodFacts) -> Candidate:
    template = pod.template
    return (
        Candidate(facts)
        if template is None
        else Candidate(facts, template.tolerations, template.required)
    )


def may_run_on(template: Template, info: NodeInfo) -> bool:
    """`may_run`, and whether its GPUs come in the way in which such pods take them."""
    return template.by_claim is info.gives_by_claims and may_run(template, info.record)


def may_run(template: Template, node: NodeRecord | None) -> bool:
    return (
        node is not None
        and node.ready
        and template.takes(node.resource)
        and node_rejection(template, node) is None
    )


def why_not(template: Template, node: NodeRecord) -> str:
    """`node_rejection`, more exactly than in kube-scheduler's words, and of a node with GPUs by
    another resource; empty: no known reason."""
    if not template.takes(node.resource):
        return other_resource(template.resource, node)
    if taints.cordoned(node, template.tolerations):
        return "cordoned"
    taint = taints.untolerated(node.taints, template.tolerations)
    if taint is not None:
        return f"taint {taint.key} not tolerated"
    if template.required.rejection(node) is None:
        return ""
    if not selects(template.required.selector, node.labels):
        return "node selector does not match"
    return "required node affinity does not match"


def other_resource(wanted: str, node: NodeRecord) -> str:
    """Why the node takes no pod with GPUs by the resource *wanted*."""
    return f"node has {node.resource}, the pod requests {wanted}"


def puts_off(template: Template | None, node: NodeRecord | None) -> bool:
    """Whether kube-scheduler would prefer another node for such a pod."""
    tolerations = () if template is None else template.tolerations
    return node is not None and taints.avoided(node.taints, tolerations)
