"""The members of a gang that its owner creates only after others run.

They have the template of their role, and the role, index and rank that their labels will say.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1

import msgspec

from linkwise.kube.fields import Fields, mapping, text
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.workloads.answer import Member, RoleToCome
from linkwise.pods.podgrouper.workloads.essence import template_essence
from linkwise.pods.podgrouper.workloads.marks import PRIORITIES, QUEUES
from linkwise.topology import names


@dataclass(frozen=True, slots=True)
class TiedPods:
    """What pods of one part have beside their role's template: a label of their part, and
    affinities by which they, and no pods of other parts, are in one domain."""

    template: str  # as `as_text` writes it
    domain: str  # the key of a node label
    key: str  # of the label that differs between the parts
    hashed: str  # before the part's number, what its value is the SHA-1 of
    number_key: str  # of the label with the part's number
    priority: tuple[str, str] | None = None  # the label of the pods, in all namespaces, kept out

    def of(self, part: int) -> Fields:
        value = sha1(f"{self.hashed}{part}".encode(), usedforsecurity=False).hexdigest()
        template = json.loads(self.template)
        affinity = mapping(template, "spec.affinity")
        mine: Fields = {"key": self.key, "operator": "In", "values": [value]}
        others: list[Fields] = [
            {"key": self.key, "operator": "Exists"},
            {**mine, "operator": "NotIn"},
        ]
        labels = {self.key: value, self.number_key: str(part)}
        if self.priority is not None:
            key, priority = self.priority
            others.append({"key": key, "operator": "In", "values": [priority]})
            labels |= {key: priority} if priority else {}
        tied = {
            **affinity,
            "podAffinity": self._required(affinity, "podAffinity", [mine]),
            "podAntiAffinity": self._required(affinity, "podAntiAffinity", others),
        }
        return labelled(template, labels, affinity=tied)

    def _required(self, affinity: Fields, kind: str, expressions: list[Fields]) -> Fields:
        before, key = mapping(affinity, kind), "requiredDuringSchedulingIgnoredDuringExecution"
        listed = before.get(key)
        selector = {"matchExpressions": expressions}
        term: dict[str, object] = {"labelSelector": selector, "topologyKey": self.domain}
        if self.priority is not None:
            term["namespaceSelector"] = {}
        return {**before, key: [*(listed if isinstance(listed, list) else []), term]}


@dataclass(frozen=True, slots=True)
class Parts:
    """The pods of a role in parts of *each*, such as one child Job each."""

    each: int
    stem: str | None = None  # of the subgroups' names, before the part's number; None: no subgroups
    shift: int = 0  # pods of other roles in the first part
    tied: TiedPods | None = None
    # The other pods of a part are created only once its first pod has a node.
    first_alone: bool = False

    def of(self, index: int) -> int:
        return (index + self.shift) // self.each

    def subgroup(self, index: int) -> str:
        return "" if self.stem is None else f"{self.stem}{self.of(index)}"


def as_text(template: Fields) -> str:
    """Of any values, which users write."""
    return json.dumps(template_essence(template), default=str)


def is_template(template: Fields) -> bool:
    """Whether pods can be made of it."""
    try:
        made = msgspec.convert(template_essence(template), Pod)
    except msgspec.ValidationError:
        return False
    return bool(made.spec.containers)


def labelled(template: Fields, labels: Mapping[str, str], **spec: object) -> Fields:
    """*template* with the labels and the fields of the spec that a controller adds."""
    metadata = mapping(template, "metadata")
    return {
        "metadata": {**metadata, "labels": {**mapping(metadata, "labels"), **labels}},
        "spec": {**mapping(template, "spec"), **spec},
    }


def template_of(pod: Pod) -> Fields:
    """A template of pods like *pod*, where no owner has one."""
    spec = msgspec.structs.replace(
        pod.spec, node_name="", scheduling_gates=(), scheduling_group=None, workload_ref=None
    )
    said = pod.metadata.annotations
    kept = {
        key: said[key]
        for key in said
        if key.startswith(names.PREFIX) and key not in names.BY_LINKWISE
    }
    metadata = {"labels": dict(pod.metadata.labels), "annotations": kept}
    return {"metadata": metadata, "spec": msgspec.json.decode(msgspec.json.encode(spec))}


def queue_in(template: Fields) -> str:
    return _said(template, QUEUES)


def priority_class_in(template: Fields) -> str:
    return _said(template, PRIORITIES) or text(template, "spec.priorityClassName")


def _said(template: Fields, keys: Iterable[str]) -> str:
    metadata = mapping(template, "metadata")
    labels, annotations = mapping(metadata, "labels"), mapping(metadata, "annotations")
    for key in keys:
        found = labels.get(key) or annotations.get(key)
        if isinstance(found, str) and found:
            return found
    return ""


@lru_cache(maxsize=32)
def members_of(
    like: Member, indices: range, rank: int | None, *, indexed: bool, parts: Parts | None = None
) -> tuple[Member, ...]:
    """Members that are *like* one except for their place; *rank* is that of index 0. The pods of a
    gang are judged one after the other, and get the same ones."""
    return tuple(
        Member(
            like.role,
            index if indexed else None,
            None if rank is None or not indexed else rank + index,
            like.subgroup if parts is None else parts.subgroup(index),
            like.queue,
            like.priority_class,
        )
        for index in indices
    )


@lru_cache(maxsize=32)
def tied_to_come(
    parts: Parts, pods: int, like: Member, rank: int | None, *, late: bool, gpus: bool
) -> tuple[RoleToCome, ...]:
    """Of each part those that come after others; if the role is *late*, all."""
    assert parts.tied is not None
    skipped = int(parts.first_alone and not late)
    found = list[RoleToCome]()
    for part in range(-(-(pods + parts.shift) // parts.each)):
        first = max(part * parts.each - parts.shift, 0) + skipped
        indices = range(first, min((part + 1) * parts.each - parts.shift, pods))
        if indices:
            members = members_of(like, indices, rank, indexed=True, parts=parts)
            found.append(RoleToCome(parts.tied.of(part), members, gpus))
    return tuple(found)
