"""Label selectors as values that can be compared and hashed."""

import re
from collections.abc import Callable, Collection, Mapping

from linkwise.kube.objects import LabelSelector, Requirement

Selector = tuple[Requirement, ...] | None
"""All of them must hold: `()` selects everything. None selects nothing."""

_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,19})")  # Python reads no number of any length
_INT64 = range(-(2**63), 2**63)


def selector_of(selector: LabelSelector | None) -> Selector:
    """Return an object's selector; None selects nothing there too."""
    if selector is None:
        return None
    labels = sorted(selector.match_labels.items())
    return (*(Requirement(k, "In", (v,)) for k, v in labels), *selector.match_expressions)


def selects(selector: Selector, labels: Mapping[str, str]) -> bool:
    return selector is not None and all(holds(each, labels) for each in selector)


def holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    test = _TESTS.get(requirement.operator)
    return test is not None and test(labels.get(requirement.key), requirement.values)


def value_test(requirement: Requirement) -> Callable[[str | None], bool]:
    """What `holds` asks of the value of the requirement's key; for very many values."""
    test, values = _TESTS.get(requirement.operator), frozenset(requirement.values)
    if test is None:
        return lambda _: False
    return values.__contains__ if requirement.operator == "In" else lambda have: test(have, values)


def integer(text: str) -> int | None:
    """Return the number as Go's ParseInt reads it; None if it does not."""
    found = _INTEGER.fullmatch(text)
    number = int("".join(found.groups())) if found else None
    return number if number is not None and number in _INT64 else None


def _compared(sign: int) -> Callable[[str | None, Collection[str]], bool]:
    def compares(value: str | None, values: Collection[str]) -> bool:
        if value is None or len(values) != 1:
            return False
        have, limit = integer(value), integer(*values)
        return have is not None and limit is not None and (have - limit) * sign > 0

    return compares


_TESTS: Mapping[str, Callable[[str | None, Collection[str]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _compared(1),
    "Lt": _compared(-1),
}
