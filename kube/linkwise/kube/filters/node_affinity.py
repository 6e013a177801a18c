"""NodeAffinity: the node selector and the required node affinity."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from linkwise.kube.filters.nodes import NO_DOMAIN, Bools, Ints, NodeFacts
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
    # key -> [rows] number of the node's value, NO_DOMAIN without the label; value -> number, from 0
    labels: Callable[[str], tuple[Ints, Mapping[str, int]]]
    row_of: Callable[[str], int | None]  # by the node's name


def matching_rows(required: RequiredNodes, nodes: NodeColumns) -> Bools:
    """[rows] `RequiredNodes.match`. A test looks at its own values and at an array of the nodes, so
    this takes far less time than a test of each node."""
    tests = _Tests(nodes)
    found = np.full(nodes.count, required.selector is not None)
    for requirement in required.selector or ():
        found &= tests.holding(requirement)
    if required.terms is not None:
        of_terms = np.zeros(nodes.count, dtype=np.bool_)
        for term in required.terms:
            of_terms |= tests.matching(term)
        found &= of_terms
    return found


class _Tests:
    def __init__(self, nodes: NodeColumns) -> None:
        self._nodes = nodes
        # key -> [rows] the value as an integer, and whether it is one
        self._integers: dict[str, tuple[Ints, Bools]] = {}

    def matching(self, term: NodeSelectorTerm) -> Bools:
        """[rows] `term_matches`."""
        found = np.full(self._nodes.count, can_match(term))
        if not found.any():
            return found
        for each in term.match_expressions:
            found &= self.holding(each)
        for each in term.match_fields:
            (name,) = each.values
            row = self._nodes.row_of(name) if each.key == _NAME else None
            is_named = np.zeros(self._nodes.count, dtype=np.bool_)
            if row is not None:
                is_named[row] = True
            found &= is_named if each.operator == "In" else ~is_named
        return found

    def holding(self, requirement: Requirement) -> Bools:
        """[rows] `selectors.holds`."""
        numbers, number_of = self._nodes.labels(requirement.key)
        match requirement.operator:
            case "In" | "NotIn" as operator:
                # NO_DOMAIN is -1, which finds the last element.
                is_named = np.zeros(len(number_of) + 1, dtype=np.bool_)
                is_named[[number_of[v] for v in requirement.values if v in number_of]] = True
                is_in: Bools = is_named[numbers]
                return is_in if operator == "In" else ~is_in
            case "Exists" | "DoesNotExist" as operator:
                is_there: Bools = numbers != NO_DOMAIN
                return is_there if operator == "Exists" else ~is_there
            case "Gt" | "Lt" as operator if len(requirement.values) == 1:
                limit, (have, is_one) = (
                    integer(requirement.values[0]),
                    self._integers_of(requirement.key),
                )
                if limit is not None:
                    return is_one & (have > limit if operator == "Gt" else have < limit)
        return np.zeros(self._nodes.count, dtype=np.bool_)

    def _integers_of(self, key: str) -> tuple[Ints, Bools]:
        if key not in self._integers:
            numbers, number_of = self._nodes.labels(key)
            found = [*map(integer, number_of), None]
            values = np.array([each or 0 for each in found], dtype=np.int64)
            is_one = np.array([each is not None for each in found], dtype=np.bool_)
            self._integers[key] = values[numbers], is_one[numbers]
        return self._integers[key]


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
