"""The places of an object with its pods' annotations, and the pods that its controller creates.

Each kind has its pod templates at other paths, and some kinds have a field of their own for the
pods' annotations. All these fields are called `annotations` and are below `spec`, so the webhook
searches for that name: it works for unknown kinds too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from linkwise.extender.podgrouper.workloads.answer import ObjectRef, Objects
from linkwise.extender.podgrouper.workloads.kinds import (
    JOB,
    JOB_SET,
    MPI_JOB,
    STATEFUL_SET,
    VOLCANO_JOB,
)
from linkwise.kube.fields import Fields, group_of, items, mapping, text
from linkwise.kube.labels import JOB_SET_LABEL, TRAINING, VOLCANO
from linkwise.kube.objects import Pod
from linkwise.topology import names

_REPLICA_SPECS = "ReplicaSpecs"  # of every job of kubeflow.org: pytorchReplicaSpecs, …


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


@dataclass(frozen=True, slots=True)
class _Controller:
    """The controller of a template's pods."""

    ref: ObjectRef
    version: str
    objects: Objects


def sites(fields: Fields) -> tuple[Site, ...]:
    """The sites in the order of the object."""
    found: list[Site] = []
    waiting: list[tuple[str, object]] = [("spec", fields.get("spec"))]
    while waiting:  # no recursion: a client determines the depth
        path, value = waiting.pop()
        inside: list[tuple[str, object]] = []
        if isinstance(value, Mapping):
            said = ours(value.get("annotations"))
            if said:
                found.append(Site(f"{path}.annotations", said))
            inside = [(f"{path}.{key}", item) for key, item in value.items()]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            inside = [(f"{path}[{place}]", item) for place, item in enumerate(value)]
        waiting += reversed(inside)
    return tuple(found)


def ours(annotations: object) -> Mapping[str, object]:
    if not isinstance(annotations, Mapping):
        return {}
    return {key: value for key, value in annotations.items() if key.startswith(names.PREFIX)}


def pods_made(fields: Fields, namespace: str) -> Iterator[Made]:
    """One pod for each template that names a gang, for the known kinds."""
    for path, template, name, labels, controller in _templates(fields, namespace):
        if names.GANG not in mapping(template, "metadata.annotations"):
            continue
        metadata = mapping(template, "metadata")
        owner = {
            "apiVersion": f"{controller.ref.group}/{controller.version}",
            "kind": controller.ref.kind,
            "name": controller.ref.name,
            "uid": "",
            "controller": True,
        }
        try:
            pod = msgspec.convert(
                {
                    "metadata": {
                        "name": name,
                        "namespace": namespace,
                        "labels": {**mapping(metadata, "labels"), **labels},
                        "annotations": mapping(metadata, "annotations"),
                        "ownerReferences": [owner],
                    },
                    "spec": mapping(template, "spec"),
                },
                Pod,
            )
        except msgspec.ValidationError:  # the API server refuses such a pod
            continue
        yield Made(f"{path}.metadata.annotations", pod, controller.objects)


_Template = tuple[str, Fields, str, Mapping[str, str], _Controller]


def _templates(fields: Fields, namespace: str) -> Iterator[_Template]:
    """(path, template, name, labels, controller) of each template's pods."""
    version = text(fields, "apiVersion").rpartition("/")[2]
    kind = (group_of(text(fields, "apiVersion")), text(fields, "kind"))
    name = text(fields, "metadata.name") or text(fields, "metadata.generateName") + "…"
    ref = ObjectRef(*kind, namespace, name)
    owner = _Controller(ref, version, {ref: fields})
    if kind in ((JOB.group, JOB.kind), (STATEFUL_SET.group, STATEFUL_SET.kind)):
        yield "spec.template", mapping(fields, "spec.template"), f"{name}-0", {}, owner
    elif kind == (JOB.group, "CronJob"):
        path = "spec.jobTemplate.spec"
        ref = ObjectRef(JOB.group, JOB.kind, namespace, name)
        owner = _Controller(ref, version, {ref: {"spec": mapping(fields, path)}})
        yield f"{path}.template", mapping(fields, f"{path}.template"), f"{name}-0", {}, owner
    elif kind == (JOB_SET.group, JOB_SET.kind):
        yield from _of_job_set(fields, owner)
    elif kind == (VOLCANO_JOB.group, VOLCANO_JOB.kind):
        for place, task in enumerate(items(fields, "spec.tasks")):
            labels = {VOLCANO + "task-spec": text(task, "name")}
            path = f"spec.tasks[{place}].template"
            yield path, mapping(task, "template"), f"{name}-{text(task, 'name')}-0", labels, owner
    elif kind[0] == MPI_JOB.group:
        yield from _of_training_job(fields, owner)


def _of_job_set(fields: Fields, owner: _Controller) -> Iterator[_Template]:
    name = owner.ref.name
    for place, item in enumerate(items(fields, "spec.replicatedJobs")):
        role = text(item, "name")
        labels = {JOB_SET_LABEL + "jobset-name": name, JOB_SET_LABEL + "replicatedjob-name": role}
        job = ObjectRef(JOB.group, JOB.kind, owner.ref.namespace, f"{name}-{role}-0")
        path = f"spec.replicatedJobs[{place}].template.spec.template"
        template = mapping(item, "template.spec.template")
        yield path, template, f"{job.name}-0", labels, _Controller(job, "v1", owner.objects)


def _of_training_job(fields: Fields, owner: _Controller) -> Iterator[_Template]:
    name = owner.ref.name
    for field in mapping(fields, "spec"):
        if not field.endswith(_REPLICA_SPECS):
            continue
        for role, spec in mapping(fields, f"spec.{field}").items():
            if not isinstance(spec, Mapping):
                continue
            labels: Mapping[str, str] = {}
            if owner.version == "v2beta1":
                labels = {
                    TRAINING + "operator-name": "mpi-operator",
                    TRAINING + "job-name": name,
                    TRAINING + "job-role": role.lower(),
                }
            path, template = f"spec.{field}.{role}.template", mapping(spec, "template")
            yield path, template, f"{name}-{role.lower()}-0", labels, owner
