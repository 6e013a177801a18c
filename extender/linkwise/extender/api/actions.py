"""What the core wants written to the API server: it decides, the shell writes and reports back.

Every action names the pod by namespace, name *and* uid: a pod created anew under the same name is
another pod, and must never get what was meant for the one before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class PodRef:
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Annotations and `status.nominatedNodeName` = *node*, in one write."""

    pod: PodRef
    node: str
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WithdrawPlan:
    """Take these annotations and the nomination away, in one write."""

    pod: PodRef
    annotations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Nominate:
    """`status.nominatedNodeName` = *node* of a pod that has no plan: it is to be tried again, and
    there first."""

    pod: PodRef
    node: str


@dataclass(frozen=True, slots=True)
class LiftGate:
    """Take `linkwise.dev/plan` off the pod's scheduling gates; those of others stay."""

    pod: PodRef


@dataclass(frozen=True, slots=True)
class Correct:
    """Annotations of a running pod that must say what the kubelet really did."""

    pod: PodRef
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MarkStarted:
    """`linkwise.dev/gang-started: "true"`: this member's gang has been whole once. Mostly it comes
    with the Binding of the last member, and nothing is written for it."""

    pod: PodRef
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NoteQueue:
    """What its gang has in the queue, on the oldest pod of a gang that waits; None: nothing."""

    pod: PodRef
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class Evict:
    """Through the Eviction API, so that PodDisruptionBudgets are respected."""

    pod: PodRef
    reason: str


class EventType(Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Emit:
    """A Kubernetes Event about the pod; the core says each one once."""

    pod: PodRef
    reason: str  # CamelCase
    type: EventType
    message: str


Action = (
    WritePlan
    | WithdrawPlan
    | Nominate
    | LiftGate
    | Correct
    | MarkStarted
    | NoteQueue
    | Evict
    | Emit
)
