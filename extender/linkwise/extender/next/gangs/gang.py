"""A gang's phases, the transitions between them, and the state that is kept about a gang.

    forming ──▶ planned ──▶ binding ──▶ running ◀──▶ repairing
       ▲           │           │           │             │
       │◀──refused─┤           │           └─▶ released ◀┘
       └◀──expired─┴───────────┘

The phase is worked out from the members each time, so a restart finds it again; IMPOSSIBLE names
the changes that no facts can make, and why. What counts is the *minimum*: once so many members are
bound the gang has started, and those beyond it follow as they come and as there is room.
The extender remembers only what no pod says: when the plan was made, which plans kube-scheduler
refused, and where the members were. What a gang waits for is in the scheduling queue.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from linkwise.extender.place.request import Spot
from linkwise.extender.state.records import GangKey, Seat


class Phase(Enum):
    FORMING = "forming"  # too few members exist, or there is no room for enough of them
    PLANNED = "planned"  # enough members have GPUs reserved, none is bound
    BINDING = "binding"  # some are bound, and too few for a start
    RUNNING = "running"  # enough are bound
    REPAIRING = "repairing"  # it has started, and too many members are missing or have no GPUs
    RELEASED = "released"  # no member has or requests anything
    REFUSED = "refused"  # kube-scheduler refused its plans, or its pods contradict each other
    EXPIRED = "expired"  # it was partial for too long and returns everything


IMPOSSIBLE: Mapping[tuple[Phase, Phase], str] = {
    (Phase.RUNNING, Phase.EXPIRED): "a gang that has started is not evicted for being partial",
    (Phase.EXPIRED, Phase.BINDING): "it first gives back everything, and is planned again",
}
"""The changes that no facts can make, and why. Pods come and go at any time, so every other change
of the phase is possible between two looks."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The members, counted by their state; `minimum` members are enough."""

    minimum: int
    live: int
    bound: int  # live and bound
    planned: int  # live, not bound, with GPUs reserved; or without need of GPUs
    done: int  # succeeded in this gang's present run
    started: bool
    refused: bool = False
    expired: bool = False

    @property
    def enough(self) -> bool:
        return self.bound + self.done >= self.minimum


def phase_of(standing: Standing) -> Phase:
    if not standing.live:
        return Phase.RELEASED
    if standing.enough:
        return Phase.RUNNING
    if standing.expired:
        return Phase.EXPIRED
    if standing.refused:
        return Phase.REFUSED
    if standing.started:
        return Phase.REPAIRING
    placed = standing.bound + standing.planned + standing.done
    if placed >= standing.minimum:
        return Phase.BINDING if standing.bound else Phase.PLANNED
    return Phase.BINDING if standing.bound else Phase.FORMING


class News(NamedTuple):
    """What may let plans succeed that were refused."""

    changes: int  # rises when a node changes, or the pods on it
    ends: int  # rises when the refusal of a node ends, by a call that names it or by time


NO_NEWS = News(0, 0)
# If a node or the pods on it have changed, what was missing may be there. Then the pause is as
# short as kube-scheduler's own back-off: 1, 2, 4, 8, 10 s, doubled each time that such a change did
# not help. It goes on doubling after many of these, if only the refusal of a node has ended, as the
# next member may be refused there, or if the refusals have only shown which nodes are left.
_REST_SECONDS, _LONG_REST_SECONDS = 10.0, 60.0
_MOST_DOUBLINGS = 6  # more make no difference
_MANY = 8


@dataclass(slots=True)
class Gang:
    """The state that the extender keeps about a gang between two rounds."""

    key: GangKey
    phase: Phase = Phase.FORMING
    reason: str = ""
    uncreated: str = ""  # who keeps its missing members from existing, in words
    plan_id: str = ""
    made: float | None = None  # when its present plan was made; its timeout counts from then
    grace: float = 0.0  # or from then, if that is later
    refusals: int = 0
    refused: bool = False  # too often: left waiting
    refused_until: float = 0.0  # then it is tried again in any case
    refused_since: float = 0.0
    refused_at: News = NO_NEWS  # what had happened when it was refused
    has_learnt: bool = False  # by then: which nodes do not take its members
    times_refused: int = 0  # in a row
    changes_in_vain: int = 0  # of these, after a node or the pods on it had changed
    asked: bool = False  # kube-scheduler has called about a member since the plan was made
    gathers_until: float | None = None  # calls about it wait; None: before the first one
    unwritten_until: float = 0.0  # its plan is in memory only, unless a Binding names it
    called: bool = False  # it has called about members whose PodGroup has another priority
    expired: bool = False  # members are being evicted
    was_refused: bool = False  # its plan turned out to be impossible since the last round
    # The API server refused the Bindings of these members for good: the next time they go first.
    pilots: set[Seat] = field(default_factory=set)
    is_denied: bool = False  # by the API server: no change of a node helps
    is_hopeless: bool = False  # that refusal holds for every plan, until something changes
    passed: dict[str, str] = field(default_factory=dict)  # member -> node it was let through to
    marked: frozenset[str] = frozenset()  # the bound members, once it has started
    gated_since: float | None = None  # since when its members wait behind linkwise's gate
    members: frozenset[str] = frozenset()  # the live members at the last look
    came: float = 0.0  # when the last new member was seen
    able_since: float | None = None  # since when enough members exist without a plan
    spots: dict[Seat, Spot] = field(default_factory=dict)  # where its members are, and were
    stuck_since: float | None = None  # it has started, and misses members that it needs
    turn_since: float | None = None  # since when all its members are ready that exist
    lost_since: float | None = None  # since when it has started, and has too few bound members
    altered: bool = False  # pods of it came or changed since the last look
    altered_until: float = 0.0  # a change of its own pods ended its plan: until then it gets none
    unasked: str = ""  # its scheduler, if that does not call the extender: it gets no plan
    broken: list[str] = field(default_factory=list)  # transitions that are impossible

    def enter(self, phase: Phase) -> None:
        if phase is self.phase:
            return
        if (self.phase, phase) in IMPOSSIBLE:
            self.broken.append(f"gang {self.name}: {self.phase.value} -> {phase.value}")
        self.phase = phase

    def tried_at(self, news: News) -> float:
        """When it may be tried again, given what has happened."""
        if self.is_denied or (news == self.refused_at and not self.has_learnt):
            return self.refused_until
        times, longest = self.times_refused - 1, _LONG_REST_SECONDS
        if news.changes != self.refused_at.changes:
            times = self.changes_in_vain
            longest = _REST_SECONDS if times <= _MANY else longest
        return self.refused_since + min(2.0 ** min(times, _MOST_DOUBLINGS), longest)

    def pause(self, now: float, until: float, news: News) -> None:
        """Its plans were refused; *until*: then it is tried again in any case."""
        if self.times_refused and news.changes != self.refused_at.changes:
            self.changes_in_vain += 1
        self.times_refused += 1
        self.refused, self.refused_until = True, until
        self.refused_since, self.refused_at = now, news

    def count_start(self) -> None:
        """Only refusals in a row count."""
        self.refusals = self.times_refused = self.changes_in_vain = 0
        self.pilots.clear()

    def is_often_refused(self, news: News) -> bool:
        """Whether so many pauses did not help that one plan a time is enough."""
        is_as_before = news.changes == self.refused_at.changes
        return self.changes_in_vain > _MANY or (is_as_before and self.times_refused > _MANY)

    def forgive(self) -> None:
        """Forget that kube-scheduler has refused its plans too often."""
        if self.refused:
            self.refused, self.refusals, self.is_denied = False, 0, False

    @property
    def name(self) -> str:
        return f"{self.key.namespace}/{self.key.name}"

    @property
    def alone(self) -> bool:
        """Whether this is a single pod, planned ahead; only the extender treats it as a gang."""
        return bool(self.key.uid)
