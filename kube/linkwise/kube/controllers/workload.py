"""From a workload's manifest to its pods, step by step as its controllers create them.

`children` is one step: a JobSet's Jobs, a Job's pods. `descendants` and `pods_of` take all steps.
docs/workloads.md says where this is simpler than the controllers are.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from linkwise.kube.controllers.batch import (
    Given,
    cron_job,
    job,
    job_set,
    unknown,
    volcano_job,
)
from linkwise.kube.controllers.child import Child, UnknownControllerError
from linkwise.kube.controllers.kubeflow import REPLICA_SPECS, training_job
from linkwise.kube.controllers.order import After
from linkwise.kube.controllers.podless import creates_no_pods
from linkwise.kube.controllers.serving import (
    copies,
    deployment,
    leader_worker_set,
    model_serving,
    pod_set,
    ray_above,
    ray_cluster,
    ray_job,
    stateful_set,
)
from linkwise.kube.controllers.trainer import train_job
from linkwise.kube.fields import Fields, UnreadableError, group_of, mapping, text
from linkwise.kube.objects import is_extended

MOST_PODS = 4096
"""Of one object, as of one gang."""

_KUBEFLOW = "kubeflow.org"
# Its operator made a StatefulSet of workers and a Job of the launcher; later ones read its fields.
_OLD_MPI_JOB = (_KUBEFLOW, "MPIJob"), f"{_KUBEFLOW}/v1alpha2"
_KINDS: Mapping[tuple[str, str], Callable[[Fields, Given], Iterator[Child]]] = {
    ("batch", "Job"): job,
    ("batch", "CronJob"): cron_job,
    ("apps", "Deployment"): deployment,
    ("apps", "ReplicaSet"): copies,
    ("apps", "StatefulSet"): stateful_set,
    ("apps", "DaemonSet"): unknown,  # has a pod on every node
    ("", "ReplicationController"): copies,
    ("jobset.x-k8s.io", "JobSet"): job_set,
    ("trainer.kubeflow.org", "TrainJob"): train_job,
    # Templates, which others make pods of.
    ("", "PodTemplate"): lambda _fields, _given: iter(()),
    ("trainer.kubeflow.org", "TrainingRuntime"): lambda _fields, _given: iter(()),
    ("trainer.kubeflow.org", "ClusterTrainingRuntime"): lambda _fields, _given: iter(()),
    ("batch.volcano.sh", "Job"): volcano_job,
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): leader_worker_set,
    ("orchestration.aibrix.ai", "PodSet"): pod_set,
    ("workload.serving.volcano.sh", "ModelServing"): model_serving,
    ("ray.io", "RayCluster"): ray_cluster,
    ("ray.io", "RayJob"): ray_job,
    ("ray.io", "RayService"): ray_above("spec.rayClusterConfig"),
}


KNOWN_KINDS = frozenset({"Pod", *(kind for _, kind in _KINDS)})


@dataclass(frozen=True, slots=True)
class MadePod:
    """A pod to create, and the path of its template in the given object. *after*: what it and the
    objects between come after."""

    body: Mapping[str, Any]
    path: str
    after: tuple[After, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """What comes of one object: its pods, and the objects between it and them. *left_out* is empty,
    or says for people why an object without pods may still have some."""

    pods: tuple[MadePod, ...]
    between: tuple[Fields, ...]
    left_out: str = ""


def qualified_kind(fields: Fields) -> str:
    """Return a kind with its group, like `Job.batch`."""
    group, kind = group_of(text(fields, "apiVersion")), text(fields, "kind")
    return f"{kind}.{group}" if group else kind


def children(fields: Fields, given: Given) -> Iterator[Child]:
    """Yield what the controller of *fields* creates; nothing for an object without a pod template,
    such as a Service or a PodGroup.

    Raises UnknownControllerError for an object with a template of which it is unknown how many pods
    its controller creates, and UnreadableError if a count of pods is none.
    """
    make = _maker(fields)
    if make is None:
        if _has_template(fields):
            raise UnknownControllerError(qualified_kind(fields))
        return
    try:
        yield from make(fields, given)
    except UnknownControllerError:
        raise UnknownControllerError(qualified_kind(fields)) from None


def _maker(fields: Fields) -> Callable[[Fields, Given], Iterator[Child]] | None:
    kind = _kind(fields)
    if kind == _OLD_MPI_JOB[0] and text(fields, "apiVersion") == _OLD_MPI_JOB[1]:
        return unknown
    if kind[0] == _KUBEFLOW and any(k.endswith(REPLICA_SPECS) for k in mapping(fields, "spec")):
        return training_job
    return _KINDS.get(kind)


def _kind(fields: Fields) -> tuple[str, str]:
    return group_of(text(fields, "apiVersion")), text(fields, "kind")


def pods_of(fields: Fields, given: Given) -> Made:
    """Return the first pods of one object, with all objects between it and them. Raises as
    `children`, and UnreadableError if there are more than MOST_PODS."""
    pods: list[MadePod] = []
    between: list[Fields] = []
    for each, path, after in descendants(fields, given):
        if max(len(pods), len(between)) >= MOST_PODS:
            raise UnreadableError(f"more than {MOST_PODS} pods")
        if each["kind"] == "Pod":
            pods.append(MadePod(each, path, after))
        else:
            between.append(each)
    if _maker(fields) is None and not creates_no_pods(*_kind(fields)):
        name = f"{text(fields, 'metadata.namespace')}/{text(fields, 'metadata.name')}"
        left_out = f"{qualified_kind(fields)} {name}: unknown kind without a pod template: left out"
        return Made((), (), left_out)
    return Made(tuple(pods), tuple(between))


def descendants(
    fields: Fields,
    given: Given,
    source: Callable[[str], str] = lambda path: path,
    after: tuple[After, ...] = (),
) -> Iterator[tuple[Mapping[str, Any], str, tuple[After, ...]]]:
    """Yield the first pods of one object and all objects between, each after its creator, with the
    path from which it comes, and what it comes after. There may be billions. Raises as `children`.

    An object between gets a uid made of its creator's, if that has one.
    """
    for each in _located(children(fields, given), source):
        before = after + each.after
        if each.body["kind"] == "Pod":
            yield each.body, source(each.outer), before
            continue
        metadata, uid = each.body["metadata"], text(fields, "metadata.uid")
        named = {**metadata, "uid": f"{uid}/{metadata['name']}"} if uid else metadata
        body = {**each.body, "metadata": named}
        yield body, source(each.outer), before
        yield from descendants(body, given, _through(each, source), before)


def _through(made: Child, source: Callable[[str], str]) -> Callable[[str], str]:
    return lambda path: source(made.source(path))


def _located(found: Iterator[Child], source: Callable[[str], str]) -> Iterator[Child]:
    """Name the field of a wrong count by its path in the given object."""
    try:
        yield from found
    except UnreadableError as error:
        raise UnreadableError(source(str(error))) from None


def _has_template(fields: Fields) -> bool:
    """True if a pod's spec or a container's devices are anywhere in the object. A field that only
    describes a container, such as KServe's `predictor.model`, has devices like one."""
    waiting = [value for key, value in fields.items() if key not in ("metadata", "status")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            amounts = (mapping(value, f"resources.{of}") for of in ("limits", "requests"))
            if isinstance(value.get("containers"), list) or any(
                is_extended(str(name)) for each in amounts for name in each
            ):
                return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False
