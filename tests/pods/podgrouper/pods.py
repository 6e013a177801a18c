"""Pods and owners as operators make them, in a line each."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

import msgspec

from linkwise.kube.fields import group_of
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import (
    Answer,
    IndexedJobs,
    Missing,
    NeedsOwner,
    ObjectRef,
    Objects,
    Recognised,
)
from linkwise.pods.podgrouper.workloads.systems import READ

GPU = "nvidia.com/gpu"
MAY_BE_READ = {(kind.group, kind.kind) for kind in READ}
Object = dict[str, Any]
ODD_VALUES: list[Any] = [None, True, -1, 10**30, 1.5, math.nan, "", "x", [], [[]], {}, {"x": []}]


def template(gpus: int = 1, **metadata: Any) -> Object:
    container = {"name": "main", "resources": {"limits": {GPU: str(gpus)}} if gpus else {}}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def owner(kind: str, name: str, spec: Object | None = None, by: Object | None = None) -> Object:
    """*kind* is like `kubeflow.org/v1 TFJob`; *by* is what controls it."""
    api_version, _, word = kind.rpartition(" ")
    metadata: Object = {"name": name, "namespace": "ml", "uid": uid_of(f"{kind} {name}")}
    if by is not None:
        metadata["ownerReferences"] = [reference(by)]
    return {"apiVersion": api_version, "kind": word, "metadata": metadata, "spec": spec or {}}


def reference(to: Object, *, controller: bool = True) -> Object:
    metadata = to["metadata"]
    return {
        "apiVersion": to["apiVersion"],
        "kind": to["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": controller,
    }


def pod(
    name: str,
    by: Object | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    gpus: int = 1,
    **spec: Any,
) -> Object:
    metadata = {
        "name": name,
        "namespace": "ml",
        "uid": uid_of(f"pod {name}"),
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
        "ownerReferences": [] if by is None else [reference(by)],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**template(gpus)["spec"], **spec},
    }


def like(made: Object, name: str, gpus: int) -> Object:
    """A pod that says the same as *made*, with another name and so many GPUs."""
    metadata = {**made["metadata"], "name": name, "uid": uid_of(f"pod {name}")}
    return {**made, "metadata": metadata, "spec": {**made["spec"], **template(gpus)["spec"]}}


def uid_of(text: str) -> str:
    return sha1(text.encode()).hexdigest()[:12]


def ref_of(made: Object) -> ObjectRef:
    metadata = made["metadata"]
    group = group_of(made["apiVersion"])
    return ObjectRef(group, made["kind"], metadata["namespace"], metadata["name"])


@dataclass(frozen=True)
class Told:
    answer: Answer
    gets: tuple[ObjectRef, ...]  # what had to be read, in order


def told(
    made: Object,
    objects: Iterable[Object] = (),
    *,
    indexed_jobs: IndexedJobs = IndexedJobs.ALL,
    missing: Missing = Missing.NOT_FOUND,
) -> Told:
    """Recognise as the extender does: read what is needed, one object after the other."""
    server = {ref_of(item): item for item in objects}
    known: dict[ObjectRef, Mapping[str, object] | Missing] = {}
    gets: list[ObjectRef] = []
    parsed = msgspec.convert(made, Pod)
    while True:
        answer = recognise(parsed, known, indexed_jobs=indexed_jobs)
        if not isinstance(answer, NeedsOwner) or answer.missing:
            return Told(answer, tuple(gets))
        assert answer.owner not in known, f"{answer.owner} was asked for twice"
        assert (answer.owner.group, answer.owner.kind) in MAY_BE_READ
        gets.append(answer.owner)
        known[answer.owner] = server.get(answer.owner, missing)


def gang(made: Object, *objects: Object) -> Recognised:
    answer = told(made, objects).answer
    assert isinstance(answer, Recognised), answer
    return answer


def needed(made: Object, objects: Objects) -> NeedsOwner:
    answer = recognise(msgspec.convert(made, Pod), objects)
    assert isinstance(answer, NeedsOwner), answer
    return answer


def broken(whole: Object) -> Iterator[Object]:
    """Copies of it, each with one odd value in the place of a right one, at any depth."""
    copy = msgspec.json.decode(msgspec.json.encode(whole))
    yield from (copy for _ in _break(copy))


def _break(inside: Any) -> Iterator[None]:
    for place in list(inside) if isinstance(inside, dict) else range(len(inside)):
        right = inside[place]
        if isinstance(right, dict | list):
            yield from _break(right)
        for odd in ODD_VALUES:
            inside[place] = odd
            yield
        inside[place] = right
