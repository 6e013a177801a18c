"""A gang's phases, the transitions between them, and the state that is kept about a gang.

    forming ──▶ planned ──▶ binding ──▶ running ◀──▶ repairing
       ▲           │           │           │             │
       │◀──refused─┤           │           └─▶ released ◀┘
       └◀──expired─┴───────────┘

The members determine the phase each time, so a restart finds it again. TRANSITIONS names every
change that facts can make, and why. The *minimum* decides: once so many members are bound, the gang
has started, and the members beyond it follow when they exist and there is room.
The extender remembers only what no pod shows: which try failed at which state of the cache, what a
gang waits for, and where its members were.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from linkwise.extender.api.records import GangKey
from linkwise.extender.placement.result import Refusal, Spot

Seat = int | str
"""What a recreated member shares with the old one: its rank, or its name if it has no rank."""


class Phase(Enum):
    FORMING = "forming"  # too few members exist, or there is no room for enough of them
    PLANNED = "planned"  # enough members have GPUs reserved, none is bound
    BINDING = "binding"  # some are bound, others have GPUs reserved, together they are enough
    RUNNING = "running"  # enough are bound
    REPAIRING = "repairing"  # some have GPUs, and too many others are missing or have none
    RELEASED = "released"  # no member has or requests anything
    REFUSED = "refused"  # kube-scheduler refused its plans, or its pods contradict each other
    EXPIRED = "expired"  # it was partial for too long and returns everything


_F, _P, _B, _R = Phase.FORMING, Phase.PLANNED, Phase.BINDING, Phase.RUNNING
_FIX, _END, _NO, _LATE = Phase.REPAIRING, Phase.RELEASED, Phase.REFUSED, Phase.EXPIRED

TRANSITIONS: Mapping[tuple[Phase, Phase], str] = {
    (_F, _P): "a plan was made for enough members",
    (_F, _B): "some were found bound, the others planned",
    (_F, _R): "enough were found bound",
    (_F, _FIX): "some were found placed, others not",
    (_F, _NO): "its pods contradict each other",
    (_F, _LATE): "some were found bound, long ago",
    (_F, _END): "its pods went away",
    (_P, _F): "the plan was given up as a whole",
    (_P, _B): "the first member was bound",
    (_P, _R): "enough were bound",
    (_P, _FIX): "a member, or its GPUs, went away",
    (_P, _NO): "kube-scheduler refused its nodes once too often",
    (_P, _LATE): "not enough were bound in time",
    (_P, _END): "its pods went away",
    (_B, _F): "the bound members went away, and the plan with them",
    (_B, _P): "the bound members went away, and others were planned",
    (_B, _R): "the last member that was needed was bound",
    (_B, _FIX): "a member, or its GPUs, went away",
    (_B, _NO): "kube-scheduler refused its nodes once too often",
    (_B, _LATE): "not enough were bound in time",
    (_B, _END): "its pods went away",
    (_R, _F): "all members were recreated",
    (_R, _P): "all members were recreated, and planned",
    (_R, _B): "members were recreated, and planned",
    (_R, _FIX): "a member that is needed went away",
    (_R, _NO): "members were recreated, and contradict each other",
    (_R, _END): "all members have ended",
    (_FIX, _F): "the plan was given up as a whole",
    (_FIX, _P): "enough members are planned again",
    (_FIX, _B): "enough members are planned or bound again",
    (_FIX, _R): "enough members are bound again",
    (_FIX, _NO): "kube-scheduler refused its nodes once too often",
    (_FIX, _LATE): "not enough were bound in time, or it could not be repaired",
    (_FIX, _END): "its pods went away",
    (_NO, _F): "a node or a member changed, or it has waited for long enough",
    (_NO, _P): "a node or a member changed, or it has waited for long enough; and a plan was made",
    (_NO, _B): "a node or a member changed, and the others were planned",
    (_NO, _R): "its members agree again, and enough are bound",
    (_NO, _FIX): "a node or a member changed",
    (_NO, _LATE): "not enough were bound in time",
    (_NO, _END): "its pods went away",
    (_LATE, _F): "everything was given back",
    (_LATE, _P): "everything was given back, and a new plan made",
    (_LATE, _NO): "it was too late once too often",
    (_LATE, _R): "enough were bound after all",
    (_LATE, _END): "its pods went away",
    (_END, _F): "pods were recreated",
    (_END, _P): "pods were recreated, and planned",
    (_END, _B): "pods were recreated, planned, and bound",
    (_END, _R): "pods were recreated, and bound",
    (_END, _FIX): "some pods were recreated",
    (_END, _NO): "pods were recreated that contradict each other",
    (_END, _LATE): "bound pods were found, too old",
}


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
    return Phase.REPAIRING if standing.bound or standing.planned else Phase.FORMING


@dataclass(slots=True)
class Gang:
    """The state that the extender keeps about a gang between two rounds."""

    key: GangKey
    phase: Phase = Phase.FORMING
    reason: str = ""
    plan_id: str = ""
    made: float | None = None  # when its present plan was made; its timeout counts from then
    grace: float = 0.0  # or from then, if that is later
    refusals: int = 0
    refused: bool = False  # too often: left waiting
    refused_until: float = 0.0  # then it is tried again in any case
    times_refused: int = 0  # in a row
    asked: bool = False  # kube-scheduler has called about a member since the plan was made
    expired: bool = False  # members are being evicted
    was_refused: bool = False  # kube-scheduler refused a planned node since the last round
    marked: frozenset[str] = frozenset()  # the bound members, once it has started
    tried_room: int = -1  # `Cache.room` when it last found no room
    lacking: Mapping[int, int] = field(default_factory=dict)  # then: GPUs of a pod -> how many pods
    no_room: Refusal | None = None
    sought_at: float = 0.0  # when `no_room` was found out
    sought_in: object = None  # the state of the cache then
    gated_since: float | None = None  # since when its members wait behind linkwise's gate
    members: frozenset[str] = frozenset()  # the live members at the last look
    came: float = 0.0  # when the last new member was seen
    able_since: float | None = None  # since when enough members exist without a plan
    spots: dict[Seat, Spot] = field(default_factory=dict)  # where its members are, and were
    stuck_since: float | None = None  # it has started, and misses members that it needs
    unasked: bool = False  # its scheduler does not call the extender, so it gets no plan
    broken: list[str] = field(default_factory=list)  # transitions that are impossible

    def enter(self, phase: Phase) -> None:
        if phase is self.phase:
            return
        if (self.phase, phase) not in TRANSITIONS:
            self.broken.append(f"gang {self.name}: {self.phase.value} -> {phase.value}")
        self.phase = phase

    def try_again(self) -> None:
        """Allow another search: it found no room, and now there may be some."""
        self.tried_room, self.lacking = -1, {}

    def take_up(self) -> None:
        """Allow another try, even if kube-scheduler has refused its plans too often."""
        self.try_again()
        if self.refused:
            self.refused, self.refusals = False, 0

    @property
    def name(self) -> str:
        return f"{self.key.namespace}/{self.key.name}"

    @property
    def alone(self) -> bool:
        """Whether this is a single pod, planned ahead; only the extender treats it as a gang."""
        return bool(self.key.uid)
