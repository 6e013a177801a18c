"""Label and field selectors: which objects a list or watch returns."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from linkwise.simulator.api_server.kinds import EVENT, NODE, POD, SLICE, ResourceKind
from linkwise.simulator.api_server.refusals import Object, bad_request

_FIELDS: dict[ResourceKind, frozenset[str]] = {
    SLICE: frozenset({"spec.nodeName", "spec.driver"}),
    POD: frozenset({"spec.nodeName", "status.phase", "spec.schedulerName", "status.podIP"}),
    NODE: frozenset({"spec.unschedulable"}),
    EVENT: frozenset({"involvedObject.name", "involvedObject.uid", "reason", "type"}),
}
_WHERE_ABSENT = {"spec.unschedulable": "false"}
_EVERY_KIND = frozenset({"metadata.name", "metadata.namespace"})

_IN = re.compile(r"(?P<key>\S+)\s+(?P<operator>in|notin)\s*\((?P<values>[^)]*)\)")
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^(]*\))")

Test = Callable[[Object], bool]


@dataclass(frozen=True, slots=True)
class Selector:
    tests: tuple[Test, ...] = ()

    def matches(self, obj: Object) -> bool:
        return all(test(obj) for test in self.tests)

    def __bool__(self) -> bool:
        return bool(self.tests)


def read_selector(kind: ResourceKind, labels: str, fields: str) -> Selector:
    """Return the selector. Raises RequestRefusedError 400 if it does not parse or names a field
    that the kind does not have."""
    tests = [_label_test(part) for part in _COMMA_OUTSIDE_BRACKETS.split(labels) if part.strip()]
    tests += [_field_test(kind, part) for part in fields.split(",") if part.strip()]
    return Selector(tuple(tests))


def reads_labels(selector: Object) -> Selector:
    """Return a selector from its form in an object: `matchLabels` and `matchExpressions`."""
    tests = [
        _membership(key, {value}, wanted=True)
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for expression in selector.get("matchExpressions") or ():
        key, values = expression["key"], ", ".join(expression.get("values") or ())
        texts = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        tests.append(_label_test(texts[expression["operator"]]))
    return Selector(tuple(tests))


def _label_test(text: str) -> Test:
    text = text.strip()
    if found := _IN.fullmatch(text):
        values = {value.strip() for value in found["values"].split(",")}
        return _membership(found["key"], values, wanted=found["operator"] == "in")
    for sign, wanted in (("!=", False), ("==", True), ("=", True)):
        if sign in text:
            key, value = text.split(sign, 1)
            return _membership(key.strip(), {value.strip()}, wanted=wanted)
    if " " in text or "(" in text:
        raise bad_request(f"unable to parse requirement: {text!r}")
    if text.startswith("!"):
        return lambda obj: text[1:] not in _labels(obj)
    return lambda obj: text in _labels(obj)


def _membership(key: str, values: set[str], *, wanted: bool) -> Test:
    # `!=` and `notin` match an object without the label.
    return lambda obj: (_labels(obj).get(key) in values) is wanted


def _labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def _field_test(kind: ResourceKind, text: str) -> Test:
    for sign, wanted in (("!=", False), ("==", True), ("=", True)):
        if sign in text:
            path, value = text.split(sign, 1)
            if path not in _EVERY_KIND | _FIELDS.get(kind, frozenset()):
                raise bad_request(f"field label not supported: {path}")
            return _field_equals(path, value, wanted=wanted)
    raise bad_request(f"invalid selector: {text!r}; can't understand")


def _field_equals(path: str, value: str, *, wanted: bool) -> Test:
    steps = path.split(".")
    absent = _WHERE_ABSENT.get(path, "")

    def test(obj: Object) -> bool:
        found: object = obj
        for step in steps:
            found = found.get(step) if isinstance(found, dict) else None
        shown = str(found).lower() if isinstance(found, bool) else str(found or absent)
        return (shown == value) is wanted

    return test
