"""One pod to group, and the objects that are known around it.

Rules read owners as if all of them were available. If one is not, `read` raises UnreadError or
OwnerGoneError, and `decide` turns it into an answer. This keeps each rule a plain statement.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from linkwise.kube.fields import (
    Fields,
    UnreadableError,
    group_of,
    mapping,
    ordinal,
    text,
)
from linkwise.kube.objects import OwnerReference, Pod, PodSpec
from linkwise.pods.annotations import demand_of, resource_of
from linkwise.pods.claims import claims_of
from linkwise.pods.podgrouper.workloads.answer import (
    IndexedJobs,
    Member,
    Missing,
    ObjectRef,
    Objects,
)
from linkwise.pods.podgrouper.workloads.kinds import OwnerKind
from linkwise.pods.podgrouper.workloads.marks import INDICES, PRIORITIES, QUEUES
from linkwise.topology import names

_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_VERSION = re.compile(r"[a-z0-9]*")  # empty: any version that the API server serves


class UnreadError(Exception):
    """An object must be read before the pod can be judged."""

    def __init__(self, ref: ObjectRef, paths: tuple[str, ...]) -> None:
        super().__init__(f"{ref} is to be read")
        self.ref, self.paths = ref, paths


class OwnerGoneError(Exception):
    """The object was requested, but is unavailable, or was replaced by one of the same name."""

    def __init__(self, ref: ObjectRef, paths: tuple[str, ...], why: Missing | None) -> None:
        what = why.value if why else "is a new one of the same name: the pod belongs to the old one"
        super().__init__(f"{ref} {what}")
        self.ref, self.paths, self.why = ref, paths, why


@dataclass(frozen=True)
class Case:
    pod: Pod
    objects: Objects
    resources: tuple[str, ...]
    indexed_jobs: IndexedJobs

    @property
    def namespace(self) -> str:
        return self.pod.metadata.namespace

    @property
    def labels(self) -> Mapping[str, str]:
        return self.pod.metadata.labels

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.pod.metadata.annotations

    def said(self, *keys: str) -> str:
        """The value of the first of these keys that the pod has as a label or as an annotation."""
        for key in keys:
            found = self.labels.get(key) or self.annotations.get(key)
            if found:
                return found
        return ""

    @cached_property
    def controller(self) -> OwnerReference | None:
        """The controlling owner. Executors of Spark have other owners before it in the list."""
        owners = self.pod.metadata.owner_references
        return next((owner for owner in owners if owner.controller), None)

    @property
    def owner_kind(self) -> tuple[str, str]:
        """API group and kind; `Job` alone is a kind of several groups."""
        if self.controller is None:
            return ("", "")
        return group_of(self.controller.api_version), self.controller.kind

    def is_controlled_by(self, kind: OwnerKind) -> bool:
        return self.owner_kind == (kind.group, kind.kind)

    @cached_property
    def takes_gpus(self) -> bool:
        """Raises UnreadableError."""
        resource = resource_of(self.pod, self.resources)
        try:
            return demand_of(self.pod, resource).gpus > 0
        except ValueError as error:
            raise UnreadableError(f"{resource}: {error}") from None

    def read_controller(self, kind: OwnerKind) -> Fields:
        controller = self.controller
        assert controller is not None
        version = controller.api_version.rpartition("/")[2]
        return self.read(kind, controller.name, uid=controller.uid, version=version)

    def read(self, kind: OwnerKind, name: str, *, uid: str = "", version: str = "") -> Fields:
        """Return the object. *uid* is the one that the pod refers to.

        Raises UnreadError and OwnerGoneError.
        """
        ref = ObjectRef(kind.group, kind.kind, self.namespace, name)
        # Users control these names through labels and references, and they become URL paths.
        if not (_NAME.fullmatch(name) and len(name) <= 253 and _VERSION.fullmatch(version)):
            raise OwnerGoneError(ref, (), Missing.NO_NAME)
        paths = kind.paths(self.namespace, name, version)
        found = self.objects.get(ref)
        if found is None:
            raise UnreadError(ref, paths)
        if isinstance(found, Missing):
            raise OwnerGoneError(ref, paths, found)
        if uid and text(found, "metadata.uid") not in ("", uid):
            raise OwnerGoneError(ref, paths, None)
        return found

    def takes_gpus_in(self, template: Fields) -> bool:
        """Whether pods of *template* take GPUs. Raises UnreadableError."""
        try:
            spec = msgspec.convert(mapping(template, "spec"), PodSpec)
            resource = resource_of(pod := Pod(spec=spec), self.resources)
            return demand_of(pod, resource).gpus > 0 or self._has_my_claim(spec)
        except ValueError as error:  # msgspec.ValidationError is one too
            raise UnreadableError(f"pod template: {error}") from None

    def _has_my_claim(self, spec: PodSpec) -> bool:
        """Whether pods of *spec* get a claim from the same ResourceClaimTemplate as this pod. Of
        other templates it is not known whether they are for GPUs. Raises ValueError."""
        mine = claims_of(self.annotations, self.pod.spec)
        templates = [claim.resource_claim_template_name for claim in spec.resource_claims]
        return mine is not None and mine.template != "" and templates == [mine.template]

    def index(self) -> int | None:
        """The pod's index, from the first label of a controller that has one."""
        return ordinal(self.said(*INDICES))

    def member(
        self,
        role: str,
        index: int | None = None,
        rank: int | None = None,
        *,
        subgroup: str = "",
        queue: str = "",
        priority_class: str = "",
    ) -> Member:
        """A Member. The owner's *queue* and *priority_class* have precedence over the pod's."""
        return Member(
            role=role,
            index=index,
            rank=rank,
            subgroup=subgroup,
            queue=queue or self.said(*QUEUES),
            priority_class=priority_class
            or self.said(*PRIORITIES)
            or self.pod.spec.priority_class_name,
        )


def gang_said_in(template: Fields) -> str:
    """The value of `linkwise.dev/gang` in a pod template; empty if it has none."""
    found = mapping(template, "metadata.annotations").get(names.GANG)
    return found if isinstance(found, str) else ""
