"""An object that a controller creates, and where in its creator each part of it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from linkwise.kube.controllers.order import After
from linkwise.kube.fields import Fields, mapping, text

LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # Kubernetes' alphabet for generated names
_LONGEST_STEM = 58  # of a generated name: with five letters it has 63, as many as a label's value
_NOTHING: Mapping[str, str] = {}


class UnknownControllerError(Exception):
    """It is unknown which pods this kind of object creates. The text is the kind with its group."""


@dataclass(frozen=True, slots=True)
class Child:
    """An object to create. What is at *inner* in it comes from *outer* in its creator.

    Both are dotted paths; an empty one is the whole object. *after*: what comes first.
    """

    body: dict[str, Any]
    inner: str
    outer: str
    after: tuple[After, ...] = ()

    def source(self, path: str) -> str:
        """Return the path in the creator from which *path* of this object comes."""
        if not path.startswith(self.inner):
            return self.outer
        rest = path.removeprefix(self.inner).removeprefix(".")
        return ".".join(part for part in (self.outer, rest) if part)


def child(
    by: Fields,
    kind: str,
    name: str,
    spec: Fields,
    *,
    inner: str,
    outer: str,
    labels: Fields = _NOTHING,
    annotations: Fields = _NOTHING,
    after: tuple[After, ...] = (),
) -> Child:
    """Return an object that *by* controls. *kind* is like `batch/v1 Job`."""
    api_version, _, word = kind.rpartition(" ")
    owner = {
        "apiVersion": text(by, "apiVersion"),
        "kind": text(by, "kind"),
        "name": text(by, "metadata.name"),
        "uid": text(by, "metadata.uid"),
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": name,
        "namespace": text(by, "metadata.namespace"),
        "labels": dict(labels),
        "annotations": dict(annotations),
        "ownerReferences": [owner],
    }
    body = {"apiVersion": api_version, "kind": word, "metadata": metadata, "spec": dict(spec)}
    return Child(body, inner, outer, after)


def pod(
    by: Fields,
    path: str,
    template: Fields,
    name: str,
    labels: Mapping[str, str] = _NOTHING,
    annotations: Mapping[str, str] = _NOTHING,
    spec: Fields = _NOTHING,
    after: tuple[After, ...] = (),
) -> Child:
    """Return a pod of the *template* at *path*, with what its controller adds."""
    said = mapping(template, "metadata")
    return child(
        by,
        "v1 Pod",
        name,
        {**mapping(template, "spec"), **spec},
        inner="",
        outer=path,
        labels={**mapping(said, "labels"), **labels},
        annotations={**mapping(said, "annotations"), **annotations},
        after=after,
    )


def generated(stem: str, *parts: object, letters: int = 5) -> str:
    """Return a name as the API server generates it. Its random letters follow from the arguments,
    so that equal manifests get equal names."""
    digest = sha1(repr((stem, *parts)).encode(), usedforsecurity=False).digest()
    ending = "".join(LETTERS[byte % len(LETTERS)] for byte in digest[:letters])
    return f"{stem[:_LONGEST_STEM]}-{ending}"
