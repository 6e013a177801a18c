"""The job of the question: its manifests' pods, as their controllers would create them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from linkwise.cli.documents import (
    Fields,
)
from linkwise.cli.errors import BadInputError
from linkwise.cli.pod_source import GivenPod, read_manifests
from linkwise.cli.what_if.given.listing import PriorityClass
from linkwise.kube.controllers.order import After
from linkwise.kube.objects import (
    Pod,
    PodStatus,
    Resources,
    SchedulingGate,
    Toleration,
    is_extended,
)
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.topology import names

change = msgspec.structs.replace
_UID = "what-if"  # prefix of the uids of pods and objects that do not exist yet
_GATES = (SchedulingGate(name=names.GATE),)
_ITS_PODS = "; of another kind, pass its pods, as `kubectl get pods -o yaml` prints them"


@dataclass(frozen=True, slots=True)
class Job:
    pods: tuple[Pod, ...]
    objects: Mapping[ObjectRef, Fields]
    titles: tuple[str, ...]  # like `Job.batch ml/train`
    title_of: Mapping[str, str]  # uid of a pod -> the object that it comes of, one of the titles
    places: Mapping[str, str]  # uid of a pod -> place of its template
    notes: tuple[str, ...]
    order: Mapping[str, tuple[After, ...]]  # uid of a pod -> what it comes after
    near_misses: tuple[str, ...]  # of the notes: keys that look like annotations of Linkwise


def read_job(
    paths: Sequence[str],
    namespace: str,
    classes: Mapping[str, PriorityClass],
    now: float,
    tolerated: Collection[str] = (),
) -> Job:
    """Read the job. Raises BadInputError with file, document and field.

    Pods tolerate taints whose key is an extended resource that they take, if it is in *tolerated*:
    so the admission plugin ExtendedResourceToleration has it.
    """
    manifests = read_manifests("--submit", paths, namespace, _UID)
    for unknown in manifests.unknown:
        raise BadInputError(
            f"{unknown.place}: {unknown.kind} is not understood: expected pods, or an object such "
            f"as a Job or a JobSet that says how many it makes{_ITS_PODS}"
        )
    notes = dict.fromkeys((*(each.why for each in manifests.left_out), *manifests.near_misses))
    found: dict[str, GivenPod] = {}
    for given in manifests.pods:
        first = found.setdefault(given.pod.key, given)
        if first is not given:
            there = first.place.removeprefix("--submit ")
            raise BadInputError(f"{given.place}: pod {given.pod.key} is also at {there}")
    if not found:
        kinds = sorted({ref.qualified_kind for ref in manifests.given})
        of = f"only {', '.join(kinds)}" if kinds else "nothing"
        raise BadInputError(
            f"--submit {', '.join(paths)}: {of} there: expected a job or a pod"
            f"{_ITS_PODS if kinds else ''}"
        )
    ready = [
        _tolerating(_as_created(each.pod, classes, now, notes), tolerated, notes)
        for each in found.values()
    ]
    by_uid = {pod.metadata.uid: each for pod, each in zip(ready, found.values(), strict=True)}
    titles = {uid: str(each.given) for uid, each in by_uid.items()}
    return Job(
        tuple(ready),
        manifests.objects,
        tuple(dict.fromkeys(titles.values())),
        titles,
        {uid: each.place for uid, each in by_uid.items()},
        tuple(notes),
        {uid: each.after for uid, each in by_uid.items()},
        manifests.near_misses,
    )


def takes(pod: Pod, resources: Collection[str]) -> bool:
    return any(
        name in resources for each in _resources(pod) for name in (*each.limits, *each.requests)
    )


def _resources(pod: Pod) -> Iterator[Resources]:
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        yield container.resources


def _tolerating(pod: Pod, tolerated: Collection[str], notes: dict[str, None]) -> Pod:
    taken = {name for each in _resources(pod) for name in (*each.limits, *each.requests)}
    more = []
    for name in sorted(taken.intersection(tolerated)):
        toleration = Toleration(key=name, operator="Exists")
        if toleration not in pod.spec.tolerations:
            more.append(toleration)
            notes[
                f"taints {name} count as tolerated, as by the admission plugin "
                "ExtendedResourceToleration; if there is none: --no-extended-resource-toleration"
            ] = None
    return change(pod, spec=change(pod.spec, tolerations=(*pod.spec.tolerations, *more)))


def _as_created(
    pod: Pod, classes: Mapping[str, PriorityClass], now: float, notes: dict[str, None]
) -> Pod:
    """Return the pod as the API server stores it at *now*: behind Linkwise's gate alone, or without
    any if it takes no devices."""
    meta, spec = pod.metadata, pod.spec
    uid = meta.uid or pod.key
    others = sorted({gate.name for gate in spec.scheduling_gates} - {names.GATE})
    if others:
        notes[f"scheduling gates {', '.join(others)} count as lifted"] = None
    said = {k: v for k, v in meta.annotations.items() if k not in names.BY_EXTENDER}
    priority, policy = _priority(pod, classes, notes)
    return change(
        pod,
        metadata=change(
            meta,
            uid=uid if uid.startswith(_UID) else f"{_UID}/{uid}",
            annotations=said,
            creation_timestamp=datetime.fromtimestamp(now, UTC),
            deletion_timestamp=None,
        ),
        spec=change(
            spec,
            node_name="",
            scheduling_gates=_GATES if takes_devices(pod) else (),
            priority=priority,
            preemption_policy=policy,
        ),
        status=PodStatus(),
    )


def takes_devices(pod: Pod) -> bool:
    """Whether the core may have to place it."""
    claims = pod.spec.resource_claims or names.CLAIMS in pod.metadata.annotations
    return bool(claims or devices_of(pod))


def devices_of(pod: Pod) -> set[str]:
    """Return the names of the extended resources that it takes."""
    asked = (name for each in _resources(pod) for name in (*each.limits, *each.requests))
    return {name for name in asked if is_extended(name)}


def _priority(
    pod: Pod, classes: Mapping[str, PriorityClass], notes: dict[str, None]
) -> tuple[int, str]:
    """Return the priority, which the API server takes from the class."""
    spec = pod.spec
    name = spec.priority_class_name
    found = classes.get(name) if name else None
    if not name:
        found = next((each for each in classes.values() if each.global_default), None)
    if found is not None:
        return found.value, spec.preemption_policy or found.preemption_policy
    if name and not spec.priority:
        notes[
            f"PriorityClass {name} was not given: it counts as priority 0; "
            "`kubectl get nodes,pods,priorityclasses -A`"
        ] = None
    return spec.priority, spec.preemption_policy
