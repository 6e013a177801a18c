"""Pods and the objects around them, from what `kubectl get -o yaml` or `-o json` prints."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from linkwise.cli.errors import BadInputError
from linkwise.cli.text_file import read_text
from linkwise.extender.recognise.answer import ObjectRef
from linkwise.extender.recognise.case import group_of
from linkwise.kube.objects import Pod

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Manifests:
    pods: tuple[Pod, ...]
    objects: Mapping[ObjectRef, Fields]


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """Kubernetes has no dates, only texts."""


_Loader.yaml_implicit_resolvers = {
    first: [item for item in resolvers if item[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_manifests(paths: Sequence[str]) -> Manifests:
    """Raises BadInputError with file, document and field."""
    pods: list[Pod] = []
    objects: dict[ObjectRef, Fields] = {}
    for path in paths:
        where = f"-f {'standard input' if path == '-' else path}"
        text = read_text("-f", path)
        for number, document in enumerate(_documents(text, where), start=1):
            for place, item in _items(document, f"{where}: document {number}"):
                ref = _ref(item, place)
                if (ref.group, ref.kind) == ("", "Pod"):
                    pods.append(_pod(item, place))
                else:
                    objects[ref] = item
    if not pods:
        raise BadInputError(f"-f {', '.join(paths)}: no Pod there; `kubectl get pods -o yaml`")
    return Manifests(tuple(pods), objects)


def _documents(text: str, where: str) -> Iterator[object]:
    """JSON goes the fast way: a cluster's pods are many megabytes."""
    try:
        yield msgspec.json.decode(text)
        return
    except (msgspec.DecodeError, RecursionError):
        pass  # it is YAML, or YAML tells better where it is wrong
    try:
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


def _items(document: object, where: str) -> Iterator[tuple[str, Fields]]:
    """The objects of a document, of which a List has many and says their kind once."""
    fields = _fields(document, where)
    kind = fields.get("kind")
    if not isinstance(kind, str) or not kind.endswith("List") or "items" not in fields:
        yield where, fields
        return
    items = fields["items"]
    if not isinstance(items, list):
        raise BadInputError(f"{where}: items: expected a list")
    said = {"apiVersion": fields.get("apiVersion"), "kind": kind.removesuffix("List")}
    for number, item in enumerate(items):
        place = f"{where}: items[{number}]"
        yield place, {**(said if said["kind"] else {}), **_fields(item, place)}


def _fields(value: object, where: str) -> Fields:
    if not isinstance(value, dict):
        raise BadInputError(f"{where}: expected an object with apiVersion and kind")
    return value


def _ref(item: Fields, where: str) -> ObjectRef:
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


def _pod(item: Fields, where: str) -> Pod:
    try:
        pod = msgspec.convert(item, Pod)
    except msgspec.ValidationError as error:
        problem, _, field = str(error).partition(" - at `$.")
        raise BadInputError(f"{where}: {field.rstrip('`') or 'pod'}: {problem}") from None
    namespace = pod.metadata.namespace or "default"
    metadata = msgspec.structs.replace(pod.metadata, namespace=namespace)
    return msgspec.structs.replace(pod, metadata=metadata)
