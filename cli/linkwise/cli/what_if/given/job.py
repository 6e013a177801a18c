"""The job of the question: its manifests' pods, as their controllers would create them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from linkwise.cli.documents import (
    Fields,
    Name,
    controller_name,
    objects_in,
    ref_of,
    unreadable,
)
from linkwise.cli.errors import BadInputError
from linkwise.cli.text_file import read_text, shown
from linkwise.cli.what_if.given.listing import PriorityClass
from linkwise.kube.controllers.batch import Given
from linkwise.kube.controllers.child import UnknownControllerError, generated
from linkwise.kube.controllers.order import After
from linkwise.kube.controllers.workload import MadePod, pods_of
from linkwise.kube.documents import without_nulls
from linkwise.kube.fields import UnreadableError, controller_of, text
from linkwise.kube.objects import (
    Container,
    Pod,
    PodStatus,
    Resources,
    SchedulingGate,
    Toleration,
    is_extended,
    milli,
    whole,
)
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.topology import names

change = msgspec.structs.replace
_UID = "what-if"  # prefix of the uids of pods and objects that do not exist yet
_GATES = (SchedulingGate(name=names.GATE),)


@dataclass(frozen=True, slots=True)
class Job:
    pods: tuple[Pod, ...]
    objects: Mapping[ObjectRef, Fields]
    titles: tuple[str, ...]  # like `Job.batch ml/train`
    title_of: Mapping[str, str]  # uid of a pod -> the object that it comes of, one of the titles
    places: Mapping[str, str]  # uid of a pod -> place of its template
    notes: tuple[str, ...]
    order: Mapping[str, tuple[After, ...]]  # uid of a pod -> what it comes after


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
    pods: dict[tuple[str, str], Pod] = {}
    places: dict[str, str] = {}
    order: dict[str, tuple[After, ...]] = {}
    objects: dict[ObjectRef, Fields] = {}
    title_of: dict[tuple[str, str], str] = {}
    seen: list[str] = []
    notes: dict[str, None] = {}
    makers: set[Name] = set()
    items = _items(paths, namespace)
    given = {(text(item, "kind"), text(item, "metadata.name")): item for _, item in items}
    for where, item in items:
        ref = ref_of(item, where)
        seen.append(ref.qualified_kind)
        if controller_name(item, ref) in makers:
            continue  # counted with its owner
        made, around = _pods_of(item, ref, given, where, notes)
        objects.update(around)
        if made:
            makers.add((ref.namespace, ref.kind, ref.name))
        for place, pod, after in made:
            key = (pod.metadata.namespace, pod.metadata.name)
            if key in pods:
                first = places[pods[key].metadata.uid]
                raise BadInputError(
                    f"{place}: pod {'/'.join(key)} is also at {first.removeprefix('--submit ')}"
                )
            pods[key], title_of[key] = pod, str(ref)
            places[pod.metadata.uid], order[pod.metadata.uid] = place, after
    if not pods:
        of = f"only {', '.join(sorted(set(seen)))}" if seen else "nothing"
        raise BadInputError(f"--submit {', '.join(paths)}: {of} there: expected a job or a pod")
    ready = tuple(
        _tolerating(_as_created(pod, classes, now, notes), tolerated, notes)
        for pod in pods.values()
    )
    titles = {pod.metadata.uid: title for pod, title in zip(ready, title_of.values(), strict=True)}
    said = tuple(dict.fromkeys(titles.values()))
    return Job(ready, objects, said, titles, places, tuple(notes), order)


def takes(pod: Pod, resource: str) -> bool:
    return any(
        resource in container.resources.limits or resource in container.resources.requests
        for _, container in _containers(pod)
    )


def _items(paths: Sequence[str], namespace: str) -> list[tuple[str, Fields]]:
    """Yield the objects, those without an owner first."""
    found = [
        (where, _named(without_nulls(given), namespace, where))
        for path in paths
        for where, given in objects_in(read_text("--submit", path), shown("--submit", path))
    ]
    return sorted(found, key=lambda each: bool(controller_of(each[1])))


def _named(item: Fields, namespace: str, where: str) -> Fields:
    """Fill in the name and namespace that the API server would give it."""
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        return item  # `ref_of` reports what is wrong
    prefix = metadata.get("generateName")
    # The API server gives each object of one prefix a name of its own.
    has_prefix = isinstance(prefix, str) and prefix
    said = {"name": generated(str(prefix).removesuffix("-"), where)} if has_prefix else {}
    home = {} if metadata.get("namespace") else {"namespace": namespace}
    api_version, kind = item.get("apiVersion"), item.get("kind")
    uid = f"{_UID}/{api_version}/{kind}/{namespace}/{metadata.get('name') or where}"
    return {**item, "metadata": {"uid": uid, **said, **metadata, **home}}


_Placed = list[tuple[str, Pod, tuple[After, ...]]]


def _pods_of(
    item: Fields, ref: ObjectRef, given: Given, where: str, notes: dict[str, None]
) -> tuple[_Placed, Mapping[ObjectRef, Fields]]:
    if (ref.group, ref.kind) == ("", "Pod"):
        fields = {"metadata": item["metadata"], "spec": item.get("spec")}
        return [(where, _pod(fields, where), ())], {}
    try:
        made = pods_of(item, given)
    except UnknownControllerError as error:
        raise BadInputError(
            f"{where}: {error} is not understood: expected pods, or an object such as a Job or a "
            "JobSet that says how many it makes"
        ) from None
    except UnreadableError as error:
        raise BadInputError(f"{where}: {error}") from None
    if made.left_out:
        notes[made.left_out] = None
    new = {key: value for key, value in item.items() if key != "status"}  # it starts anew
    objects = {ref: new, **{ref_of(each, where): each for each in made.between}}
    return [_made(each, f"{where}: {each.path}".removesuffix(": ")) for each in made.pods], objects


def _made(made: MadePod, where: str) -> tuple[str, Pod, tuple[After, ...]]:
    metadata = made.body["metadata"]
    uid = f"{_UID}/{metadata['namespace']}/{metadata['name']}"
    return where, _pod({**made.body, "metadata": {**metadata, "uid": uid}}, where), made.after


def _pod(fields: Mapping[str, object], where: str) -> Pod:
    try:
        pod = msgspec.convert(fields, Pod)
    except msgspec.ValidationError as error:
        raise unreadable(error, where, "pod") from None
    if not pod.spec.containers:
        raise BadInputError(f"{where}: spec.containers: expected one or more")
    for field, container in _containers(pod):
        _check_resources(container.resources, f"{where}: pod {pod.metadata.name}: {field}")
    return pod


def _containers(pod: Pod) -> Iterator[tuple[str, Container]]:
    for number, container in enumerate(pod.spec.init_containers):
        yield f"spec.initContainers[{number}]", container
    for number, container in enumerate(pod.spec.containers):
        yield f"spec.containers[{number}]", container


def _check_resources(resources: Resources, where: str) -> None:
    """Refuse what the API server refuses of extended resources: parts, and requests unlike the
    limits."""
    for of, said in (("limits", resources.limits), ("requests", resources.requests)):
        for name, quantity in said.items():
            place = f"{where}.resources.{of}[{name}]: {quantity!r}"
            if not is_extended(name):
                continue
            try:
                is_whole = whole(quantity) * 1000 == milli(quantity)
            except ValueError:
                continue  # the core says what is wrong
            if not is_whole:
                raise BadInputError(f"{place}: expected a whole number")
            limit = resources.limits.get(name)
            if limit is None or milli(limit) != milli(quantity):
                raise BadInputError(f"{place}: expected limits[{name}] of the same amount")


def _tolerating(pod: Pod, tolerated: Collection[str], notes: dict[str, None]) -> Pod:
    resources = (container.resources for _, container in _containers(pod))
    taken = {name for each in resources for name in (*each.limits, *each.requests)}
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
    others = sorted({gate.name for gate in spec.scheduling_gates} - {names.GATE})
    if others:
        notes[f"scheduling gates {', '.join(others)} count as lifted"] = None
    said = {k: v for k, v in meta.annotations.items() if k not in names.BY_EXTENDER}
    priority, policy = _priority(pod, classes, notes)
    return change(
        pod,
        metadata=change(
            meta,
            uid=meta.uid if meta.uid.startswith(_UID) else f"{_UID}/{meta.uid}",
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
    resources = (container.resources for _, container in _containers(pod))
    return bool(pod.spec.resource_claims or names.CLAIMS in pod.metadata.annotations) or any(
        is_extended(name) for each in resources for name in (*each.limits, *each.requests)
    )


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
