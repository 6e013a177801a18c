"""All nodes at once are judged as each alone, for every test that a pod may write."""

from itertools import product

import numpy as np
import pytest

from linkwise.kube.filters.node_affinity import NodeColumns, RequiredNodes, matching_rows
from linkwise.kube.filters.nodes import NO_DOMAIN
from linkwise.kube.objects import NodeSelectorTerm, Requirement

# Of the one label that nodes have; None: not even that.
VALUES = (None, "", "a", "b", "3", "4", "007", "-1", "9" * 18, "9" * 19)
NAMES = [f"n{number}" for number in range(len(VALUES))]
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like")
WRITTEN = (
    (),
    *((value,) for value in ("a", "c", "3", "7", "-1", "", "no label", "9" * 18, "9" * 19)),
    ("a", "b"),
    ("3", "4"),
)


def labels_of(key: str) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], dict[str, int]]:
    if key != "x":
        return np.full(len(VALUES), NO_DOMAIN), {}
    number_of = {"gone": 0}  # of a node that is gone
    numbers = [
        NO_DOMAIN if value is None else number_of.setdefault(value, len(number_of))
        for value in VALUES
    ]
    return np.array(numbers), number_of


NODES = NodeColumns(len(VALUES), labels_of, {name: n for n, name in enumerate(NAMES)}.get)


def each_alone(required: RequiredNodes) -> list[bool]:
    return [
        required.match(name, {} if value is None else {"x": value})
        for name, value in zip(NAMES, VALUES, strict=True)
    ]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("key", ["x", "absent"])
def test_every_expression(key: str, operator: str) -> None:
    for values in WRITTEN:
        test = Requirement(key, operator, values)
        for required in (
            RequiredNodes(terms=(NodeSelectorTerm((test,)),)),
            RequiredNodes(selector=(test,)),
        ):
            assert matching_rows(required, NODES).tolist() == each_alone(required), required


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("key", ["metadata.name", "metadata.uid"])
def test_every_field(key: str, operator: str) -> None:
    for values in ((), ("n1",), ("n99",), ("n1", "n2")):
        required = RequiredNodes(
            terms=(NodeSelectorTerm(match_fields=(Requirement(key, operator, values),)),)
        )
        assert matching_rows(required, NODES).tolist() == each_alone(required), required


def test_all_tests_of_a_term_must_hold_and_one_of_the_terms_and_the_selector() -> None:
    tests = [
        Requirement("x", operator, values)
        for operator, values in (("In", ("a", "3")), ("Gt", ("2",)), ("Exists", ()))
    ]
    fields = ((), (Requirement("metadata.name", "NotIn", ("n2",)),))
    terms = [
        NodeSelectorTerm(of_labels, of_fields)
        for of_labels, of_fields in product(((), *product(tests, tests)), fields)
    ]
    for first, second in product(terms, terms):
        for selector in ((), (tests[0],), None):
            required = RequiredNodes(selector, (first, second))
            assert matching_rows(required, NODES).tolist() == each_alone(required), required
    for required in (RequiredNodes(), RequiredNodes(terms=()), RequiredNodes(selector=None)):
        assert matching_rows(required, NODES).tolist() == each_alone(required), required
