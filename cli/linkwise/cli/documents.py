"""Kubernetes objects from files: JSON or YAML, one after the other, alone or in Lists."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from linkwise.cli.errors import BadInputError
from linkwise.kube.documents import (
    Document,
    DocumentError,
    Path,
    dotted,
    objects_of,
    read_documents,
)
from linkwise.kube.fields import controller_of, group_of, text
from linkwise.kube.manifest import FieldError, check_kind, check_names, word
from linkwise.pods.podgrouper.workloads.answer import ObjectRef

Fields = Mapping[str, Any]
Name = tuple[str, str, str]
"""Namespace, kind and name."""


@dataclass(frozen=True, slots=True)
class Given:
    """An object of a file. *file* is for messages."""

    file: str
    document: Document
    path: Path  # of the object in its document
    fields: Fields

    @property
    def place(self) -> str:
        """`-f job.yaml: document 1: items[3]`"""
        parts = (self.file, f"document {self.document.number}", dotted(self.path))
        return ": ".join(part for part in parts if part)

    def refuse(self, error: FieldError) -> BadInputError:
        """*error* names its field from the top of the document."""
        document = self.document
        line = f"line {document.line_of(error.path)}" if document.has_lines else ""
        parts = (self.file, f"document {document.number}", line, dotted(error.path), error.problem)
        return BadInputError(": ".join(part for part in parts if part))


def objects_in(text: str, file: str) -> Iterator[Given]:
    """Yield each object. Raises BadInputError with document and line."""
    try:
        for document in read_documents(text):
            for path, fields in objects_of(document):
                yield Given(file, document, path, fields)
    except DocumentError as error:
        place = f"{file}: document {error.document}: line {error.line}"
        said = (place, error.field, error.problem)
        raise BadInputError(": ".join(part for part in said if part)) from None


def checked_ref(given: Given) -> None:
    """Check what identifies the object, its labels and its annotations. Raises BadInputError."""
    try:
        check_kind(given.fields, given.path)
        word(given.fields, given.path, "kind", "a kind such as Pod or Job")
        word(given.fields, given.path, "apiVersion", "one such as v1 or batch/v1")
        check_names(given.fields, given.path)
    except FieldError as error:
        raise given.refuse(error) from None


def ref_of(item: Fields) -> ObjectRef:
    """Return what identifies an object that `checked_ref` or a cluster has checked."""
    metadata = item["metadata"]
    return ObjectRef(
        group_of(item["apiVersion"]),
        item["kind"],
        metadata.get("namespace") or "default",
        metadata["name"],
    )


def controller_name(item: Fields, ref: ObjectRef) -> Name:
    """Return what controls the object, by name: a manifest may lack uids."""
    owner = controller_of(item)
    return ref.namespace, text(owner, "kind"), text(owner, "name")


def unreadable(error: msgspec.ValidationError, where: str, what: str) -> BadInputError:
    """Turn msgspec's message around: the field first, then the problem."""
    problem, _, field = str(error).partition(" - at `$.")
    return BadInputError(f"{where}: {field.rstrip('`') or what}: {problem}")
