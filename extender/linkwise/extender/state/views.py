"""Views of the cache as values: explanations, gangs, nodes and counts.

The loop renders them as JSON or text. Numbers that change belong here, never in the texts of
`filter`. Times are seconds since 1970, bandwidths GB/s.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from linkwise.extender.state.decisions import Decision
from linkwise.topology.annotations.plan import CommunicatorEstimate

# Starts at the slowest connection between two sockets and doubles; docs/topology.md.
GBYTES_PER_S = (6.0, 12.0, 24.0, 48.0, 96.0, 192.0, 384.0, 768.0)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
ONE, SEVERAL = "one", "several"  # nodes


@dataclass(frozen=True, slots=True)
class Spread:
    """A histogram: the count of values up to each bound and above the last, and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> "Spread":
        return cls(bounds, (0,) * (len(bounds) + 1))

    def with_one(self, value: float) -> "Spread":
        place = bisect_left(self.bounds, value)
        counts = tuple(count + (number == place) for number, count in enumerate(self.counts))
        return Spread(self.bounds, counts, self.total + value)


def _empty(bounds: tuple[float, ...]) -> dict[str, Spread]:
    return {nodes: Spread.empty(bounds) for nodes in (ONE, SEVERAL)}


@dataclass(frozen=True, slots=True)
class Placed:
    """All gangs that got a new plan since the start, by whether it uses one node or several."""

    gbytes_per_s: Mapping[str, Spread] = field(default_factory=lambda: _empty(GBYTES_PER_S))
    shares: Mapping[str, Spread] = field(default_factory=lambda: _empty(SHARES))

    def with_gang(self, nodes: int, gbytes_per_s: float, ideal: float) -> "Placed":
        """*ideal* is the GB/s that idle machines would give the gang."""
        where = ONE if nodes == 1 else SEVERAL
        share = min(gbytes_per_s / ideal, 1.0) if ideal else 1.0
        return Placed(
            {**self.gbytes_per_s, where: self.gbytes_per_s[where].with_one(gbytes_per_s)},
            {**self.shares, where: self.shares[where].with_one(share)},
        )


class PodState(StrEnum):
    BOUND = "bound"
    PLANNED = "planned"
    WAITING = "waiting"
    ENDED = "ended"
    LEAVING = "leaving"  # only of a gang's member
    INVALID = "invalid"
    NOT_OURS = "not-ours"  # it takes no GPU of a device plugin
    LEFT_ALONE = "left-alone"
    TO_COME = "to-come"  # only of a gang's member: its owner creates it later


class HolderState(StrEnum):
    USED = "used"  # by the kubelet's report
    HELD = "held"  # planned
    ENDING = "ending"
    RESERVED = "reserved"  # the GPUs are free


class EndSource(StrEnum):
    """What says until when a holder has its GPUs."""

    EXPECTED = "expected-duration"
    TIMEOUT = "gang-timeout"
    ENDLESS = "endless"  # a server, which does not end by itself
    NONE = ""


class Verdict(StrEnum):
    """How the best other placement compares with the one that was chosen."""

    LOST = "lost"
    EQUAL = "equal"
    BETTER = "better"  # GPUs have come free since the plan was made


@dataclass(frozen=True, slots=True)
class RequestView:
    """What a pod requests."""

    gpus: int
    containers: Mapping[str, int]  # those that take GPUs
    require_link: str  # a word of linkwise.dev/require-link; "node" requires nothing
    prefer_link: str
    hardware: tuple[str, ...]  # what each GPU must have, in words; empty: any is good enough
    milli_cpu: int = 0  # of the whole pod
    memory: int = 0  # bytes, of the whole pod
    others: Mapping[str, int] = field(default_factory=dict)  # of the whole pod, by resource
    shares: Mapping[str, int] = field(default_factory=dict)  # of divided GPUs, by resource
    share: str = ""  # linkwise.dev/share


@dataclass(frozen=True, slots=True)
class ReasonCount:
    reason: str
    nodes: int
    example: str = ""  # a pod that a kubelet refused on one of them, and the kubelet's words


@dataclass(frozen=True, slots=True)
class LevelView:
    """One requirement, and how many of those that met the levels before also meet this one."""

    level: str  # topology, size, model, partition, link, alignment, node, free, free-partition,
    # free-link, free-alignment, resources, kubelet, kube-scheduler, shares; for a gang: members,
    # room, or the key of a node label that a required span names, with commas if only the
    # combination of several cannot be met
    wanted: str  # in words
    unit: str  # what is counted: nodes or pods
    have: int
    of: int
    missing: tuple[ReasonCount, ...] = ()  # why the others do not meet it, most nodes first


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod or a gang with GPUs that another one waits for."""

    pod: str  # namespace/name
    gang: str  # namespace/name of its gang; empty: a single pod
    gpus: int
    state: HolderState
    since: float | None  # when its plan was made; without a plan, when it was created
    until: float | None  # None: unknown; of reserved GPUs: when their gang can start
    because: EndSource
    shared: int = 0  # those of *gpus* of which it has only shares, which keep them from others


@dataclass(frozen=True, slots=True)
class NearestMiss:
    """The place that comes closest to meeting a request, and what it lacks."""

    place: str  # a node or a domain; for several levels one domain of each, with commas
    level: str  # `node`, or the label keys of which the domain is a value
    lacks: str
    holders: tuple[Holder, ...] = ()  # of its GPUs; the one that is known to end first comes first


@dataclass(frozen=True, slots=True)
class SearchView:
    """The search result for pods that are alike."""

    pods: int
    wanted: RequestView
    levels: tuple[LevelView, ...]
    room: int  # how many of the pods would fit now if they were alone; at most *pods*
    nearest: NearestMiss | None  # None: there is room for all of them


@dataclass(frozen=True, slots=True)
class MemberView:
    pod: str
    rank: int | None
    state: PodState
    node: str  # where it is bound, or planned to be
    gpus: tuple[str, ...]  # uuids
    role: str = ""  # as the operator that created it calls it


@dataclass(frozen=True, slots=True)
class RingView:
    """The ring through all of a gang's GPUs on one node."""

    node: str
    gpus: int
    gbytes_per_s: float


@dataclass(frozen=True, slots=True)
class CommunicatorView:
    """The estimated worth of a gang's GPUs together (docs/topology.md)."""

    gbytes_per_s: float
    rings: tuple[RingView, ...]
    between_gbytes_per_s: float | None  # from node to node; None: all are on one node


@dataclass(frozen=True, slots=True)
class RunnerUpView:
    """The best other placement of a placed gang or pod, on the cluster as it is now."""

    nodes: tuple[str, ...]
    gpus: tuple[int, ...]  # if it is on the same single node: the GPUs' indices
    gbytes_per_s: float | None  # estimated, of the whole communicator; None: no communication
    verdict: Verdict
    criterion: str  # the first criterion in which the two differ (docs/topology.md)
    why: str  # the criterion with both values, the winner's first


@dataclass(frozen=True, slots=True)
class GangView:
    namespace: str
    name: str
    phase: str  # a value of linkwise.extender.next.gangs.gang.Phase
    reason: str  # why it is not in a later phase, in words; may be empty
    size: int
    minimum: int  # members that are enough to start
    members: tuple[MemberView, ...]
    plan: str  # id, empty without a plan
    made: float | None
    deadline: float | None  # when a partial gang gives its GPUs back
    refusals: int
    started: bool
    priority: int = 0
    since: float | None = None  # when the first of its live members was created
    lost_since: float | None = None  # since when it is `repairing`
    missing_ranks: tuple[int, ...] = ()  # only if all existing members have ranks
    communicator: CommunicatorView | None = None  # of two or more GPUs
    runner_up: RunnerUpView | None = None  # if the caller asked for it and there is one


@dataclass(frozen=True, slots=True)
class ReservationView:
    """The GPUs that are reserved for a waiting gang, including those that are not free yet."""

    nodes: tuple[str, ...]
    gpus: int
    free: int  # of these
    start: float | None  # when all will be free; None: unknown, or a server has some of them
    sure: bool = True  # all holders state when they end; if False, *start* is an estimate
    evicts: bool = False  # less important or idle pods are evicted for it
    holders: tuple[Holder, ...] = ()  # of the GPUs that are not free


@dataclass(frozen=True, slots=True)
class ReclaimView:
    """Idle pods that are evicted for a waiting gang or pod if they stay idle."""

    units: tuple[str, ...]  # like "pod ml/notebook"
    at: float  # not before


@dataclass(frozen=True, slots=True)
class SeniorityView:
    """Why a gang or pod counts as older or younger than it is (`--queue-order=multifactor`)."""

    shift_seconds: float  # it counts as created so much later; below 0: earlier
    gpus: int  # of all its pods
    expected_seconds: float | None  # what its run time counts as; None: it never ends by itself


@dataclass(frozen=True, slots=True)
class GangExplanation:
    """Why a gang waits, or what phase it has reached."""

    gang: GangView
    waits: bool
    summary: str  # one sentence
    levels: tuple[LevelView, ...]  # of the gang as a whole
    searches: tuple[SearchView, ...]  # for members without GPUs, one for all that are alike
    nearest: NearestMiss | None  # a domain, if a required span failed
    ahead: int = 0  # unschedulable gangs and pods before it in the scheduling queue
    behind: str = ""  # the last of these, as in "gang ml/train"; empty: there is none
    seniority: SeniorityView | None = None  # None: the order is by age, or the gang does not wait
    reservation: ReservationView | None = None
    # Its reservation idled for too long: until then it reserves nothing beyond its share.
    rests_until: float | None = None
    reclaim: ReclaimView | None = None
    advised: tuple[str, ...] = ()  # namespace/name of pods; if they moved, it would start
    # Why no end of other pods makes room for it, in words; empty: it may.
    in_vain: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a pod is where it is, or why it waits."""

    namespace: str
    name: str
    uid: str
    state: PodState
    summary: str  # one sentence
    wanted: RequestView | None
    node: str
    gpus: Mapping[str, tuple[str, ...]]  # container -> uuids, planned or real
    link: str  # empty: a lone GPU, or none
    gbytes_per_s: float
    search: SearchView | None  # for a waiting pod: the nodes as if it were not in a gang
    gang: GangExplanation | None
    priority: int = 0
    since: float | None = None  # when it was created
    because: str = ""  # which rule found its gang, or found none, and why
    # GPU uuid -> index, of those that the node's machine has
    indices: Mapping[str, int] = field(default_factory=dict)
    communicator: CommunicatorEstimate | None = None  # of its gang, from its plan
    runner_up: RunnerUpView | None = None  # of a pod in no gang; see `GangView`
    by_count: bool = False  # it is on a node where pods are placed by count
    # As of a `GangExplanation`, of a waiting pod in no gang.
    ahead: int = 0
    behind: str = ""
    seniority: SeniorityView | None = None
    reclaim: ReclaimView | None = None
    advised: tuple[str, ...] = ()
    # Of divided GPUs: container -> resource -> ids, planned or real.
    shares: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    in_vain: str = ""  # of a waiting pod, as of a `GangExplanation`
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # claim -> uuids of GPUs


@dataclass(frozen=True, slots=True)
class ClosedNodes:
    """The nodes with GPUs that take no new pods for one reason."""

    reason: str
    nodes: tuple[str, ...]
    free: int  # GPUs there, free and not reserved


@dataclass(frozen=True, slots=True)
class BrokenOff:
    """Pods that a scheduler breaks off its tries of, by its error."""

    scheduler: str
    error: str
    pods: tuple[str, ...]  # namespace/name


@dataclass(frozen=True, slots=True)
class ClusterExplanation:
    """Every waiting gang and pod, the most urgent first."""

    at: float
    gpus: Mapping[str, int]  # by state: free, held, used, unhealthy
    nodes: int  # with GPUs
    gangs: tuple[GangExplanation, ...]
    pods: tuple[Explanation, ...]  # those in no gang
    order: tuple[str, ...]  # all of both, like "gang ml/train"
    closed: tuple[ClosedNodes, ...] = ()
    broken_off: tuple[BrokenOff, ...] = ()  # of pods that have a plan, too


@dataclass(frozen=True, slots=True)
class PartView:
    """A part of a divided GPU: a MIG device, or the GPU itself if replicas of it are given out."""

    uuid: str
    resource: str  # empty: no plugin offers it
    profile: str  # of a MIG device, like 1g.10gb; empty: replicas of the GPU
    shares: int  # 1, or the number of its replicas
    free: int  # of these; 0 if the part is unhealthy
    healthy: bool
    holders: Mapping[str, int]  # namespace/name -> how many of the shares


@dataclass(frozen=True, slots=True)
class ShareUse:
    """How many of a node's shares of one resource pods can get now."""

    resource: str
    free: int
    all: int


@dataclass(frozen=True, slots=True)
class GpuView:
    index: int
    uuid: str
    model: str
    healthy: bool
    state: str  # free, reserved, held (planned), used (by the kubelet's report), unhealthy, divided
    holder: str  # namespace/name
    parts: tuple[PartView, ...] = ()


@dataclass(frozen=True, slots=True)
class BestSet:
    """The most free GPUs that NVLink joins; if it joins no two of them, all free GPUs."""

    gpus: int
    link: str  # a word of linkwise.dev/require-link
    gbytes_per_s: float


@dataclass(frozen=True, slots=True)
class CountView:
    """The GPUs of a node where pods are placed by count, as kube-scheduler counts them."""

    gpus: int  # allocatable
    used: int  # requested by the pods there


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    usable: bool
    reason: str  # why it takes no new pods; empty: it is usable
    clique: str
    gpus: tuple[GpuView, ...]
    kind: str  # of its GPUs, like "8 x NVIDIA H100 80GB HBM3"
    best: BestSet | None  # of its free GPUs; None if none is free
    free: int
    reserved: int  # of the free ones: reserved for waiting gangs
    future: float  # worth of the free GPUs to later jobs, as a share (0 to 1) of the idle machine
    by_count: CountView | None = None  # where pods are placed by count: no topology is published
    shares: tuple[ShareUse, ...] = ()  # of its divided GPUs
    # The policy and scope of its kubelet's Topology Manager, and what said so; empty: unknown.
    topology_manager: str = ""
    # Why Linkwise plans nothing there, whatever else `reason` says: a value of
    # linkwise.extender.state.cache.node_info.ClosedBy; empty: it does.
    closed: str = ""


@dataclass(frozen=True, slots=True)
class KindUse:
    """How much of one kind of machine is in use, and how fragmented the rest is."""

    kind: str
    nodes: int
    gpus: Mapping[str, int]  # by state
    largest_free: int  # free GPUs on one node
    room: Mapping[int, int]  # GPUs of a pod -> how many such pods would fit now
    fragmented: float  # 0 to 1: the worth to later jobs that the free GPUs lose by being apart


@dataclass(frozen=True, slots=True)
class NamespaceUse:
    namespace: str
    used: int  # GPUs
    held: int
    pods: int  # that have GPUs
    waiting: int  # pods that wait for GPUs
    waiting_gpus: int


@dataclass(frozen=True, slots=True)
class ClusterUse:
    """How the cluster's GPUs are used."""

    at: float
    gpus: Mapping[str, int]  # by state
    nodes: int
    kinds: tuple[KindUse, ...]
    namespaces: tuple[NamespaceUse, ...]  # the one with the most GPUs first
    closed: tuple[ClosedNodes, ...] = ()


@dataclass(frozen=True, slots=True)
class IdlePod:
    """A pod with whole GPUs, none of which has worked since."""

    pod: str  # namespace/name
    gang: str  # the name of its gang; empty: it is in none
    gang_works: bool  # other members are not known to be idle
    node: str
    gpus: int
    since: float
    at_least: bool  # it may have been idle before: the plugin has watched only since then
    day_percent: int | None  # at most so much of the last 24 h its GPUs worked; None: not known
    memory_gib: int | None  # in use on its GPUs
    reclaim_from: float | None = None  # from when on it may be evicted for others; None: never


@dataclass(frozen=True, slots=True)
class WouldStartView:
    """A gang or pod that waits, and would start without some idle pods."""

    who: str  # like "gang ml/train"
    gpus: int
    without: tuple[str, ...]  # like "pod ml/notebook"


@dataclass(frozen=True, slots=True)
class IdleView:
    at: float
    pods: tuple[IdlePod, ...]  # idle for longest first
    not_idle: int  # pods with whole GPUs that work, or have not been watched for long enough
    unknown: int  # pods with whole GPUs of which nothing is known
    waiting: int  # gangs and pods that only lack room
    untried: int  # of these: the last ones of a long queue, of which `would_start` says nothing
    would_start: tuple[WouldStartView, ...]  # each by itself; the most urgent first


class MoveState(StrEnum):
    ADVISED = "advised"  # with --moves=consent, the pod would move
    EVICTING = "evicting"  # its target is reserved; it has not begun to leave
    LEFT = "left"  # or leaves; its target is kept for its replacement


@dataclass(frozen=True, slots=True)
class MoveView:
    pod: str  # namespace/name
    node: str  # where it is, or was
    target: str  # the node to which its replacement goes
    gpus: tuple[int, ...]  # their indices there; empty: nothing is known of that node any more
    lost_gpu_seconds: float
    state: MoveState
    kept_until: float | None  # the target, for the replacement; None: the pod has not left


@dataclass(frozen=True, slots=True)
class MovePlanView:
    """What moves so that a waiting gang or pod fits, or that a node is emptied."""

    for_whom: str  # like "gang ml/train", or "node gpu-3"
    gpus: int  # that it gets; 0: a node is emptied
    lost_gpu_seconds: float
    saved_gpu_seconds: float | None  # None: it would never start without the moves
    moves: tuple[MoveView, ...]  # without those that are over


@dataclass(frozen=True, slots=True)
class KeptWaitingView:
    """A workload whose pods do not consent to moves that would have made room for a large gang or
    pod."""

    namespace: str
    kind: str  # of its controller, such as Deployment
    name: str
    gpus: int  # of the pods that would have to move
    nodes: tuple[str, ...]  # where these are, or were
    waits: str  # like "gang ml/train"
    waits_gpus: int  # that it waits for
    gpu_seconds: float  # the workload's part of the wait, times these
    now: bool  # it is kept waiting still


@dataclass(frozen=True, slots=True)
class MovesView:
    at: float
    allowed: str  # the value of --moves
    plans: tuple[MovePlanView, ...]
    # Since the leader's term began, those that cost most first.
    kept_waiting: tuple[KeptWaitingView, ...] = ()


@dataclass(frozen=True, slots=True)
class EmptiedNode:
    node: str
    gpus: int  # that pods have or will get, whole or a share of them
    emptied: bool  # a person wants it empty (`linkwise.dev/empty`)


@dataclass(frozen=True, slots=True)
class StaysView:
    pod: str  # namespace/name
    node: str
    gpus: int  # whole ones
    why: str


@dataclass(frozen=True, slots=True)
class EmptyingView:
    """What becomes of the pods of nodes that are emptied, or if they are."""

    at: float
    allowed: str  # the value of --moves
    nodes: tuple[EmptiedNode, ...]
    moves: tuple[MoveView, ...]
    stays: tuple[StaysView, ...]


@dataclass(frozen=True, slots=True)
class MoveCounts:
    """Of moves, since the start."""

    begun: int = 0  # a target was reserved for each
    arrived: int = 0  # replacements that got their target
    given_back: int = 0  # targets
    lost_gpu_seconds: float = 0.0  # of pods that left
    helped: int = 0  # gangs and pods that got a place in room that moves made
    saved_gpu_seconds: float = 0.0  # of the waits of these, where an end of the wait was expected


@dataclass(frozen=True, slots=True)
class Counts:
    """What the metrics show."""

    gangs: Mapping[str, int]  # by phase
    gpus: Mapping[str, int]  # by state: free, held, used, unhealthy
    nodes: Mapping[str, int]  # by state: usable, unusable, emptied, by-count, claims
    swaps: int  # since the start
    refusals: int  # since the start
    placed: Placed = field(default_factory=Placed)  # gangs, since the start
    by_count: int = 0  # pods with GPUs on nodes where pods are placed by count
    kept: int = 0  # places for members of gangs that do not exist yet
    waiting: int = 0  # gangs and pods in the scheduling queue that found no room
    longest_wait_seconds: float = 0.0  # of these; 0 if there are none
    moves: MoveCounts = field(default_factory=MoveCounts)


@dataclass(frozen=True, slots=True)
class UnplannedPod:
    """A pod that kube-scheduler bound without asking, though the extender would have planned it."""

    pod: str  # namespace/name
    node: str
    scheduler: str


@dataclass(frozen=True, slots=True)
class KeptIdle:
    """Nodes without pods that a node autoscaler keeps for a gang, because a member fits on each of
    them; but the gang has no room."""

    gang: str  # namespace/name
    in_vain: str  # why, as of a `GangExplanation`
    since: float  # when its oldest waiting member was created
    nodes: tuple[str, ...]
    coming: int = 0  # its members whose pods its owner creates later


@dataclass(frozen=True, slots=True)
class StateView:
    """What the extender knows of its own part in the cluster."""

    at: float
    began: float  # when this extender began to decide
    resource: str
    namespaces: tuple[str, ...]  # whose pods it places; empty: of all
    calls: Mapping[str, float]  # scheduler -> when it last asked about a pod; 0.0: before `began`
    unplanned: tuple[UnplannedPod, ...]  # created since `began`, and since the last call
    # namespace/name of the pods that may be evicted, and whose Job counts that as a failure
    failing: tuple[str, ...] = ()
    kept_idle: tuple[KeptIdle, ...] = ()
    # namespace/name of the gangs that lack pods, and who refuses these, in words
    uncreated: Mapping[str, str] = field(default_factory=dict)
    kept_waiting: tuple[KeptWaitingView, ...] = ()  # as of a `MovesView`
    more_resources: tuple[str, ...] = ()  # that are GPUs, beside `resource`


@dataclass(frozen=True, slots=True)
class HistoryView:
    """What the leader has decided and carried out, the oldest first."""

    at: float
    began: float  # when its term began; earlier decisions are in the log of its predecessor
    dropped: int  # decisions of this term that it no longer has
    decisions: tuple[Decision, ...]
