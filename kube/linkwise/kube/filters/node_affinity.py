"""NodeAffinity: the node selector and the required node affinity."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkwise.kube.filters.nodes import NodeFacts
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.selectors import Selector, holds, integer, selects
from linkwise.kube.objects import Affinity, NodeSelector, NodeSelectorTerm, Requirement

_PLUGIN = "NodeAffinity"
MISMATCH = Rejection(
    _PLUGIN, ("node(s) didn't match Pod's node affinity/selector",), resolvable=False
)
CONFLICT = Rejection(_PLUGIN, ("pod affinity terms conflict",), resolvable=False)
# kube-scheduler asks no filter about a node that is not among those that a pod names.
NOT_NAMED = Rejection(
    _PLUGIN, ("node(s) didn't satisfy plugin(s) [NodeAffinity]",), resolvable=False
)
_NAME = "metadata.name"
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@dataclass(frozen=True, slots=True)
class RequiredNodes:
    """What a pod requires of its node's labels and name."""

    selector: Selector = ()
    terms: tuple[NodeSelectorTerm, ...] | None = None  # None: no affinity; (): matches no node

    def __bool__(self) -> bool:
        return bool(self.selector) or self.terms is not None

    @property
    def names(self) -> frozenset[str] | None:
        """The only nodes that are asked about, as every term names some; None: all are."""
        if not self.terms:
            return None
        named = [_named(term) for term in self.terms]
        return None if None in named else frozenset().union(*filter(None, named))

    @property
    def conflict(self) -> Rejection | None:
        """Set if the terms name nodes, but none that one term allows."""
        return CONFLICT if self.names == frozenset() else None

    def rejection(self, node: NodeFacts) -> Rejection | None:
        return None if self.match(node.name, node.labels) else MISMATCH

    def match(self, name: str, labels: Mapping[str, str]) -> bool:
        if not selects(self.selector, labels):
            return False
        return self.terms is None or any(term_matches(t, name, labels) for t in self.terms)


def required_nodes(node_selector: Mapping[str, str], affinity: Affinity | None) -> RequiredNodes:
    """Read a pod's spec."""
    selector = tuple(Requirement(k, "In", (v,)) for k, v in sorted(node_selector.items()))
    of_nodes = affinity.node_affinity if affinity else None
    required = of_nodes.required_during_scheduling_ignored_during_execution if of_nodes else None
    return RequiredNodes(selector, required.node_selector_terms if required else None)


@dataclass(frozen=True, slots=True)
class NodeColumns:
    """The labels of many nodes, for tests of all at once."""

    count: int
    # key -> [rows] number of the node's value, NO_DOMAIN without the label; number -> value
    labels: Callable[[str], tuple[NDArray[np.int64], Sequence[str]]]
    row_of: Callable[[str], int | None]  # by the node's name


def matching_rows(required: RequiredNodes, nodes: NodeColumns) -> NDArray[np.bool_]:
    """[rows] `RequiredNodes.match`. Each distinct value of a label is tested once, so this takes
    far less time than a test of each node."""
    found = np.full(nodes.count, required.selector is not None)
    for requirement in required.selector or ():
        found &= _holding(requirement, nodes)
    if required.terms is not None:
        of_terms = (_matching_term(term, nodes) for term in required.terms)
        found &= np.logical_or.reduce([np.zeros(nodes.count, dtype=np.bool_), *of_terms])
    return found


def _matching_term(term: NodeSelectorTerm, nodes: NodeColumns) -> NDArray[np.bool_]:
    found = np.full(nodes.count, can_match(term))
    if not found.any():
        return found
    for each in term.match_expressions:
        found &= _holding(each, nodes)
    for each in term.match_fields:
        (name,) = each.values
        row = nodes.row_of(name) if each.key == _NAME else None
        is_named = np.zeros(nodes.count, dtype=np.bool_)
        if row is not None:
            is_named[row] = True
        found &= is_named if each.operator == "In" else ~is_named
    return found


def _holding(requirement: Requirement, nodes: NodeColumns) -> NDArray[np.bool_]:
    numbers, values = nodes.labels(requirement.key)
    if requirement.operator in ("In", "NotIn"):
        named, is_in = frozenset(requirement.values), requirement.operator == "In"
        each = [(value in named) is is_in for value in values]
    else:
        each = [holds(requirement, {requirement.key: value}) for value in values]
    # NO_DOMAIN is -1, which finds the last element.
    by_number = np.array([*each, holds(requirement, {})], dtype=np.bool_)
    found: NDArray[np.bool_] = by_number[numbers]
    return found


def any_term_matches(selector: NodeSelector, labels: Mapping[str, str]) -> bool:
    """Whether a volume's node affinity matches a node. It looks at labels alone."""
    return any(term_matches(term, "", labels) for term in selector.node_selector_terms)


def term_matches(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    """An empty term matches nothing, and neither does one that cannot be parsed."""
    if not can_match(term):
        return False
    return all(holds(each, labels) for each in term.match_expressions) and (
        not name or all(holds(each, {_NAME: name}) for each in term.match_fields)
    )


def can_match(term: NodeSelectorTerm) -> bool:
    """Whether the term is not empty, and can be parsed."""
    return (
        bool(term.match_expressions or term.match_fields)
        and all(_parses(each) for each in term.match_expressions)
        and all(_parses_as_field(each) for each in term.match_fields)
    )


def _named(term: NodeSelectorTerm) -> frozenset[str] | None:
    names = [
        frozenset(field.values)
        for field in term.match_fields
        if field.key == _NAME and field.operator == "In"
    ]
    return frozenset.intersection(*names) if names else None


def _parses(requirement: Requirement) -> bool:
    values = requirement.values
    match requirement.operator:
        case "In" | "NotIn":
            return bool(values) and all(map(_LABEL_VALUE.fullmatch, values))
        case "Exists" | "DoesNotExist":
            return not values
        case "Gt" | "Lt":
            return len(values) == 1 and integer(values[0]) is not None
        case _:
            return False


def _parses_as_field(requirement: Requirement) -> bool:
    return requirement.operator in ("In", "NotIn") and len(requirement.values) == 1
