"""Objects of the API out of files: JSON or YAML, one after the other, alone or in Lists."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from linkwise.cli.errors import BadInputError
from linkwise.extender.podgrouper.workloads.answer import ObjectRef
from linkwise.extender.podgrouper.workloads.case import group_of

Fields = Mapping[str, Any]
_MOST_DEPTH = 200  # Kubernetes' own kinds have some twenty levels


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Kubernetes has no dates, only texts."""


_Loader.yaml_implicit_resolvers = {
    first: [item for item in resolvers if item[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def objects_in(text: str, where: str) -> Iterator[tuple[str, Fields]]:
    """Each object with its place, for messages. Raises BadInputError with document and line."""
    for number, document in enumerate(_documents(text, where), start=1):
        yield from _items(document, f"{where}: document {number}")


def ref_of(item: Fields, where: str) -> ObjectRef:
    """Raises BadInputError where what an object is called by is missing."""
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


def unreadable(error: msgspec.ValidationError, where: str, what: str) -> BadInputError:
    """What msgspec says of a field, with the field in front."""
    problem, _, field = str(error).partition(" - at `$.")
    return BadInputError(f"{where}: {field.rstrip('`') or what}: {problem}")


def _documents(text: str, where: str) -> Iterator[object]:
    """JSON goes the fast way: a cluster's pods are many megabytes."""
    try:
        yield msgspec.json.decode(text)
        return
    except (msgspec.DecodeError, RecursionError):
        pass  # it is YAML, or YAML tells better where it is wrong
    several = _json_values(text)
    if several is not None:
        yield from several
        return
    try:
        _refuse_deep(text, where)
        yield from (found for found in yaml.load_all(text, _Loader) if found is not None)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}:" if mark else ""
        raise BadInputError(f"{where}:{line} {error.problem or 'not YAML'}") from None
    except yaml.reader.ReaderError as error:
        # libyaml tells its number.
        character = chr(error.character) if isinstance(error.character, int) else error.character
        raise BadInputError(f"{where}: character {character!r}: {error.reason}") from None
    except (ValueError, RecursionError) as error:  # such as an integer of 5000 digits
        raise BadInputError(f"{where}: {error}") from None


def _refuse_deep(text: str, where: str) -> None:
    """libyaml calls itself for each level, and the process would die of that."""
    depth = 0
    for event in yaml.parse(text, _Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_DEPTH:
            mark = event.start_mark
            line = f" line {mark.line + 1}:" if mark else ""
            raise BadInputError(f"{where}:{line} more than {_MOST_DEPTH} levels deep")


def _json_values(text: str) -> list[object] | None:
    """Several values one after the other, as `jq` and several `kubectl` print them; None: it is
    something else."""
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
    """The objects of a document, of which a List has many and says their kind once."""
    waiting: list[tuple[str, object, Fields]] = [(where, document, {})]
    while waiting:  # no recursion: a List may hold Lists, and how deep is for a stranger to say
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
