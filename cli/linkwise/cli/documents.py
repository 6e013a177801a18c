"""Kubernetes objects from files: JSON or YAML, one after the other, alone or in Lists."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from linkwise.cli.errors import BadInputError
from linkwise.extender.podgrouper.workloads.answer import ObjectRef
from linkwise.kube.fields import controller_of, group_of, text

Fields = Mapping[str, Any]
Name = tuple[str, str, str]
"""Namespace, kind and name."""

_MOST_DEPTH = 200  # Kubernetes' own kinds have about twenty levels
_MOST_VALUES = 1_000_000  # of a document with aliases; a few aliases of aliases become billions


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """A YAML loader without dates: Kubernetes has only strings."""


_Loader.yaml_implicit_resolvers = {
    first: [item for item in resolvers if item[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def objects_in(text: str, where: str) -> Iterator[tuple[str, Fields]]:
    """Yield each object with its place, for messages. Raises BadInputError with document and
    line."""
    for number, document in enumerate(_documents(text, where), start=1):
        yield from _items(document, f"{where}: document {number}")


def ref_of(item: Fields, where: str) -> ObjectRef:
    """Return what identifies an object. Raises BadInputError if a part is missing."""
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        raise BadInputError(f"{where}: metadata: expected an object")
    said = (item.get("apiVersion"), item.get("kind"), metadata.get("name"))
    for field, value in zip(("apiVersion", "kind", "metadata.name"), said, strict=True):
        if not isinstance(value, str) or not value:
            raise BadInputError(f"{where}: {field}: expected a text")
    api_version, kind, name = map(str, said)
    namespace = metadata.get("namespace") or "default"
    if not isinstance(namespace, str):
        raise BadInputError(f"{where}: metadata.namespace: expected a text")
    return ObjectRef(group_of(api_version), kind, namespace, name)


def without_nulls(fields: Fields) -> dict[str, Any]:
    """Remove nulls: the API server treats a null field as absent. Keys become texts, as in JSON."""
    return {str(key): _pruned(value) for key, value in fields.items() if value is not None}


def _pruned(value: object) -> object:
    if isinstance(value, dict):
        return without_nulls(value)
    return [_pruned(each) for each in value] if isinstance(value, list) else value


def controller_name(item: Fields, ref: ObjectRef) -> Name:
    """Return what controls the object, by name: a manifest may lack uids."""
    owner = controller_of(item)
    return ref.namespace, text(owner, "kind"), text(owner, "name")


def unreadable(error: msgspec.ValidationError, where: str, what: str) -> BadInputError:
    """Turn msgspec's message around: the field first, then the problem."""
    problem, _, field = str(error).partition(" - at `$.")
    return BadInputError(f"{where}: {field.rstrip('`') or what}: {problem}")


def _documents(text: str, where: str) -> Iterator[object]:
    """Yield the documents. JSON takes a fast path, as a cluster's pods are many megabytes."""
    try:
        yield msgspec.json.decode(text)
        return
    except (msgspec.DecodeError, RecursionError):
        pass  # YAML, or JSON that the YAML reader can locate an error in
    several = _json_values(text)
    if several is not None:
        yield from several
        return
    try:
        aliases = _refuse_deep(text, where)
        for found in yaml.load_all(text, _Loader):
            if aliases and _expanded(found, {}) > _MOST_VALUES:
                raise ValueError(f"more than {_MOST_VALUES} values in one document")
            if found is not None:
                yield found
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}:" if mark else ""
        raise BadInputError(f"{where}:{line} {error.problem or 'not YAML'}") from None
    except yaml.reader.ReaderError as error:
        # libyaml gives its number.
        character = chr(error.character) if isinstance(error.character, int) else error.character
        raise BadInputError(f"{where}: character {character!r}: {error.reason}") from None
    except (ValueError, RecursionError, LookupError, AttributeError, ArithmeticError) as error:
        # Such as an integer of 5000 digits; or `!!bool maybe`, of which PyYAML makes a KeyError.
        raise BadInputError(f"{where}: {error}") from None


def _expanded(value: object, known: dict[int, int]) -> int:
    """Return how many values there are once each alias is written out. Raises ValueError."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = 0  # until it is counted
        inside = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_expanded(each, known) for each in inside)
    if not known[id(value)]:
        raise ValueError("an alias that contains itself")
    return known[id(value)]


def _refuse_deep(text: str, where: str) -> bool:
    """Refuse deep nesting first: libyaml recurses for each level, which would kill the process.

    Return True if the text has aliases.
    """
    depth, aliases = 0, False
    for event in yaml.parse(text, _Loader):
        aliases = aliases or isinstance(event, yaml.AliasEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            mark = event.start_mark
            line = f" line {mark.line + 1}:" if mark else ""
            raise BadInputError(f"{where}:{line} more than {_MOST_DEPTH} levels deep")
    return aliases


def _json_values(text: str) -> list[object] | None:
    """Return several JSON values in a row, as `jq` and several `kubectl` calls print them; None if
    the text is something else."""
    if not text.lstrip().startswith("{"):
        return None
    decoder, values, at = json.JSONDecoder(), [], 0
    try:
        while (at := _after_blanks(text, at)) < len(text):
            value, at = decoder.raw_decode(text, at)
            values.append(value)
    except (ValueError, RecursionError):
        return None
    return values


def _after_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _items(document: object, where: str) -> Iterator[tuple[str, Fields]]:
    """Yield the objects of a document; a List has many and may name their kind once."""
    waiting: list[tuple[str, object, Fields]] = [(where, document, {})]
    while waiting:  # no recursion: a List may hold Lists, to any depth
        place, value, said = waiting.pop()
        fields = {**said, **_fields(value, place)}
        kind = fields.get("kind")
        if not isinstance(kind, str) or not kind.endswith("List") or "items" not in fields:
            yield place, fields
            continue
        items = fields["items"]
        if not isinstance(items, list):
            raise BadInputError(f"{place}: items: expected a list")
        one = kind.removesuffix("List")
        inside = {"apiVersion": fields.get("apiVersion"), "kind": one} if one else {}
        waiting += [
            (f"{place}: items[{number}]", item, inside)
            for number, item in reversed([*enumerate(items)])
        ]


def _fields(value: object, where: str) -> Fields:
    if not isinstance(value, dict):
        raise BadInputError(f"{where}: expected an object with apiVersion and kind")
    return value
