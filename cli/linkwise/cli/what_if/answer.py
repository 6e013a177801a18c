"""The answer to "what if I submitted this job?", as values; docs/what-if.md describes it.

Times are seconds since 1970, bandwidths GB/s.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from linkwise.cli.what_if.given.machines import Guess, LeftOut
from linkwise.extender.state.views import Explanation, GangExplanation, Holder


class PartState(StrEnum):
    FITS = "fits"  # all its pods
    STARTS = "starts"  # enough of them
    WAITS = "waits"


class By(StrEnum):
    """What would take the pods away that are in the way."""

    END = "end"
    EVICTION = "eviction"  # by kube-scheduler


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one pod."""

    pod: str  # name
    wanted: int  # GPUs
    rank: int | None
    node: str  # "": nowhere yet
    gpus: tuple[int, ...]  # their indices on the node
    uuids: tuple[str, ...] | None  # None: unknown, because its node's machine is guessed
    shares: tuple[str, ...]  # ids of the shares that it has instead of whole GPUs
    link: str  # empty: a lone GPU, or none yet
    gbytes_per_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """When a part of the job has its GPUs, if all pods end when they say and no other job comes. If
    it needs more than the known ends, there is no start."""

    at: float
    places: tuple[Place, ...]
    span: str


class Verdict(StrEnum):
    """Whether the extender would carry moves out, with --moves=consent."""

    YES = "yes"
    LATER = "later"  # once the one that waits has waited for longer
    NOT_FIRST = "not-first"  # it is not among the first in the queue
    SHORT_WAIT = "short-wait"  # it has room within --move-cost
    LOSES = "loses"  # they lose more than they save


@dataclass(frozen=True, slots=True)
class MovedPod:
    """A pod of the cluster that would go elsewhere."""

    pod: str  # namespace/name
    node: str
    gpus: tuple[int, ...]  # their indices on the node
    target: str  # the node of its replacement
    target_gpus: tuple[int, ...]
    lost_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class JobMoves:
    """If these pods moved, a part of the job would start at once."""

    pods: tuple[MovedPod, ...]
    lost_gpu_seconds: float
    saved_gpu_seconds: float | None  # None: it would never start without the moves
    verdict: Verdict
    after_seconds: float  # for `later`: how long it will have waited then


@dataclass(frozen=True, slots=True)
class JobPart:
    """A gang of the job, or a pod that is in none."""

    namespace: str
    name: str
    is_gang: bool
    because: str  # the rule by which it is a gang, or none
    state: PartState
    size: int
    minimum: int  # number of pods that is enough to start
    places: tuple[Place, ...]  # now
    span: str  # what all its pods share, like `topology.kubernetes.io/zone=a`
    start: Start | None  # None: it starts now, or the time is unknown
    waits_for: tuple[Holder, ...]  # the holders of the GPUs that it would get
    evicts: tuple[str, ...]  # pods that Linkwise would evict for it
    why: GangExplanation | Explanation | None  # of a part that waits
    moves: JobMoves | None = None  # None: none would make room, or none were found
    never: bool = False  # it cannot start, even alone and without every pod that could go
    hopeless: tuple[str, ...] = ()  # of its pods, those that no node can take even if it is empty


@dataclass(frozen=True, slots=True)
class OtherPod:
    """A pod of the job without GPUs. kube-scheduler places it, and the others need it."""

    pod: str  # namespace/name
    wanted: Mapping[str, int]  # thousandths of a CPU, else units
    node: str  # empty: none yet
    reasons: Mapping[str, int]  # of one without a node: kube-scheduler's words, of how many nodes
    lacks: tuple[str, ...]  # what it wants more of than any node has
    never: bool  # it fits on no node even without other pods


@dataclass(frozen=True, slots=True)
class LaterPod:
    """A pod of the job that is not created, because others that come first do not run."""

    pod: str  # namespace/name
    wanted: int  # GPUs
    after: str  # what it waits for


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod of the cluster that is in the way."""

    pod: str  # namespace/name
    gang: str  # namespace/name of its gang, which would lose a member; empty: it is in none
    node: str
    gpus: int
    priority: int
    until: float | None  # None: unknown


@dataclass(frozen=True, slots=True)
class Without:
    """If these pods were gone, and no other pod waited, all of the job would start."""

    pods: tuple[HeldPod, ...]
    fewest: bool  # True: no smaller number suffices; else none of these can stay
    by: By


@dataclass(frozen=True, slots=True)
class Never:
    """The job does not start even if every pod goes that could go; says why."""

    why: tuple[GangExplanation | Explanation, ...]


@dataclass(frozen=True, slots=True)
class ClusterUse:
    nodes: int  # nodes whose GPUs are known
    gpus: Mapping[str, int]  # GPUs by state


@dataclass(frozen=True, slots=True)
class WholeNodes:
    """Of the nodes with one number of GPUs: how many have all of them free, with moves and without
    them."""

    gpus: int  # of each of these nodes
    nodes: int  # that pods can use
    whole: tuple[str, ...]  # now
    emptied: tuple[str, ...]  # the nodes that the moves would empty
    moves: tuple[MovedPod, ...]
    lost_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class WholeNodesAnswer:
    at: float
    wanted: int  # whole nodes
    given: bool  # there are as many of one size, now or after moves
    cluster: ClusterUse
    sizes: tuple[WholeNodes, ...]  # those with most GPUs first
    guesses: tuple[Guess, ...]
    left_out: tuple[LeftOut, ...]
    presumed: tuple[str, ...]  # as below
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    at: float
    job: tuple[str, ...]  # the submitted objects
    fits: bool  # all of it starts now
    cluster: ClusterUse
    parts: tuple[JobPart, ...]
    without_gpus: tuple[OtherPod, ...]
    to_come: tuple[LaterPod, ...]
    room: tuple[Without, ...]
    never: Never | None
    guesses: tuple[Guess, ...]
    left_out: tuple[LeftOut, ...]
    presumed: tuple[str, ...]  # pods whose GPUs neither a plan nor a plugin names
    notes: tuple[str, ...]
