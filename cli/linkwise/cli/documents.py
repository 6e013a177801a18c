"""Kubernetes objects from files: JSON or YAML, one after the other, alone or in Lists."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from linkwise.cli.errors import BadInputError
from linkwise.kube.documents import DocumentError, dotted, objects_of, read_documents
from linkwise.kube.fields import controller_of, group_of, text
from linkwise.pods.podgrouper.workloads.answer import ObjectRef

Fields = Mapping[str, Any]
Name = tuple[str, str, str]
"""Namespace, kind and name."""


def objects_in(text: str, where: str) -> Iterator[tuple[str, Fields]]:
    """Yield each object with its place, for messages. Raises BadInputError with document and
    line."""
    try:
        for document in read_documents(text):
            for path, fields in objects_of(document):
                parts = (where, f"document {document.number}", dotted(path))
                yield ": ".join(part for part in parts if part), fields
    except DocumentError as error:
        place = f"{where}: document {error.document}: line {error.line}"
        said = (place, error.field, error.problem)
        raise BadInputError(": ".join(part for part in said if part)) from None


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


def controller_name(item: Fields, ref: ObjectRef) -> Name:
    """Return what controls the object, by name: a manifest may lack uids."""
    owner = controller_of(item)
    return ref.namespace, text(owner, "kind"), text(owner, "name")


def unreadable(error: msgspec.ValidationError, where: str, what: str) -> BadInputError:
    """Turn msgspec's message around: the field first, then the problem."""
    problem, _, field = str(error).partition(" - at `$.")
    return BadInputError(f"{where}: {field.rstrip('`') or what}: {problem}")
