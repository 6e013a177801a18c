"""What the cache stores of a Pod and of a Node: slim values, compared to find what changed.

A cluster has 20,000 pods. Most request no GPU, and only what they need beside it counts. All pods
that the scheduler would treat alike share one `Template`, which is a key of caches. `reader` makes
these values from the API server's objects.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from typing import NamedTuple, TypeVar

import msgspec

from linkwise.extender.state.actions import PodRef
from linkwise.kube.filters.node_affinity import required_nodes
from linkwise.kube.filters.pod_facts import PodFacts
from linkwise.kube.objects import LARGEST, Affinity, Taint, Toleration
from linkwise.pods.annotations import NOTHING_SAID, PodRequest
from linkwise.pods.claims import ClaimAsk
from linkwise.topology import names
from linkwise.topology.annotations.annotation_json import check_version, decode
from linkwise.topology.annotations.plan import Plan, PlannedShares
from linkwise.topology.demand import PodDemand
from linkwise.topology.names import DEFAULT_RESOURCE

T = TypeVar("T")


class PodMemory:
    """Everything that parts of the core remember of a pod by its uid, forgotten by one call.

    A part takes its dicts and sets from here in its constructor, and never replaces them.
    """

    def __init__(self) -> None:
        self._forget: list[Callable[[str], object]] = []

    def dict(self) -> dict[str, T]:
        made: dict[str, T] = {}
        self.ask(lambda uid: made.pop(uid, None))
        return made

    def set(self) -> set[str]:
        made: set[str] = set()
        self.ask(made.discard)
        return made

    def ask(self, forget: Callable[[str], object]) -> None:
        """*forget* is called with the uid of each pod that is gone, known or not."""
        self._forget.append(forget)

    def gone(self, uid: str) -> None:
        for forget in self._forget:
            forget(uid)


Place = tuple[str, int]
"""A node's name, and a bitmask of its GPUs."""
_NOTE_VERSION = 1
_NOTE_LIKE = 'JSON like {"v":1,"uid":"8f0c…","spots":[["gpu-3",["ff"]]]}'


class NotedMove(msgspec.Struct, frozen=True, array_like=True):
    """A pod that moves for the gang, and where its replacement goes."""

    pod: str  # namespace/name
    uid: str
    owner: str  # uid of its controller
    node: str
    gpus: str  # bitmask in hexadecimal
    # Of a member of a gang: the gang's name and source, and the member's rank.
    gang: str = ""
    source: str = ""
    rank: int | None = None
    shares: tuple[PlannedShares, ...] = ()


class QueueNote(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="v", tag=_NOTE_VERSION
):
    """The queue state of a gang, as its oldest waiting pod carries it in `linkwise.dev/queue`.

    The note holds the gang's age, if the gang was evicted and is older than its pods; the places
    that are reserved for it; since when its namespace idles such places (`idle_limit`); and the
    targets of the pods that move for it. A new leader continues from it, so that no younger gang
    gets what was reserved, and each pod that was evicted has its place. The note names its pod by
    uid: one that was copied with a manifest has no effect.
    """

    uid: str  # of the pod that carries it
    since: float | None = None  # seconds since 1970, if the gang is older than its pods
    # One place for each member without GPUs, in the order of their ranks: runs of places on one
    # node, each a bitmask of the node's GPUs in hexadecimal.
    spots: tuple[tuple[str, tuple[str, ...]], ...] = ()
    idle_since: float | None = None  # seconds since 1970
    idle_used: float = 0.0  # how much of what its namespace may idle was used up, 0 to 1
    rests_until: float | None = None  # seconds since 1970; until then nothing is reserved for it
    moves: tuple[NotedMove, ...] = ()
    moves_at: float | None = None  # seconds since 1970; when the last of them was planned
    # Seconds since 1970; when others had given way for its missing pods (`quota_turns`). No leader
    # needs it, but the controller of its pods sees that one changed.
    turn: float | None = None

    def places(self) -> list[Place]:
        """Raises ValueError if a bitmask is not hexadecimal."""
        return [(node, int(mask, 16)) for node, masks in self.spots for mask in masks]


def queue_note(
    uid: str,
    since: float | None,
    places: Sequence[Place],
    *,
    idle_since: float | None = None,
    idle_used: float = 0.0,
    rests_until: float | None = None,
    moves: tuple[NotedMove, ...] = (),
    moves_at: float | None = None,
    turn: float | None = None,
) -> QueueNote | None:
    """None if there is nothing to note."""
    if since is None and rests_until is None and turn is None and not (places or moves):
        return None
    runs = groupby(places, key=lambda place: place[0])
    spots = tuple((node, tuple(f"{gpus:x}" for _, gpus in run)) for node, run in runs)
    return QueueNote(
        uid=uid,
        since=since,
        spots=spots,
        idle_since=idle_since,
        idle_used=idle_used,
        rests_until=rests_until,
        moves=moves,
        moves_at=moves_at,
        turn=turn,
    )


def write_queue_note(note: QueueNote) -> str:
    return msgspec.json.encode(note).decode()


def read_queue_note(text: str) -> QueueNote:
    """Raises AnnotationError; for a newer version its subclass VersionError."""
    check_version(names.QUEUE, text, _NOTE_VERSION, _NOTE_LIKE)
    return decode(names.QUEUE, text, QueueNote, _NOTE_LIKE)


NO_DEMAND = PodDemand(())
_DIGITS = re.compile(r"(\d+)")
SortKey = tuple[tuple[int, int, str], ...]
_TO_COME = " (to come)"
Seat = int | str
"""A member's rank, or its name if it has no rank."""


class GangKey(NamedTuple):
    """A single pod that is planned ahead is a gang of its own: *uid* is that pod's.

    *source* distinguishes a recreated job from its predecessor, and a gang that was recognised
    from its owner from one that its pods name.
    """

    namespace: str
    name: str
    uid: str = ""
    source: str = ""

    @property
    def title(self) -> str:
        return f"{'pod' if self.uid else 'gang'} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class ResourceList:
    """What kube-scheduler counts for a pod, or what a node offers; all but the number of pods."""

    milli_cpu: int = 0
    memory: int = 0  # bytes
    gpus: int = 0  # the resource that is a GPU for the pod, or on the node
    # Each other resource, by name, in the order of the names. A node lists those of which it has 0
    # too; a sum or difference leaves them out.
    others: tuple[tuple[str, int], ...] = ()

    def __add__(self, more: "ResourceList") -> "ResourceList":
        return ResourceList(
            self.milli_cpu + more.milli_cpu,
            self.memory + more.memory,
            self.gpus + more.gpus,
            _added(self.others, more.others, 1),
        )

    def __sub__(self, less: "ResourceList") -> "ResourceList":
        return ResourceList(
            self.milli_cpu - less.milli_cpu,
            self.memory - less.memory,
            self.gpus - less.gpus,
            _added(self.others, less.others, -1),
        )

    def room_for(self, needs: "ResourceList") -> int:
        """For how many pods with these *needs* it is enough; `LARGEST` if they need nothing."""
        there = dict(self.others) if needs.others else {}
        return min(
            (
                max(have, 0) // need
                for have, need in (
                    (self.milli_cpu, needs.milli_cpu),
                    (self.memory, needs.memory),
                    (self.gpus, needs.gpus),
                    *((there.get(name, 0), need) for name, need in needs.others),
                )
                if need
            ),
            default=LARGEST,
        )


class Refuses(Enum):
    """What a kubelet that does not admit a pod would refuse too."""

    ALL = "all pods with GPUs"
    MORE = "pods that ask for more GPUs than it has left"
    SUCH = "pods that ask for the same"


class Refusal(NamedTuple):
    """That a kubelet did not admit a pod."""

    of: Refuses
    said: str  # the kubelet's message, as one line of bounded length
    available: int = 0  # how many GPUs it had left for the pod, where it refuses more


class Template:
    """What determines the nodes on which a pod may run; one object per distinct content."""

    __slots__ = ("__weakref__", "by_claim", "number", "required", "resource", "tolerations")

    def __init__(
        self,
        number: int,
        node_selector: Mapping[str, str],
        affinity: Affinity | None,
        tolerations: tuple[Toleration, ...],
        *,
        by_claim: bool = False,
        resource: str = "",
    ) -> None:
        """*by_claim*: its GPUs come from a claim that names them. *resource*: by which it takes
        GPUs; empty: it takes none."""
        self.number, self.by_claim, self.resource = number, by_claim, resource
        self.required = required_nodes(node_selector, affinity)
        self.tolerations = tolerations

    def takes(self, resource: str) -> bool:
        """Whether its pods may have the GPUs of a node that offers this *resource*."""
        return self.resource in ("", resource)


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """A plan as its pod carries it, or will carry it after the write."""

    plan: Plan
    gpus: Mapping[str, tuple[str, ...]]  # container -> uuids
    uuids: frozenset[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uuids", frozenset().union(*self.gpus.values()))


@dataclass(frozen=True, slots=True)
class PodRecord:
    ref: PodRef
    node: str  # spec.nodeName, empty while unbound
    ended: bool
    failed: bool
    leaving: bool  # has a deletionTimestamp
    priority: int
    created: float
    needs: ResourceList
    prefers: bool = False  # its spec prefers some of several nodes
    demand: PodDemand = NO_DEMAND
    resource: str = DEFAULT_RESOURCE  # of which `demand` is
    # What it takes of resources under which only shares are offered, by resource.
    shares: tuple[tuple[str, PodDemand], ...] = ()
    ask: PodRequest = NOTHING_SAID
    invalid: str = ""  # why its annotations or quantities are unreadable, or cannot be met
    awaits: str = ""  # what must be read before its gang is known; the core decides nothing before
    template: Template | None = None  # of pods that take GPUs or are in a gang
    nominated: str = ""
    gated: bool = False  # has the scheduling gate `linkwise.dev/plan`
    held_back: bool = False  # has any other scheduling gate
    written: WrittenPlan | None = None
    started: bool = False
    scheduler: str = ""  # spec.schedulerName
    asked: bool = False  # that scheduler has called this extender about this very pod
    unschedulable: bool = False  # a single pod: kube-scheduler has tried it and found no node
    # kube-scheduler's reason if its own filters left no node for the pod, so that it did not call.
    fits_nowhere: str = ""
    # kube-scheduler's error if it broke off its last try, as when it cannot call the extender.
    broken_off: str = ""
    preempts: bool = True  # other pods may be evicted for it
    running: bool = False
    # Its kubelet has given it its GPUs: it runs, prepares to, or has succeeded. Of a pod that has
    # failed, this does not show. One on a node that does not exist never gets there.
    admitted: bool = False
    refusal: Refusal | None = None  # the kubelet did not admit it: it failed without having run
    endless: bool = False  # a server: the kubelet restarts its containers however they end
    owner_kind: str = ""  # such as Job; empty: the pod has no owner
    owner_uid: str = ""
    owner_name: str = ""
    queue: QueueNote | None = None  # its gang's note on the scheduling queue, read from this pod
    leaving_until: float = 0.0  # of a terminating pod: when its grace period ends
    labels: Mapping[str, str] = field(default_factory=dict)  # of pods that take GPUs or shares
    facts: PodFacts | None = None  # what kube-scheduler's filters read; None: the pod has ended
    has_claims: bool = False  # for devices of DRA drivers, such as GPUs
    claim: ClaimAsk | None = None  # what is created for its planned GPUs
    # Only its use of its node counts: the extender does not place pods of its namespace, or its
    # kubelet created it.
    left_alone: bool = False
    # Its kubelet created it and runs it by itself, wherever it says it belongs.
    static: bool = False
    gang: GangKey | None = None  # what it is planned with; None: it is not planned ahead
    # The members of its gang that its owner creates only after others run; equal for all members.
    to_come: tuple["PodRecord", ...] = ()
    coming: bool = False  # no such pod exists yet: the extender keeps a place for it
    follows: str = ""  # the uid of the pod that leaves this place, and has it until then
    ready: bool = False  # of a pod for whose readiness its owner waits before it creates others
    disrupted: bool = False  # it leaves because its GPUs or its node are wanted for something else
    uid: str = field(init=False, compare=False)  # of `ref`; a round reads it often

    def __post_init__(self) -> None:
        object.__setattr__(self, "uid", self.ref.uid)

    @property
    def departure(self) -> tuple[bool, bool]:
        """Whether it is about to leave its node, and whether it consents to its eviction."""
        return self.leaving, self.ask.preemptible

    @property
    def key(self) -> str:
        """`namespace/name`, as `linkwise.dev/in-use` has it."""
        return f"{self.ref.namespace}/{self.ref.name}"

    @property
    def of_other_priority(self) -> bool:
        """Whether it is in a PodGroup of Kubernetes itself that has another priority."""
        wanted = None if self.ask.gang is None else self.ask.gang.native.priority
        return wanted not in (None, self.priority)

    @property
    def in_planned_gang(self) -> bool:
        """Whether its gang is planned as a whole. A member that takes shares alone is placed by
        itself, as a single pod is."""
        return self.gang is not None and not (self.shares and not self.demand.gpus)

    @property
    def gang_name(self) -> str:
        """The namespace/name of its gang; empty: it is a single pod."""
        gang = self.gang
        return "" if gang is None or gang.uid else f"{gang.namespace}/{gang.name}"

    @property
    def seat(self) -> "Seat":
        """What a recreated member shares with the old one, and a member to come with its pod."""
        if self.ask.rank is not None:
            return self.ask.rank
        return self.ref.name.removesuffix(_TO_COME)

    @property
    def live(self) -> bool:
        return not self.ended and not self.leaving

    @property
    def has_yet_to_leave(self) -> bool:
        """Whether it is terminating, and its node still has it."""
        return self.leaving and bool(self.node) and not self.ended

    def plan_for(self, node: str) -> WrittenPlan | None:
        """The plan written on the pod, if it is for this node; a plan for another node is void."""
        return self.written if self.written is not None and self.written.plan.node == node else None

    def declared_seconds(self, plan: WrittenPlan | None) -> float | None:
        """For how long it runs by its own word: the one by which it got the GPUs of its *plan*,
        even if it has taken that back since."""
        said = None if plan is None else plan.plan.expected
        return self.ask.expected_seconds if said is None else said

    @property
    def order(self) -> tuple[int, SortKey]:
        """Position in its gang: by rank; without a rank by name, worker-2 before worker-10."""
        no_rank = self.ask.rank is None
        return (2**31 if self.ask.rank is None else self.ask.rank), (
            natural(self.ref.name) if no_rank else ((0, 0, self.ref.name),)
        )


@dataclass(frozen=True, slots=True)
class NodeRecord:
    name: str
    ready: bool
    unschedulable: bool
    taints: tuple[Taint, ...]
    labels: Mapping[str, str]
    offers: ResourceList
    max_pods: int
    topology: str | None  # the annotations' texts
    in_use: str | None
    emptied: bool = False  # a person wants its GPUs free (`linkwise.dev/empty`)
    resource: str = DEFAULT_RESOURCE  # that is a GPU there

    def same_but_in_use(self, other: "NodeRecord") -> bool:
        """Whether nothing that affects placement differs, apart from the GPUs in use."""
        return replace(self, in_use=other.in_use) == other


def total(of: Iterable[ResourceList]) -> ResourceList:
    """The sum of many, without one object for each."""
    milli_cpu = memory = gpus = 0
    others: dict[str, int] = {}
    for each in of:
        milli_cpu += each.milli_cpu
        memory += each.memory
        gpus += each.gpus
        for name, amount in each.others:
            others[name] = others.get(name, 0) + amount
    return ResourceList(milli_cpu, memory, gpus, tuple(sorted(others.items())))


def _added(
    have: tuple[tuple[str, int], ...], more: tuple[tuple[str, int], ...], sign: int
) -> tuple[tuple[str, int], ...]:
    if not more:
        return have  # of most pods, which come by the thousand
    amounts = dict(have)
    for name, amount in more:
        amounts[name] = amounts.get(name, 0) + sign * amount
    return tuple(sorted(item for item in amounts.items() if item[1]))


def uid_to_come(key: GangKey, seat: Seat) -> str:
    """What a member to come has instead of a pod's uid."""
    return f"{key.namespace}/{key.name}/{key.source}#{seat}"


def name_to_come(gang: str, seat: Seat) -> str:
    """What it has instead of a pod's name. No pod can have such a name."""
    return f"{seat if isinstance(seat, str) else f'{gang} {seat}'}{_TO_COME}"


def natural(name: str) -> SortKey:
    """A sort key that orders numbers by value: worker-2 before worker-10."""
    return tuple(
        (1, int(part), "") if part.isdecimal() else (0, 0, part)
        for part in _DIGITS.split(name)
        if part
    )
