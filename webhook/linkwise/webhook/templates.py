"""The places of an object with its pods' annotations, and the pods that its controller creates.

Which pods these are, `kube.controllers` knows. Some kinds also have a field of their own for the
pods' annotations. All these fields are called `annotations` and are below `spec`, so the webhook
searches for that name: it works for unknown kinds too.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import msgspec

from linkwise.kube.controllers.child import UnknownControllerError
from linkwise.kube.controllers.workload import MOST_PODS, descendants
from linkwise.kube.fields import Fields, UnreadableError, group_of, has, mapping, text
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import ObjectRef, Objects
from linkwise.topology import names

# API groups of which every pod template is that of a Job: Kubernetes' own, JobSet, Trainer.
_WITH_JOBS = ("batch/", "jobset.x-k8s.io/", "trainer.kubeflow.org/")


@dataclass(frozen=True, slots=True)
class Site:
    """The Linkwise annotations that an object's pods will carry."""

    path: str
    said: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Made:
    """A pod as its controller would create it, and the objects with which to judge it."""

    path: str  # of its annotations
    pod: Pod
    objects: Objects


def sites(fields: Fields) -> tuple[Site, ...]:
    """The sites in the order of the object."""
    return tuple(
        Site(f"{path}.annotations", said)
        for path, value in _below_spec(fields)
        if (said := ours(value.get("annotations")))
    )


def templates_of(fields: Fields) -> Iterator[tuple[str, Fields, Fields]]:
    """The path of each place with metadata, its annotations and its labels, as written; the
    object's own come last."""
    for path, value in (*_below_spec(fields), ("", fields)):
        if metadata := mapping(value, "metadata"):
            at = f"{path}.metadata".removeprefix(".")
            yield at, mapping(metadata, "annotations"), mapping(metadata, "labels")


def job_specs(fields: Fields) -> Iterator[tuple[str, Fields]]:
    """The path and the `spec` of each Job that is created from the object, itself included."""
    if not text(fields, "apiVersion").startswith(_WITH_JOBS):
        return
    for path, value in _below_spec(fields):
        if has(value, "template.spec.containers"):
            yield path, value


def _below_spec(fields: Fields) -> Iterator[tuple[str, Fields]]:
    waiting: list[tuple[str, object]] = [("spec", fields.get("spec"))]
    while waiting:  # no recursion: a client determines the depth
        path, value = waiting.pop()
        inside: list[tuple[str, object]] = []
        if isinstance(value, Mapping):
            yield path, value
            inside = [(f"{path}.{key}", item) for key, item in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            inside = [(f"{path}[{place}]", item) for place, item in enumerate(value)]
        waiting += reversed(inside)


def ours(annotations: object) -> Mapping[str, object]:
    if not isinstance(annotations, Mapping):
        return {}
    return {key: value for key, value in annotations.items() if key.startswith(names.PREFIX)}


def pods_made(fields: Fields, namespace: str) -> Iterator[Made]:
    """One pod for each template that names a gang, for the known kinds. A template is left out if
    it comes after MOST_PODS pods of others."""
    wanted = {site.path for site in sites(fields) if names.GANG in site.said}
    if not wanted:
        return
    metadata = mapping(fields, "metadata")
    name = text(metadata, "name") or text(metadata, "generateName") + "…"
    given = {**fields, "metadata": {**metadata, "name": name, "namespace": namespace}}
    objects: dict[ObjectRef, Fields] = {_ref_of(given): given}
    try:
        for each, path, _ in islice(descendants(given, {}), MOST_PODS):
            at = f"{path}.metadata.annotations"
            if each["kind"] != "Pod":
                objects[_ref_of(each)] = each
            elif at in wanted:
                wanted.remove(at)
                with suppress(msgspec.ValidationError):  # the API server refuses such a pod
                    yield Made(at, msgspec.convert(each, Pod), objects)
                if not wanted:
                    return
    except (UnknownControllerError, UnreadableError):
        return


def _ref_of(fields: Fields) -> ObjectRef:
    group, metadata = group_of(text(fields, "apiVersion")), mapping(fields, "metadata")
    return ObjectRef(
        group, text(fields, "kind"), text(metadata, "namespace"), text(metadata, "name")
    )
