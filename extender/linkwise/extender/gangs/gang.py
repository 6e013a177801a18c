"""A gang's life: its phases, what moves it from one to another, and what is remembered of it.

    forming ──▶ planned ──▶ binding ──▶ running ◀──▶ repairing
       ▲           │           │           │             │
       │◀──refused─┤           │           └─▶ released ◀┘
       └◀──expired─┴───────────┘

The phase is worked out from the members each time, so a restart finds it again; IMPOSSIBLE names
the changes that no facts can make, and why. What counts is the *minimum*: once so many members are
bound the gang has started, and those beyond it follow as they come and as there is room.
What is only remembered is what no pod says: which try failed at which state of the books, what a
gang waits for, and where its members were.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from linkwise.extender.api.records import GangKey
from linkwise.extender.placement.result import Refusal, Spot

Seat = int | str
"""What stays the same when a member is made anew: its rank, or where it has none its name."""


class Phase(Enum):
    FORMING = "forming"  # not enough members are there, or there is no room for enough of them
    PLANNED = "planned"  # enough members have GPUs held, none is bound
    BINDING = "binding"  # some are bound, others have GPUs held, and together they are enough
    RUNNING = "running"  # enough are bound
    REPAIRING = "repairing"  # some have GPUs, and too many others are missing or have none
    RELEASED = "released"  # no member is left that holds or wants anything
    REFUSED = "refused"  # kube-scheduler refused its plans, or its pods contradict each other
    EXPIRED = "expired"  # it was partial for too long and gives everything back


IMPOSSIBLE: Mapping[tuple[Phase, Phase], str] = {
    (Phase.RUNNING, Phase.EXPIRED): "a gang that has started is not evicted for being partial",
    (Phase.EXPIRED, Phase.BINDING): "it first gives back everything, and is planned again",
    (Phase.EXPIRED, Phase.REPAIRING): "it first gives back everything, and is planned again",
}
"""The changes that no facts can make, and why. Pods come and go at any time, so every other change
of the phase is possible between two looks."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What the members are doing, counted; `minimum` members are enough."""

    minimum: int
    live: int
    bound: int  # live and bound
    planned: int  # live, not bound, with GPUs held; or in need of none
    done: int  # ended well, as part of this gang's present life
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
    """What is remembered of a gang between two looks at it."""

    key: GangKey
    phase: Phase = Phase.FORMING
    reason: str = ""
    plan_id: str = ""
    made: float | None = None  # when its present plan was made; its timeout counts from here
    grace: float = 0.0  # or from here, where that is later
    refusals: int = 0
    refused: bool = False  # too often: left to wait
    refused_until: float = 0.0  # then it is tried again whatever happens
    times_refused: int = 0  # so often in a row
    asked: bool = False  # kube-scheduler has asked about a member since the plan was made
    expired: bool = False  # members are being evicted
    was_refused: bool = False  # since the last look, kube-scheduler refused a planned node
    marked: frozenset[str] = frozenset()  # members told that the gang has started
    tried_room: int = -1  # `Books.room` when it last had no room
    lacking: Mapping[int, int] = field(default_factory=dict)  # then: GPUs of a pod -> how many pods
    no_room: Refusal | None = None
    sought_at: float = 0.0  # when that was found out
    sought_in: object = None  # and what the books were then
    gated_since: float | None = None  # members wait behind our gate, and cannot be let go
    members: frozenset[str] = frozenset()  # who was there at the last look
    came: float = 0.0  # when the last new one was seen
    able_since: float | None = None  # since when enough of it are there, and it has no plan
    spots: dict[Seat, Spot] = field(default_factory=dict)  # where its members are, and were
    stuck_since: float | None = None  # it has started, and lacks members it needs
    unasked: bool = False  # its scheduler does not ask us, so nothing is planned for it
    broken: list[str] = field(default_factory=list)  # transitions that cannot be

    def enter(self, phase: Phase) -> None:
        if phase is self.phase:
            return
        if (self.phase, phase) in IMPOSSIBLE:
            self.broken.append(f"gang {self.name}: {self.phase.value} -> {phase.value}")
        self.phase = phase

    def try_again(self) -> None:
        """It found no room; now there may be some."""
        self.tried_room, self.lacking = -1, {}

    def take_up(self) -> None:
        """Try again, even where kube-scheduler has refused its plans once too often."""
        self.try_again()
        if self.refused:
            self.refused, self.refusals = False, 0

    @property
    def name(self) -> str:
        return f"{self.key.namespace}/{self.key.name}"

    @property
    def alone(self) -> bool:
        """A single pod, planned ahead: nobody but us calls it a gang."""
        return bool(self.key.uid)
