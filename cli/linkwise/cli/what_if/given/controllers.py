"""Drafts the pods that a workload's controller would create, as far as they differ from their
template.

Covers what `linkwise.extender.podgrouper` reads: names, labels, annotations and the owner of each
pod, as the controllers of docs/workloads.md write them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from linkwise.extender.podgrouper.workloads.answer import ObjectRef
from linkwise.extender.podgrouper.workloads.kinds import (
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    MPI_JOB,
    RAY_CLUSTER,
    STATEFUL_SET,
    VOLCANO_JOB,
)
from linkwise.kube.fields import Fields, at, group_of, items, mapping, number, text
from linkwise.kube.labels import COMPLETION_INDEX, JOB_SET_LABEL, LWS, RAY, TRAINING, VOLCANO

MOST_PODS = 4096  # per object: the maximum of a gang
_REPLICA_SPECS = "ReplicaSpecs"  # for every job of kubeflow.org: pytorchReplicaSpecs, …
_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Maker:
    """An object that controls pods."""

    ref: ObjectRef
    api_version: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A pod to create."""

    path: str  # of its template in the given object
    template: Fields
    name: str
    maker: Maker
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


class UnknownControllerError(Exception):
    """It is unknown which pods this kind of object creates."""


Objects = Mapping[ObjectRef, Fields]
_Made = tuple[Iterator[Draft], Objects]
_Kind = tuple[str, str]


def drafts(fields: Fields, namespace: str, name: str) -> tuple[list[Draft], Objects]:
    """Return the pods of one object called *name*, and the objects that they refer to. An object
    without pods, such as a Service or a PodGroup, has no drafts.

    Raises UnknownControllerError for an unknown kind with a pod template.
    """
    api_version, kind = text(fields, "apiVersion"), text(fields, "kind")
    ref = ObjectRef(group_of(api_version), kind, namespace, name)
    maker = Maker(ref, api_version)
    make = _KINDS.get((ref.group, kind))
    if any(key.endswith(_REPLICA_SPECS) for key in mapping(fields, "spec")):
        make = _training_job if ref.group == MPI_JOB.group else None
    if make is None:
        if _has_template(fields):
            raise UnknownControllerError(ref.qualified_kind)
        return [], {ref: fields}
    made, objects = make(fields, maker)
    found: list[Draft] = []
    for draft in made:
        found.append(draft)
        if len(found) > MOST_PODS:
            break
    return found, {ref: fields, **objects}


def _has_template(fields: Fields) -> bool:
    """True if there is a pod's spec anywhere below `spec`."""
    waiting: list[object] = [fields.get("spec")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            if isinstance(value.get("containers"), list):
                return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False


def _copies(fields: Fields, maker: Maker) -> _Made:
    """Draft the pods of a ReplicaSet, a StatefulSet or a ReplicationController."""
    count = number(fields, "spec.replicas", 1)
    return _of_template(fields, "spec.template", maker, count, maker.ref.name), {}


def _deployment(fields: Fields, maker: Maker) -> _Made:
    ref = replace(maker.ref, kind="ReplicaSet", name=f"{maker.ref.name}-what-if")
    count = number(fields, "spec.replicas", 1)
    made = _of_template(fields, "spec.template", Maker(ref, "apps/v1"), count, ref.name)
    return made, {}


def _of_template(fields: Fields, path: str, maker: Maker, count: int, name: str) -> Iterator[Draft]:
    template = mapping(fields, path)
    for index in range(count):
        yield Draft(path, template, f"{name}-{index}", maker)


def _job(fields: Fields, maker: Maker) -> _Made:
    return _pods_of_job(fields, "spec", "spec.template", maker), {}


def _pods_of_job(fields: Fields, spec: str, path: str, maker: Maker) -> Iterator[Draft]:
    """Draft the pods that run first: as many as may run at once, or as there are in all."""
    parallelism = number(fields, f"{spec}.parallelism", 1)
    completions = number(fields, f"{spec}.completions", parallelism)
    indexed = text(fields, f"{spec}.completionMode") == "Indexed"
    for draft in _of_template(fields, path, maker, min(parallelism, completions), maker.ref.name):
        index = draft.name.rpartition("-")[2]
        said = {COMPLETION_INDEX: index} if indexed else _NOTHING
        yield replace(draft, labels=said, annotations=said)


def _cron_job(fields: Fields, maker: Maker) -> _Made:
    """Draft one run of it."""
    ref = replace(maker.ref, kind=JOB.kind)
    path = "spec.jobTemplate.spec"
    made = _pods_of_job(fields, path, f"{path}.template", Maker(ref, maker.api_version))
    job = {"metadata": {"name": ref.name}, "spec": mapping(fields, path)}
    return made, {ref: job}


def _job_set(fields: Fields, maker: Maker) -> _Made:
    return _jobs_of_set(fields, maker), {}


def _jobs_of_set(fields: Fields, maker: Maker) -> Iterator[Draft]:
    name = maker.ref.name
    for place, item in enumerate(items(fields, "spec.replicatedJobs")):
        role = text(item, "name")
        path = f"spec.replicatedJobs[{place}].template.spec.template"
        template = mapping(item, "template.spec.template")
        for job in range(number(item, "replicas", 1)):
            ref = ObjectRef(JOB.group, JOB.kind, maker.ref.namespace, f"{name}-{role}-{job}")
            parallelism = number(item, "template.spec.parallelism", 1)
            count = min(parallelism, number(item, "template.spec.completions", parallelism))
            for index in range(count):
                labels = {
                    JOB_SET_LABEL + "jobset-name": name,
                    JOB_SET_LABEL + "replicatedjob-name": role,
                    JOB_SET_LABEL + "job-index": str(job),
                    COMPLETION_INDEX: str(index),
                }
                by = Maker(ref, "batch/v1")
                said = {COMPLETION_INDEX: str(index)}
                yield Draft(path, template, f"{ref.name}-{index}", by, labels, said)


def _training_job(fields: Fields, maker: Maker) -> _Made:
    return _replicas(fields, maker), {}


def _replicas(fields: Fields, maker: Maker) -> Iterator[Draft]:
    name = maker.ref.name
    by_mpi_operator = maker.api_version.endswith("/v2beta1")
    for key in mapping(fields, "spec"):
        if not key.endswith(_REPLICA_SPECS):
            continue
        for role_said, spec in mapping(fields, f"spec.{key}").items():
            if not isinstance(spec, Mapping):
                continue
            role, path = role_said.lower(), f"spec.{key}.{role_said}.template"
            for index in range(number(spec, "replicas", 1)):
                labels = {TRAINING + "job-name": name, TRAINING + "replica-index": str(index)}
                by, pod = maker, f"{name}-{role}-{index}"
                if by_mpi_operator:
                    labels = _labels_of_mpi(fields, labels, role, index)
                    if role == "launcher":
                        pod = f"{name}-launcher"
                        ref = replace(maker.ref, group=JOB.group, kind=JOB.kind, name=pod)
                        by = Maker(ref, "batch/v1")
                else:
                    labels[TRAINING + "replica-type"] = role
                yield Draft(path, mapping(spec, "template"), pod, by, labels)


def _labels_of_mpi(
    fields: Fields, labels: Mapping[str, str], role: str, index: int
) -> dict[str, str]:
    # If both work, the launcher has label 0 and the first worker label 1.
    together = at(fields, "spec.runLauncherAsWorker") is True
    place = index + 1 if together and role == "worker" else index
    return {
        **labels,
        TRAINING + "operator-name": "mpi-operator",
        TRAINING + "job-role": role,
        TRAINING + "replica-index": str(place),
    }


def _volcano_job(fields: Fields, maker: Maker) -> _Made:
    return _tasks(fields, maker), {}


def _tasks(fields: Fields, maker: Maker) -> Iterator[Draft]:
    for place, task in enumerate(items(fields, "spec.tasks")):
        path, name = f"spec.tasks[{place}].template", text(task, "name")
        for index in range(number(task, "replicas", 1)):
            labels = {VOLCANO + "task-spec": name, VOLCANO + "task-index": str(index)}
            pod = f"{maker.ref.name}-{name}-{index}"
            yield Draft(path, mapping(task, "template"), pod, maker, labels, labels)


def _leader_worker_set(fields: Fields, maker: Maker) -> _Made:
    return _groups(fields, maker), {}


def _groups(fields: Fields, maker: Maker) -> Iterator[Draft]:
    name, within = maker.ref.name, "spec.leaderWorkerTemplate"
    size = number(fields, f"{within}.size", 1)
    leader = f"{within}.leaderTemplate"
    if not mapping(fields, leader):
        leader = f"{within}.workerTemplate"
    for group in range(number(fields, "spec.replicas", 1)):
        for index in range(size):
            path = leader if index == 0 else f"{within}.workerTemplate"
            owner = name if index == 0 else f"{name}-{group}"
            ref = replace(maker.ref, group=STATEFUL_SET.group, kind=STATEFUL_SET.kind, name=owner)
            pod = f"{name}-{group}" + (f"-{index}" if index else "")
            labels = {
                LWS + "name": name,
                LWS + "group-index": str(group),
                LWS + "worker-index": str(index),
            }
            by, said = Maker(ref, "apps/v1"), {LWS + "size": str(size)}
            yield Draft(path, mapping(fields, path), pod, by, labels, said)


def _ray_cluster(fields: Fields, maker: Maker) -> _Made:
    return _ray_pods(fields, "spec", maker), {}


def _ray_above(where: str) -> Callable[[Fields, Maker], _Made]:
    """Unpack a RayJob or a RayService, which contains a RayCluster."""

    def make(fields: Fields, maker: Maker) -> _Made:
        ref = replace(maker.ref, kind=RAY_CLUSTER.kind, name=f"{maker.ref.name}-cluster")
        cluster = {"metadata": {"name": ref.name}, "spec": mapping(fields, where)}
        return _ray_pods(fields, where, Maker(ref, maker.api_version)), {ref: cluster}

    return make


def _ray_pods(fields: Fields, spec: str, maker: Maker) -> Iterator[Draft]:
    name = maker.ref.name
    head = f"{spec}.headGroupSpec.template"
    labels = {RAY + "cluster": name, RAY + "node-type": "head", RAY + "group": "headgroup"}
    yield Draft(head, mapping(fields, head), f"{name}-head", maker, labels)
    scales = at(fields, f"{spec}.enableInTreeAutoscaling") is True
    for place, group in enumerate(items(fields, f"{spec}.workerGroupSpecs")):
        if at(group, "suspend") is True:
            continue
        path, said = f"{spec}.workerGroupSpecs[{place}].template", text(group, "groupName")
        least = number(group, "minReplicas", 0)
        asked = least if scales else max(least, number(group, "replicas", least))
        hosts = max(1, number(group, "numOfHosts", 1))
        for replica in range(min(asked, number(group, "maxReplicas", asked))):
            for host in range(hosts):
                labels = {
                    RAY + "cluster": name,
                    RAY + "node-type": "worker",
                    RAY + "group": said,
                    RAY + "worker-group-replica-index": str(replica),
                    RAY + "worker-group-replica-name": f"{said}-{replica}",
                    RAY + "replica-host-index": str(host),
                }
                pod = f"{name}-{said}-worker-{replica}-{host}"
                yield Draft(path, mapping(group, "template"), pod, maker, labels)


def _never(fields: Fields, maker: Maker) -> _Made:  # noqa: ARG001
    raise UnknownControllerError(maker.ref.qualified_kind)


_KINDS: Mapping[_Kind, Callable[[Fields, Maker], _Made]] = {
    (JOB.group, JOB.kind): _job,
    (JOB.group, "CronJob"): _cron_job,
    ("apps", "Deployment"): _deployment,
    ("apps", "ReplicaSet"): _copies,
    ("apps", "StatefulSet"): _copies,
    ("apps", "DaemonSet"): _never,  # has a pod on every node
    ("trainer.kubeflow.org", "TrainJob"): _never,  # its template is in a runtime elsewhere
    ("", "ReplicationController"): _copies,
    (JOB_SET.group, JOB_SET.kind): _job_set,
    (VOLCANO_JOB.group, VOLCANO_JOB.kind): _volcano_job,
    (LEADER_WORKER_SET.group, LEADER_WORKER_SET.kind): _leader_worker_set,
    (RAY_CLUSTER.group, RAY_CLUSTER.kind): _ray_cluster,
    (RAY_CLUSTER.group, "RayJob"): _ray_above("spec.rayClusterSpec"),
    (RAY_CLUSTER.group, "RayService"): _ray_above("spec.rayClusterConfig"),
}


def pod_of(draft: Draft, uid: str, owner_uid: str) -> dict[str, Any]:
    """Return the pod as JSON."""
    metadata = mapping(draft.template, "metadata")
    owner = {
        "apiVersion": draft.maker.api_version,
        "kind": draft.maker.ref.kind,
        "name": draft.maker.ref.name,
        "uid": owner_uid,
        "controller": True,
    }
    return {
        "metadata": {
            "name": draft.name,
            "namespace": draft.maker.ref.namespace,
            "uid": uid,
            "labels": {**mapping(metadata, "labels"), **draft.labels},
            "annotations": {**mapping(metadata, "annotations"), **draft.annotations},
            "ownerReferences": [owner],
        },
        "spec": mapping(draft.template, "spec"),
    }
