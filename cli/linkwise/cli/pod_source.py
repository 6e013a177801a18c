"""Pods and the objects around them, from manifests or from what `kubectl get -o yaml` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from linkwise.cli.documents import (
    Fields,
    Given,
    Name,
    checked_ref,
    controller_name,
    objects_in,
    ref_of,
)
from linkwise.cli.errors import BadInputError
from linkwise.cli.text_file import read_text, shown
from linkwise.kube.controllers.batch import Given as ByName
from linkwise.kube.controllers.child import UnknownControllerError, generated
from linkwise.kube.controllers.order import After
from linkwise.kube.controllers.workload import Made, pods_of
from linkwise.kube.documents import Path, without_nulls
from linkwise.kube.fields import UnreadableError, controller_of, text
from linkwise.kube.manifest import FieldError, checked_pod, converted, steps
from linkwise.kube.objects import Pod
from linkwise.pods.annotation_faults import misplaced, near_misses_in
from linkwise.pods.podgrouper.workloads.answer import ObjectRef

_INSTEAD = "pass its pods instead, as `kubectl get pods -o yaml` prints them once it runs"


@dataclass(frozen=True, slots=True)
class GivenPod:
    pod: Pod
    place: str  # of its manifest or template
    given: ObjectRef  # the object that it comes of: itself, or a workload
    after: tuple[After, ...] = ()  # what it comes after


@dataclass(frozen=True, slots=True)
class LeftOut:
    place: str
    why: str
    kind: str = ""  # of an unknown workload

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


@dataclass(frozen=True, slots=True)
class Manifests:
    pods: tuple[GivenPod, ...]  # those given, and those that given workloads would create
    objects: Mapping[ObjectRef, Fields]
    given: tuple[ObjectRef, ...]  # everything
    unknown: tuple[LeftOut, ...]  # workloads of which it is unknown which pods they create
    left_out: tuple[LeftOut, ...]  # objects of unknown kinds without a pod template
    near_misses: tuple[str, ...]  # keys that look like annotations of Linkwise, with their places


def read_manifests(
    option: str, paths: Sequence[str], namespace: str = "default", new: str = ""
) -> Manifests:
    """Read the files of an *option*. Raises BadInputError with file, document and field.

    A workload becomes the pods that its controller would create. If the files list pods of a
    cluster, a workload of the cluster has its pods there, or has none. With *new*, nothing of this
    exists yet: it begins the uids that objects get. *namespace* is that of objects that name none.
    """
    found = _items(option, paths, namespace, new)
    listed = not new and any(_is_pod(ref) and _is_stored(given) for given, ref, _ in found)
    by_name = {(ref.kind, ref.name): item for _, ref, item in found}
    pods: list[GivenPod] = []
    objects: dict[ObjectRef, Fields] = {}
    unknown: list[LeftOut] = []
    left_out: list[LeftOut] = []
    makers: set[Name] = set()
    missed: dict[str, None] = {}
    for given, ref, item in found:
        place = given.place
        missed |= {f"{place}: {each}": None for each in (*near_misses_in(item), *misplaced(item))}
        if controller_name(item, ref) in makers:
            objects.setdefault(ref, item)
            continue  # its owner has created it
        if _is_pod(ref):
            pods.append(GivenPod(_pod(given, item, given.path), place, ref))
            continue
        objects[ref] = item
        if listed and _is_stored(given):
            continue
        made = _made(given, item, by_name)
        if isinstance(made, str):
            why = f"{ref}: it is unknown which pods it creates: {_INSTEAD}"
            unknown.append(LeftOut(place, why, made))
            continue
        for each in made.pods:
            where = f"{place}: {each.path}".removesuffix(": ")
            template = (*given.path, *steps(f".{each.path}"))
            pods.append(GivenPod(_pod(given, each.body, template), where, ref, each.after))
            missed |= {f"{place}: {each.path}.{miss}": None for miss in near_misses_in(each.body)}
        if made.left_out:
            left_out.append(LeftOut(place, made.left_out))
        objects |= {ref_of(each): each for each in made.between}
        if made.pods or new:  # those of a job that starts again
            objects[ref] = {key: value for key, value in item.items() if key != "status"}
        if made.pods:
            makers.add((ref.namespace, ref.kind, ref.name))
    refs = tuple(ref for _, ref, _ in found)
    return Manifests(tuple(pods), objects, refs, tuple(unknown), tuple(left_out), tuple(missed))


def _items(
    option: str, paths: Sequence[str], namespace: str, new: str
) -> list[tuple[Given, ObjectRef, Fields]]:
    """Return the objects, those without an owner first."""
    found = []
    for path in paths:
        for given in objects_in(read_text(option, path), shown(option, path)):
            checked_ref(given)
            item = _named(without_nulls(given.fields), namespace, new, given.place)
            found.append((given, ref_of(item), item))
    return sorted(found, key=lambda each: bool(controller_of(each[2])))


def _named(item: Fields, namespace: str, new: str, place: str) -> Fields:
    """Fill in what the API server would."""
    metadata = item["metadata"]
    name, prefix = metadata.get("name"), text(metadata, "generateName")
    # The API server gives each object of one prefix a name of its own.
    named = {} if name else {"name": generated(prefix.removesuffix("-"), place)}
    home = {} if metadata.get("namespace") else {"namespace": namespace}
    kind = f"{item['apiVersion']}/{item['kind']}"
    uid = {"uid": f"{new}/{kind}/{namespace}/{name or place}"} if new else {}
    return {**item, "metadata": {**uid, **metadata, **named, **home}}


def _made(given: Given, item: Fields, by_name: ByName) -> Made | str:
    """Return what a workload's controller would create, or its kind if that is unknown."""
    try:
        return pods_of(item, by_name)
    except UnknownControllerError as error:
        return str(error)
    except UnreadableError as error:
        raise BadInputError(f"{given.place}: {error}") from None


def _is_pod(ref: ObjectRef) -> bool:
    return (ref.group, ref.kind) == ("", "Pod")


def _is_stored(given: Given) -> bool:
    """True for an object of a cluster, whose API server has checked it; false for a manifest."""
    return bool(text(given.fields, "metadata.uid"))


def _pod(given: Given, body: Fields, path: Path) -> Pod:
    """Return a pod; its template, which has the mistakes, stands at *path* in the document."""
    try:
        return converted(body, path, Pod) if _is_stored(given) else checked_pod(body, path)
    except FieldError as error:
        raise given.refuse(error) from None
