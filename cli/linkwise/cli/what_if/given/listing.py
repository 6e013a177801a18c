"""A cluster as `kubectl get nodes,pods -A -o json` prints it, with more kinds if given.

20,000 pods are some 200 MB of JSON, so each object is decoded alone, to the fields in use.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from linkwise.cli.documents import Fields, objects_in, ref_of, unreadable
from linkwise.cli.errors import BadInputError
from linkwise.cli.text_file import read_text, shown
from linkwise.kube.device_claims import ResourceClaim, ResourceSlice
from linkwise.kube.documents import dotted, without_nulls
from linkwise.kube.fields import group_of
from linkwise.kube.manifest import FieldError, child, word
from linkwise.kube.objects import Node, Pod, PodDisruptionBudget
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.pods.podgrouper.workloads.systems import READ

T = TypeVar("T")
_READ = frozenset((kind.group, kind.kind) for kind in READ)
_BUDGET = ("policy", "PodDisruptionBudget")
_DEVICES = "resource.k8s.io/v1"
_PRIORITY_CLASS = ("scheduling.k8s.io", "PriorityClass")
_MOST_DEPTH = 8  # of Lists in Lists


class PriorityClass(msgspec.Struct, frozen=True, rename="camel"):
    value: int
    global_default: bool = False
    preemption_policy: str = ""


@dataclass
class Listing:
    nodes: dict[str, Node] = field(default_factory=dict)  # by name
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)  # by namespace and name
    # owners of pods and other objects around them
    objects: dict[ObjectRef, Fields] = field(default_factory=dict)
    classes: dict[str, PriorityClass] = field(default_factory=dict)
    budgets: list[PodDisruptionBudget] | None = None  # None: none were given
    slices: dict[str, ResourceSlice] = field(default_factory=dict)  # by name
    claims: dict[tuple[str, str], ResourceClaim] = field(default_factory=dict)


_NO_ITEMS = msgspec.Raw()


class _Head(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that identify an object; decoding skips all others."""

    kind: object = None
    api_version: object = None
    items: msgspec.Raw = _NO_ITEMS  # `Raw | None` would refuse every value


def read_listing(paths: Sequence[str]) -> Listing:
    """Read the files. Raises BadInputError with file, document and field."""
    found = Listing()
    for path in paths:
        _read(found, path, Pod)
    expect_nodes(found, paths)
    return found


def read_file(path: str, pod: type[Pod]) -> Listing:
    """Read one file, with its pods as *pod*, which may have more fields. Raises BadInputError."""
    found = Listing()
    _read(found, path, pod)
    return found


def expect_nodes(found: Listing, paths: Sequence[str]) -> None:
    """Raises BadInputError if there are no nodes."""
    if not found.nodes:
        raise BadInputError(
            f"-f {', '.join(paths)}: contains no Node; pass the output of "
            "`kubectl get nodes,pods -A -o json`"
        )


def _read(found: Listing, path: str, pod: type[Pod]) -> None:
    text = read_text("-f", path)
    where = shown("-f", path)
    if not text.strip():
        raise BadInputError(
            f"{where}: empty: expected what `kubectl get nodes,pods -A -o json` prints"
        )
    for place, head, raw in _objects(text, where):
        _take(found, place, head, raw, pod)


def _objects(text: str, where: str) -> Iterator[tuple[str, _Head, msgspec.Raw]]:
    """Yield the objects. One JSON value takes a fast path; the other one reports errors better."""
    try:
        whole = msgspec.Raw(text.encode())
        yield from _inside(f"{where}: document 1", whole, _Head(), 0)
    except (msgspec.DecodeError, RecursionError):
        for each in objects_in(text, where):
            raw = msgspec.Raw(msgspec.json.encode(each.fields))
            yield each.place, msgspec.json.decode(raw, type=_Head), raw


def _inside(
    where: str, raw: msgspec.Raw, said: _Head, depth: int
) -> Iterator[tuple[str, _Head, msgspec.Raw]]:
    """Yield the objects of a List, which may name the kind of its items once. Raises DecodeError
    before it yields any part of a malformed list."""
    head = msgspec.json.decode(raw, type=_Head)
    kind = said.kind if head.kind is None else head.kind
    version = said.api_version if head.api_version is None else head.api_version
    head = _Head(kind, version, head.items)
    # `jq '{items: …}'` leaves a list without a kind.
    is_list = kind is None or (isinstance(kind, str) and kind.endswith("List"))
    if not bytes(head.items) or not is_list:
        yield where, head, raw
        return
    items = msgspec.json.decode(head.items, type=list[msgspec.Raw])
    one = str(kind or "").removesuffix("List")
    inside = _Head(one, version) if one else _Head()
    if depth == _MOST_DEPTH:
        raise BadInputError(f"{where}: Lists in more than {_MOST_DEPTH} Lists")
    for number, item in enumerate(items):
        yield from _inside(f"{where}: items[{number}]", item, inside, depth + 1)


def _take(found: Listing, where: str, head: _Head, raw: msgspec.Raw, pod_kind: type[Pod]) -> None:
    kind, version = head.kind, head.api_version
    for name, value, example in (("apiVersion", version, "v1"), ("kind", kind, "List")):
        if not isinstance(value, str) or not value:
            missing = "" if value else "missing: "
            raise BadInputError(f"{where}: {name}: {missing}expected a text such as {example}")
    of = (group_of(str(version)), str(kind))
    if of == ("", "Node"):
        node = _decode(raw, Node, where)
        _named(node.metadata.name, where)
        found.nodes[node.metadata.name] = node
    elif of == ("", "Pod"):
        pod = _whole(_decode(raw, pod_kind, where), where)
        found.pods[pod.metadata.namespace, pod.metadata.name] = pod
    elif of == _BUDGET:
        found.budgets = [*(found.budgets or []), _decode(raw, PodDisruptionBudget, where)]
    elif (version, kind) == (_DEVICES, "ResourceSlice"):
        one = _decode(raw, ResourceSlice, where)
        found.slices[one.metadata.name] = one
    elif (version, kind) == (_DEVICES, "ResourceClaim"):
        claim = _decode(raw, ResourceClaim, where)
        found.claims[claim.metadata.namespace, claim.metadata.name] = claim
    elif of == _PRIORITY_CLASS:
        fields = msgspec.json.decode(raw, type=dict[str, object])
        name = _ref({**fields, "apiVersion": version, "kind": kind}, where).name
        found.classes[name] = _decode(raw, PriorityClass, where)
    elif of in _READ:
        fields = {**msgspec.json.decode(raw), "apiVersion": version, "kind": kind}
        found.objects[_ref(fields, where)] = fields


def _ref(fields: Fields, where: str) -> ObjectRef:
    try:
        metadata = child(fields, (), "metadata", "a mapping with a name")
        word(metadata, ("metadata",), "name", "the object's name")
        word(metadata, ("metadata",), "namespace", "a namespace", default="default")
    except FieldError as error:
        raise BadInputError(f"{where}: {dotted(error.path)}: {error.problem}") from None
    return ref_of(fields)


def _decode(raw: msgspec.Raw, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError:
        pass  # perhaps for a null, which kubectl never prints, but jq does
    try:
        return msgspec.convert(without_nulls(msgspec.json.decode(raw)), type=kind)
    except msgspec.ValidationError as error:
        raise unreadable(error, where, kind.__name__.removeprefix("Past")) from None


def _whole(pod: Pod, where: str) -> Pod:
    """Fill in the namespace and uid, which a handwritten pod may lack."""
    meta = pod.metadata
    _named(meta.name, where)
    namespace = meta.namespace or "default"
    uid = meta.uid or f"{namespace}/{meta.name}"
    if (namespace, uid) == (meta.namespace, meta.uid):
        return pod
    metadata = msgspec.structs.replace(meta, namespace=namespace, uid=uid)
    return msgspec.structs.replace(pod, metadata=metadata)


def _named(name: str, where: str) -> None:
    if not name:
        raise BadInputError(f"{where}: metadata.name: expected a text")


def known_classes(listing: Listing) -> Mapping[str, PriorityClass]:
    """Return the classes of the listing, else what pods show, as the API server wrote the value."""
    seen = {
        pod.spec.priority_class_name: PriorityClass(
            pod.spec.priority, preemption_policy=pod.spec.preemption_policy
        )
        for pod in listing.pods.values()
        if pod.spec.priority_class_name
    }
    return {**seen, **listing.classes}
