"""What people may ask about the books, as values: explanations, gangs, nodes and counts.

The shell renders them as JSON or text. Numbers that change live here, never in the texts of
`filter`. Times are seconds since 1970, bandwidths GB/s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from linkwise.extender.api.placement_totals import Placed
from linkwise.topology.plan import CommunicatorEstimate

# What the best other placement is beside the one that was taken.
LOST, EQUAL, BETTER = "lost", "equal", "better"
# What says until when a holder has its GPUs.
EXPECTED, TIMEOUT, ENDLESS = "expected-duration", "gang-timeout", "endless"


@dataclass(frozen=True, slots=True)
class RequestView:
    """What a pod asks for."""

    gpus: int
    containers: Mapping[str, int]  # those that take GPUs
    require_link: str  # a word of linkwise.dev/require-link; "node" is no requirement
    prefer_link: str
    models: tuple[str, ...]  # empty: any
    memory_mib: int  # of each GPU; 0: any
    milli_cpu: int = 0  # these two of the whole pod
    memory: int = 0  # bytes


@dataclass(frozen=True, slots=True)
class ReasonCount:
    reason: str
    nodes: int


@dataclass(frozen=True, slots=True)
class LevelView:
    """One thing that was wanted, and how much of it there is among what the levels before left."""

    level: str  # topology, size, model, link, node, free, free-link, resources, kube-scheduler;
    # of a gang: members, room, or the key of a node label that a required span names; several
    # keys, with commas, where only all of them together are too much
    wanted: str  # in words
    unit: str  # what is counted: nodes or pods
    have: int
    of: int
    missing: tuple[ReasonCount, ...] = ()  # why the others do not have it, most nodes first


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has GPUs that somebody waits for."""

    pod: str  # namespace/name
    gang: str  # namespace/name of its gang; empty: a single pod
    gpus: int
    state: str  # used (the kubelet says so), held (planned for it), ending; or reserved: nobody
    # has them, and they are kept for a gang that waits
    since: float | None  # when its plan was made, else when it was created
    until: float | None  # None: nobody knows; of what is reserved: when the gang can start
    because: str  # EXPECTED, TIMEOUT; ENDLESS: a server, which does not end by itself; or empty


@dataclass(frozen=True, slots=True)
class NearestMiss:
    """What comes closest to what was wanted, and what it lacks."""

    place: str  # a node, or a domain; of several levels one of each, with commas
    level: str  # node, or the label keys that the domain is a value of
    lacks: str
    holders: tuple[Holder, ...] = ()  # of its GPUs; who is known to end first comes first


@dataclass(frozen=True, slots=True)
class SearchView:
    """What was found for pods that are alike."""

    pods: int
    wanted: RequestView
    levels: tuple[LevelView, ...]
    room: int  # for how many of the pods there is room now, were they alone; *pods* at most
    nearest: NearestMiss | None  # None: there is room for all of them


@dataclass(frozen=True, slots=True)
class MemberView:
    pod: str
    rank: int | None
    state: str  # bound, planned, waiting, ended, leaving
    node: str  # where it is, or is planned to be
    gpus: tuple[str, ...]  # uuids
    role: str = ""  # as the system that made it calls it


@dataclass(frozen=True, slots=True)
class RingView:
    """The ring through all of a gang's GPUs on one node."""

    node: str
    gpus: int
    gbytes_per_s: float


@dataclass(frozen=True, slots=True)
class CommunicatorView:
    """What the GPUs that a gang has are estimated to be worth together (docs/topology.md)."""

    gbytes_per_s: float
    rings: tuple[RingView, ...]
    between_gbytes_per_s: float | None  # from node to node; None: all are on one node


@dataclass(frozen=True, slots=True)
class RunnerUpView:
    """The best other placement, as the cluster is now, for GPUs that a gang or a pod has."""

    nodes: tuple[str, ...]
    gpus: tuple[int, ...]  # where that is the same single node: their indices
    gbytes_per_s: float | None  # estimated, of the whole communicator; None: nobody talks
    verdict: str  # LOST, EQUAL, or BETTER: something has come free since the plan was made
    criterion: str  # the first thing that counts in which the two differ (docs/topology.md)
    why: str  # the same with both values, the winner's first


@dataclass(frozen=True, slots=True)
class GangView:
    namespace: str
    name: str
    phase: str  # a value of linkwise.extender.gangs.gang.Phase
    reason: str  # why it is not further, in words; empty when nothing is to be said
    size: int
    minimum: int  # so many are enough
    members: tuple[MemberView, ...]
    plan: str  # id, empty without a plan
    made: float | None
    deadline: float | None  # when a partial gang gives back what it holds
    refusals: int
    started: bool
    priority: int = 0
    since: float | None = None  # when the first of its live members was created
    missing_ranks: tuple[int, ...] = ()  # where all members there have ranks
    communicator: CommunicatorView | None = None  # of two GPUs and more
    runner_up: RunnerUpView | None = None  # where it was asked for, and there is one


@dataclass(frozen=True, slots=True)
class HoldView:
    """What is kept for a gang that waits, or comes to it as it comes free."""

    nodes: tuple[str, ...]
    gpus: int
    free: int  # of them
    start: float | None  # when all will be free; None: a server has some of them
    sure: bool = True  # all who have some of them said when they end; else it is an estimate
    evicts: bool = False  # less important pods are evicted for it
    holders: tuple[Holder, ...] = ()  # who has those of them that are not free


@dataclass(frozen=True, slots=True)
class GangExplanation:
    """Why a gang waits, or how far it is."""

    gang: GangView
    waits: bool
    summary: str  # one sentence
    levels: tuple[LevelView, ...]  # of the gang as a whole
    searches: tuple[SearchView, ...]  # for its members without GPUs, those that are alike as one
    nearest: NearestMiss | None  # a domain, where a required span failed
    ahead: int = 0  # how many others that find no room are more urgent
    hold: HoldView | None = None
    # Till then nothing over the share is kept for it: what was, idled for too long.
    rests_until: float | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a pod is where it is, or why it waits."""

    namespace: str
    name: str
    uid: str
    state: str  # bound, planned, waiting, ended, not-ours (takes no GPU), invalid
    summary: str  # one sentence
    wanted: RequestView | None
    node: str
    gpus: Mapping[str, tuple[str, ...]]  # container -> uuids, planned or real
    link: str
    gbytes_per_s: float
    search: SearchView | None  # for a waiting pod: where it would go by itself
    gang: GangExplanation | None
    priority: int = 0
    since: float | None = None  # when it was created
    because: str = ""  # which rule says that it is in a gang, or in none, and why
    communicator: CommunicatorEstimate | None = None  # of its gang, as its plan has it
    runner_up: RunnerUpView | None = None  # of a pod in no gang, as `GangView`


@dataclass(frozen=True, slots=True)
class ClusterExplanation:
    """Everything that waits, the most urgent first: by priority, then age."""

    at: float
    gpus: Mapping[str, int]  # by state: free, held, used, unhealthy
    nodes: int  # with GPUs
    gangs: tuple[GangExplanation, ...]
    pods: tuple[Explanation, ...]  # those in no gang


@dataclass(frozen=True, slots=True)
class GpuView:
    index: int
    uuid: str
    model: str
    healthy: bool
    state: str  # free, reserved (free, for a gang that waits), held (planned), used (the kubelet
    # says so), unhealthy
    holder: str  # namespace/name


@dataclass(frozen=True, slots=True)
class BestSet:
    """The most free GPUs that are joined by NVLink, or, where no two are, all that are free."""

    gpus: int
    link: str  # a word of linkwise.dev/require-link
    gbytes_per_s: float


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    usable: bool
    reason: str  # why it is not usable
    clique: str
    gpus: tuple[GpuView, ...]
    kind: str  # of its GPUs, like "8 x NVIDIA H100 80GB HBM3"
    best: BestSet | None  # of its free GPUs; None where none is free
    free: int  # nobody has them
    reserved: int  # of these: kept for gangs that wait
    future: float  # what the free GPUs are worth to the jobs to come, 0 to 1 of the idle machine


@dataclass(frozen=True, slots=True)
class KindUse:
    """How much of one kind of machine is in use, and in what pieces the rest is."""

    kind: str
    nodes: int
    gpus: Mapping[str, int]  # by state
    largest_free: int  # free GPUs on one node
    room: Mapping[int, int]  # pods of so many GPUs -> how many of them would fit now
    fragmented: float  # 0 to 1: what the free GPUs have lost to jobs to come by being apart


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
    namespaces: tuple[NamespaceUse, ...]  # who has most comes first


@dataclass(frozen=True, slots=True)
class Counts:
    """For the metrics."""

    gangs: Mapping[str, int]  # by phase
    gpus: Mapping[str, int]  # by state: free, held, used, unhealthy
    nodes: Mapping[str, int]  # by state: usable, unusable
    swaps: int  # since the start
    refusals: int  # since the start
    placed: Placed = field(default_factory=Placed)  # gangs, since the start
