"""The possible answers about a pod's gang.

Recognised    the pod starts together with others: which gang, its size, the pod's position in it
NoGang        the pod runs by itself
NeedsOwner    an object must be read first; or it does not exist yet, and the pod waits for it
Refused       the sources contradict each other, or cannot be read

A wrong Recognised makes a pod wait forever, a wrong NoGang starts half a job. If the gang is
uncertain, the answer is NoGang; if the pod itself names a group, it is NeedsOwner or Refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from linkwise.kube.fields import Fields
from linkwise.pods.annotations import NO_GROUP, NativeGroup


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """A reference to an API object, without a version: all versions are the same object."""

    group: str  # empty: the core group
    kind: str
    namespace: str
    name: str

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    def __str__(self) -> str:
        return f"{self.qualified_kind} {self.namespace}/{self.name}"


class Missing(Enum):
    """Why an object that was requested is not available."""

    NOT_FOUND = "does not exist"
    FORBIDDEN = "may not be read"
    NO_NAME = "is no name that an object can have"
    NOT_SERVED = "is of a kind that this cluster does not have"
    TOO_LARGE = "is too large to be read"
    NAMESPACE_FULL = "is not read: the owners of pods in its namespace are too large together"


Objects = Mapping[ObjectRef, Mapping[str, object] | Missing]
"""The API server's answers so far, as plain JSON values; other objects were not requested."""


@dataclass(frozen=True, slots=True, order=True)
class GangName:
    """Equal for all members of one gang and for no other pod.

    *uid* is that of the object that defines the gang, so a job recreated under its old name is
    another gang. It is empty if no object defines it, as in a group that only pods declare.
    """

    namespace: str
    kind: str  # like "Job.batch", or the kind of declaration
    name: str
    uid: str = ""
    part: str = ""  # distinguishes several gangs of one object

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}" + (f"#{self.part}" if self.part else "")


class Basis(Enum):
    DECLARED = "declared"  # the pod or its owner declares a group
    NATURE = "nature"  # the owner's kind implies it
    HEURISTIC = "heuristic"  # Linkwise infers it; --indexed-jobs switches this off


@dataclass(frozen=True, slots=True)
class Member:
    """A pod's position in its workload, whether that is a gang or not."""

    role: str  # the operator's own word, in lower case
    index: int | None = None  # within the role
    rank: int | None = None  # within the whole gang, across roles
    subgroup: str = ""  # members of one subgroup are placed closest together
    queue: str = ""  # empty: its namespace is its queue
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class RoleToCome:
    """Pods of one role that the owner creates only after other members run."""

    template: Fields  # as the owner has it: `metadata` with labels and annotations, and `spec`
    members: tuple[Member, ...]  # as `Recognised.member` is once the pod exists
    gpus: bool  # whether they take GPUs


@dataclass(frozen=True, slots=True)
class Recognised:
    """The pod is a member of *gang*.

    Before this pod may be bound, *minimum* pods must have places together: those that run, those
    that wait, and those of *to_come*, for which the owner waits until others run. If these are
    unknown, the minimum is that of the pods that exist at the same time as this one.
    """

    gang: GangName
    size: int  # pods of the complete gang that are still to run, including those without GPUs
    minimum: int
    gpu_size: int  # those of `size` that take GPUs; if no owner lists roles, all as this pod does
    gpu_minimum: int  # those of `minimum` that take GPUs
    waves: tuple[int, ...]  # `size` by the time at which the owner creates the pods
    member: Member
    basis: Basis
    rule: str  # the rule's name in `systems`
    because: str
    done: int = 0  # members that succeeded, are never recreated, and are not in `size`
    open_ended: bool = False  # more pods than `size` may join
    owners: frozenset[str] = frozenset()  # uids of the objects that define the gang
    require: tuple[str, ...] = ()  # levels at which its members must share one domain
    native: NativeGroup = NO_GROUP
    counts_all: bool = False  # which members take GPUs is unknown: those without count too
    # All pods that the owner creates after others, whether they exist by now or not. The same for
    # all members.
    to_come: tuple[RoleToCome, ...] = ()


@dataclass(frozen=True, slots=True)
class NoGang:
    member: Member
    rule: str
    because: str


@dataclass(frozen=True, slots=True)
class NeedsOwner:
    """Read `owner` at the first of `paths` that the API server serves, then judge the pod again.

    *missing*: the object does not exist yet, and the pod waits until it does.
    """

    owner: ObjectRef
    paths: tuple[str, ...]
    rule: str
    because: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """`because` names every source and what each one says."""

    because: str
    rule: str


Answer = Recognised | NoGang | NeedsOwner | Refused


class IndexedJobs(Enum):
    """Which Indexed Jobs that run all their pods at once are gangs; many are static shards."""

    ALL = "all"
    WITH_SUBDOMAIN = "with-subdomain"  # its pods address each other by name
    NONE = "none"
