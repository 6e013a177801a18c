"""Which nodes a pod may run on, as far as that is cheap and certain.

These filters are: ready and schedulable, taints, node selector and required node affinity. What
nodes have left is in `cache.resources_left`. The extender does not repeat the other filters of
kube-scheduler: it learns them from kube-scheduler's calls (`scheduler_feedback`).
"""

from collections.abc import Callable, Iterable, Mapping
from weakref import WeakKeyDictionary

import numpy as np

from linkwise.extender.api.records import NodeRecord, Template
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.node_table import Bools
from linkwise.kube.objects import Affinity, NodeSelectorTerm, Requirement, Taint, Toleration

_CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_KEEPS_OUT = frozenset({"NoSchedule", "NoExecute"})


class NodeFilters:
    """The result per template, cached and updated for the nodes that changed."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._known: WeakKeyDictionary[Template, tuple[Bools, int]] = WeakKeyDictionary()

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
        fresh = np.zeros(count, dtype=np.bool_)
        changed: Iterable[int] = range(count)
        if known is not None:
            fresh[: len(known)] = known
            changed = set(log.since(seen, count))
        names, nodes = cache.rows.names, cache.nodes
        rows = list(changed)
        found = [None if (name := names[row]) is None else nodes.get(name) for row in rows]
        fresh[rows] = [info is not None and may_run(template, info.record) for info in found]
        self._known[template] = (fresh, log.generation)
        return fresh

    def on(self, template: Template | None, node: str) -> bool:
        info = self._cache.nodes.get(node)
        if info is None or template is None or self._cache.turned_away.is_closed(template, node):
            return False
        return may_run(template, info.record)


def may_run(template: Template, node: NodeRecord | None) -> bool:
    if node is None or not node.ready:
        return False
    # Every node is tested for each new template, and most of both have no constraint.
    constrained = node.taints or node.unschedulable or template.node_selector or template.affinity
    return not constrained or not why_not(template, node)


def why_not(template: Template, node: NodeRecord) -> str:
    """Why kube-scheduler would refuse the node; empty: no known reason."""
    if node.unschedulable and not _tolerated(_CORDONED, template.tolerations):
        return "cordoned"
    for taint in node.taints:
        if taint.effect in _KEEPS_OUT and not _tolerated(taint, template.tolerations):
            return f"taint {taint.key} not tolerated"
    return why_not_selected(template.node_selector, template.affinity, node.name, node.labels)


def why_not_selected(
    selector: Mapping[str, str], affinity: Affinity | None, name: str, labels: Mapping[str, str]
) -> str:
    """Why the node of this *name* and *labels* is none that a pod selects; empty: it is one."""
    if selector and any(labels.get(key) != value for key, value in selector.items()):
        return "node selector does not match"
    if affinity is not None and not _affine(affinity, name, labels):
        return "required node affinity does not match"
    return ""


def puts_off(template: Template | None, node: NodeRecord | None) -> bool:
    """Whether kube-scheduler would prefer another node for such a pod."""
    return node is not None and any(
        taint.effect == "PreferNoSchedule"
        and not (template is not None and _tolerated(taint, template.tolerations))
        for taint in node.taints
    )


def _tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def _affine(affinity: Affinity, name: str, labels: Mapping[str, str]) -> bool:
    of_nodes = affinity.node_affinity
    required = of_nodes and of_nodes.required_during_scheduling_ignored_during_execution
    return not required or any(
        _term_holds(term, name, labels) for term in required.node_selector_terms
    )


def _term_holds(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    if not (term.match_expressions or term.match_fields):
        return False  # an empty term matches nothing, as in Kubernetes
    fields = {"metadata.name": name}
    return all(matches(each, labels) for each in term.match_expressions) and all(
        matches(each, fields) for each in term.match_fields
    )


def matches(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    test = _TESTS.get(requirement.operator)
    return test is not None and test(labels.get(requirement.key), requirement.values)


def _compared(sign: int) -> Callable[[str | None, tuple[str, ...]], bool]:
    def matches(value: str | None, values: tuple[str, ...]) -> bool:
        try:
            return value is not None and (int(value) - int(values[0])) * sign > 0
        except (ValueError, IndexError):
            return False

    return matches


_TESTS: dict[str, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _compared(1),
    "Lt": _compared(-1),
}
