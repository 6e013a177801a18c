"""What can be said of a pod's gang.

Recognised    it starts together with others: which, how many, and where this pod stands among them
NoGang        it runs for itself
NeedsOwner    an object has to be read first; or it is not there yet, and the pod waits for it
Refused       what stands on the pod contradicts itself, or cannot be read

A wrong "gang" makes a pod wait for ever, a wrong "no gang" starts half a job; so what is not known
for certain is NoGang, unless the pod itself names a group: then it is NeedsOwner or Refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, order=True)
class ObjectRef:
    """An object of the API; not of one version, as all versions of it are one object."""

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
    """Why an object that was asked for is not there."""

    NOT_FOUND = "does not exist"
    FORBIDDEN = "may not be read"
    NO_NAME = "is no name that an object can have"
    NOT_SERVED = "is of a kind that this cluster does not have"


Objects = Mapping[ObjectRef, Mapping[str, object] | Missing]
"""What the API server answered so far, as plain JSON values; what is not in it was not asked."""


@dataclass(frozen=True, slots=True, order=True)
class GangName:
    """Equal for the members of one gang, and for nobody else.

    *uid* is that of the object that stands for the gang, so a job made anew under its old name is
    another gang; empty where no object does, as in a group that pods alone declare.
    """

    namespace: str
    kind: str  # like "Job.batch", or what else declares it
    name: str
    uid: str = ""
    part: str = ""  # where one object has several gangs

    def __str__(self) -> str:
        return f"{self.namespace}/{self.kind}/{self.name}" + (f"#{self.part}" if self.part else "")


class Basis(Enum):
    DECLARED = "declared"  # a group is named for it
    NATURE = "nature"  # the owner's kind implies it
    HEURISTIC = "heuristic"  # our reading, which can be switched off


@dataclass(frozen=True, slots=True)
class Member:
    """Where a pod stands in what it belongs to, gang or not."""

    role: str  # the system's own word, in lower case
    index: int | None = None  # within the role
    rank: int | None = None  # within the whole gang, across roles
    subgroup: str = ""  # members that belong closest together within the gang
    queue: str = ""  # empty: its namespace is its queue
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class Recognised:
    """*minimum* pods have to have their places together before this one may be bound, those that
    run already included. It can differ within a gang: a controller that makes workers only once
    their leader is ready has the leader waited for alone."""

    gang: GangName
    size: int  # pods of the complete gang that are still to run, those without GPUs too
    minimum: int
    gpu_size: int  # those of `size` that take GPUs; where only the pod tells, all are as it is
    gpu_minimum: int  # those of `minimum` that take GPUs
    wave: int  # pods that exist at the same time as this one; what is above comes later
    member: Member
    basis: Basis
    rule: str  # the entry of the table that said so
    because: str
    done: int = 0  # members that ended well, never come back, and are not in `size`
    open_ended: bool = False  # `size` is not the most: more pods may come and join
    owners: frozenset[str] = frozenset()  # uids of the objects that stand for it


@dataclass(frozen=True, slots=True)
class NoGang:
    member: Member
    rule: str
    because: str


@dataclass(frozen=True, slots=True)
class NeedsOwner:
    """Read `owner` at the first of `paths` that is served, then ask again.

    *missing*: it was asked for and is not there yet. The pod waits until it is.
    """

    owner: ObjectRef
    paths: tuple[str, ...]
    rule: str
    because: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """`because` names every source that speaks, and what each one says."""

    because: str
    rule: str


Answer = Recognised | NoGang | NeedsOwner | Refused


class IndexedJobs(Enum):
    """Which Indexed Jobs whose pods all run at once are gangs; many are static shards."""

    ALL = "all"
    WITH_SUBDOMAIN = "with-subdomain"  # its pods address each other by name
    NONE = "none"
