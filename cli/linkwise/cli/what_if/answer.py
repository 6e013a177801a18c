"""The answer to "what if I submitted this job?", as values; docs/what-if.md has them in words.

Times are seconds since 1970, bandwidths GB/s.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from linkwise.cli.what_if.given.machines import Guess, LeftOut
from linkwise.extender.api.views import Explanation, GangExplanation, Holder

# What becomes of a part of the job.
FITS, STARTS, WAITS, NOT_OURS = "fits", "starts", "waits", "not-ours"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod goes."""

    pod: str  # name
    wanted: int  # GPUs
    rank: int | None
    node: str  # empty: nowhere yet
    gpus: tuple[int, ...]  # their indices on the node
    uuids: tuple[str, ...] | None  # None: its node's machine is guessed, so they are not known
    link: str
    gbytes_per_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """When a part of the job has its GPUs, if all who say how long they run keep their word and
    no other job comes. Where more than the known ends are needed there is none."""

    at: float
    places: tuple[Place, ...]
    span: str


@dataclass(frozen=True, slots=True)
class Part:
    """A gang of the job, or a pod of it that runs for itself."""

    namespace: str
    name: str
    is_gang: bool
    because: str  # which rule says that it is a gang, or none
    state: str  # fits: all its pods; starts: enough of them; waits; not-ours: it takes no GPU
    size: int
    minimum: int  # so many pods are enough to start
    places: tuple[Place, ...]  # now
    span: str  # what all of its pods share, like `topology.kubernetes.io/zone=a`
    start: Start | None  # None: it starts now, or it is not known when
    waits_for: tuple[Holder, ...]  # who has the GPUs that it would get
    evicts: tuple[str, ...]  # pods that Linkwise would evict for it
    why: GangExplanation | Explanation | None  # of one that waits


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod of the cluster that is in the way."""

    pod: str  # namespace/name
    node: str
    gpus: int
    priority: int
    until: float | None  # as far as it is known


@dataclass(frozen=True, slots=True)
class Room:
    """If these pods were gone, and no other pod waited, all of the job would start."""

    pods: tuple[HeldPod, ...]
    fewest: bool  # no fewer would do; else none of these can be left out
    by: str  # "end", or "eviction" where kube-scheduler would evict them for it


@dataclass(frozen=True, slots=True)
class Never:
    """Not even once all pods are gone that could go, and why."""

    why: tuple[GangExplanation | Explanation, ...]


@dataclass(frozen=True, slots=True)
class Use:
    nodes: int  # with GPUs that are known
    gpus: Mapping[str, int]  # by state


@dataclass(frozen=True, slots=True)
class Answer:
    at: float
    job: tuple[str, ...]  # the objects that were submitted
    fits: bool  # all of it starts now
    cluster: Use
    parts: tuple[Part, ...]
    room: tuple[Room, ...]
    never: Never | None
    guesses: tuple[Guess, ...]
    left_out: tuple[LeftOut, ...]
    presumed: tuple[str, ...]  # pods whose GPUs no plan and no plugin names
    notes: tuple[str, ...]
