"""What people may ask about the books, as values: explanations, gangs, nodes and counts.

The shell renders them as JSON or text. Numbers that change live here, never in the texts of
`filter`. Times are seconds since 1970, bandwidths GB/s.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pod asks for."""

    gpus: int
    containers: Mapping[str, int]  # those that take GPUs
    require_link: str  # a word of linkwise.dev/require-link; "node" is no requirement
    prefer_link: str
    models: tuple[str, ...]  # empty: any
    memory_mib: int  # 0: any


@dataclass(frozen=True, slots=True)
class ReasonCount:
    reason: str
    nodes: int


@dataclass(frozen=True, slots=True)
class NearestMiss:
    """The node that comes closest to what was wanted, and what it lacks."""

    node: str
    lacks: str


@dataclass(frozen=True, slots=True)
class MemberView:
    pod: str
    rank: int | None
    state: str  # bound, planned, waiting, ended, leaving
    node: str  # where it is, or is planned to be
    gpus: tuple[str, ...]  # uuids


@dataclass(frozen=True, slots=True)
class GangView:
    namespace: str
    name: str
    phase: str  # a value of linkwise.extender.gang.Phase
    reason: str  # why it is not further, in words; empty when nothing is to be said
    size: int
    members: tuple[MemberView, ...]
    plan: str  # id, empty without a plan
    made: float | None
    deadline: float | None  # when a partial gang gives back what it holds
    refusals: int
    started: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a pod is where it is, or why it waits."""

    namespace: str
    name: str
    uid: str
    state: str  # bound, planned, waiting, ended, not-ours (takes no GPU), invalid
    summary: str  # one sentence
    wanted: Wanted | None
    node: str
    gpus: Mapping[str, tuple[str, ...]]  # container -> uuids, planned or real
    link: str
    gbytes_per_s: float
    reasons: tuple[ReasonCount, ...]  # for a waiting pod: why nodes do not do, most nodes first
    fitting_nodes: int
    nearest: NearestMiss | None
    gang: GangView | None


@dataclass(frozen=True, slots=True)
class GpuView:
    index: int
    uuid: str
    model: str
    healthy: bool
    state: str  # free, held (planned), used (the kubelet says so), unhealthy
    holder: str  # namespace/name


@dataclass(frozen=True, slots=True)
class NodeView:
    name: str
    usable: bool
    reason: str  # why it is not usable
    clique: str
    gpus: tuple[GpuView, ...]
    free: int
    future: float  # what the free GPUs are worth to the jobs to come, 0 to 1 of the idle machine


@dataclass(frozen=True, slots=True)
class Counts:
    """For the metrics."""

    gangs: Mapping[str, int]  # by phase
    gpus: Mapping[str, int]  # by state: free, held, used, unhealthy
    nodes: Mapping[str, int]  # by state: usable, unusable
    swaps: int  # since the start
    refusals: int  # since the start
