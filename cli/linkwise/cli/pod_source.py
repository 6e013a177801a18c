"""Pods and the objects around them, from manifests or from what `kubectl get -o yaml` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from linkwise.kube.controllers.child import UnknownControllerError, generated
from linkwise.kube.controllers.workload import pods_of
from linkwise.kube.documents import without_nulls
from linkwise.kube.fields import UnreadableError, controller_of, text
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import ObjectRef


@dataclass(frozen=True, slots=True)
class Manifests:
    pods: tuple[Pod, ...]  # those given, and those that given workloads would create
    objects: Mapping[ObjectRef, Fields]
    unknown: tuple[str, ...]  # workloads of which it is unknown which pods they create
    left_out: tuple[str, ...]  # objects of unknown kinds without a pod template


def read_manifests(paths: Sequence[str]) -> Manifests:
    """Read the files. Raises BadInputError with file, document and field.

    A workload becomes the pods that its controller would create. If the files list pods of a
    cluster, a workload of the cluster has its pods there, or has none.
    """
    found = _items(paths)
    listed = any(_is_pod(ref) and _is_stored(item) for _, ref, item in found)
    given = {(ref.kind, ref.name): item for _, ref, item in found}
    pods: list[Pod] = []
    objects: dict[ObjectRef, Fields] = {}
    unknown: list[str] = []
    left_out: list[str] = []
    makers: set[Name] = set()
    for place, ref, item in found:
        if controller_name(item, ref) in makers:
            objects.setdefault(ref, item)
            continue  # its owner has created it
        if _is_pod(ref):
            pods.append(_pod(item, place))
            continue
        objects[ref] = item
        if listed and _is_stored(item):
            continue
        try:
            made = pods_of(item, given)
        except UnknownControllerError:
            unknown.append(f"{place}: {ref}: it is unknown which pods it creates")
            continue
        except UnreadableError as error:
            raise BadInputError(f"{place}: {error}") from None
        pods += [_pod(each.body, f"{place}: {each.path}".removesuffix(": ")) for each in made.pods]
        if made.left_out:
            left_out.append(f"{place}: {made.left_out}")
        objects |= {ref_of(each, place): each for each in made.between}
        if made.pods:  # those of a job that starts anew
            objects[ref] = {key: value for key, value in item.items() if key != "status"}
            makers.add((ref.namespace, ref.kind, ref.name))
    if not pods and not unknown:
        raise BadInputError(
            f"-f {', '.join(paths)}: no pod there, and no workload that creates one: "
            "`kubectl get pods -o yaml`"
        )
    return Manifests(tuple(pods), objects, tuple(unknown), tuple(left_out))


def _items(paths: Sequence[str]) -> list[tuple[str, ObjectRef, Fields]]:
    """Return the objects, those without an owner first."""
    found = []
    for path in paths:
        for place, said in objects_in(read_text("-f", path), shown("-f", path)):
            item = _named(without_nulls(said), place)
            ref = ref_of(item, place)
            metadata = {**item["metadata"], "namespace": ref.namespace, "name": ref.name}
            found.append((place, ref, {**item, "metadata": metadata}))
    return sorted(found, key=lambda each: bool(controller_of(each[2])))


def _named(item: Fields, place: str) -> Fields:
    metadata = item.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("name"):
        return item  # `ref_of` reports what is wrong
    prefix = text(metadata, "generateName")
    # The API server gives each object of one prefix a name of its own.
    name = {"name": generated(prefix.removesuffix("-"), place)} if prefix else {}
    return {**item, "metadata": {**metadata, **name}}


def _is_pod(ref: ObjectRef) -> bool:
    return (ref.group, ref.kind) == ("", "Pod")


def _is_stored(item: Fields) -> bool:
    """True for an object of a cluster, false for a manifest."""
    return bool(text(item, "metadata.uid"))


def _pod(item: Fields, where: str) -> Pod:
    try:
        pod = msgspec.convert(item, Pod)
    except msgspec.ValidationError as error:
        raise unreadable(error, where, "pod") from None
    if not pod.spec.containers:
        raise BadInputError(f"{where}: spec.containers: expected one or more")
    return pod
