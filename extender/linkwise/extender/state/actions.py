"""What the core wants written to the API server. The loop writes it and reports the outcome.

Every action names the pod by namespace, name *and* uid: a pod recreated under the same name is
another pod, and must never get a write that was meant for its predecessor.

Where there is no API server, `applied` and `bound` have the effect of an action or a Binding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

import msgspec

from linkwise.kube.device_claims import ResourceClaim
from linkwise.kube.objects import ObjectMeta, OwnerReference, Pod
from linkwise.topology import names


@dataclass(frozen=True, slots=True)
class PodRef:
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Set the annotations and `status.nominatedNodeName` = *node*, in one write."""

    pod: PodRef
    node: str
    annotations: Mapping[str, str]
    again: bool = False  # the plan is on the pod, and has lost its nomination
    instead: str = ""  # why the plan that it replaces was withdrawn
    # Remove the condition PodScheduled too, so that the next one is about this plan: kube-scheduler
    # does not repeat what it says already.
    unsays: bool = False


@dataclass(frozen=True, slots=True)
class WithdrawPlan:
    """Remove these annotations and the nomination, in one write."""

    pod: PodRef
    annotations: tuple[str, ...]
    why: str = ""  # in words, for the log
    node: str = ""  # of the plan; empty: not known


@dataclass(frozen=True, slots=True)
class Nominate:
    """Set `status.nominatedNodeName` = *node* on a pod without a plan.

    kube-scheduler then retries the pod, and tries that node first.
    """

    pod: PodRef
    node: str


@dataclass(frozen=True, slots=True)
class LiftGate:
    """Remove `linkwise.dev/plan` from the pod's scheduling gates; other gates stay."""

    pod: PodRef


@dataclass(frozen=True, slots=True)
class CreateClaim:
    """Create the ResourceClaim for which the pod waits, so that it gets exactly these GPUs."""

    pod: PodRef
    name: str
    gpus: Mapping[str, tuple[str, ...]]  # request -> uuids
    driver: str  # that gives them out
    edition: str  # of the plan
    template: str = ""  # the ResourceClaimTemplate whose spec it gets; empty: none


@dataclass(frozen=True, slots=True)
class DropClaim:
    """Delete a claim that no GPU is allocated to: the plan has changed."""

    pod: PodRef
    name: str
    uid: str  # of the claim
    version: str  # of the claim; it stays if it has changed since, as when it is allocated


@dataclass(frozen=True, slots=True)
class Correct:
    """Set annotations of a running pod to the GPUs that the kubelet really allocated."""

    pod: PodRef
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MarkStarted:
    """Set `linkwise.dev/gang-started` to the pod's uid: this member's gang has been complete once.

    Usually the Binding of the last member carries it, and no separate write is needed.
    """

    pod: PodRef
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NoteQueue:
    """Write the queue note of a waiting gang to its oldest pod; a value of None removes it."""

    pod: PodRef
    annotations: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class NotePlaces:
    """Write the places that a gang keeps for members to come to the ConfigMap of all gangs, under
    this *key*; a text of None removes them."""

    pod: PodRef  # stands for the gang: namespace, name, and *key* instead of a uid
    key: str
    text: str | None


@dataclass(frozen=True, slots=True)
class Beneficiary:
    """The gang or pod that gets the room of evicted pods."""

    title: str  # `GangKey.title`
    priority: int
    pod: PodRef  # the one of its pods that gets the Events about it


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict through the Eviction API, which respects PodDisruptionBudgets."""

    pod: PodRef
    why: str  # as it goes on after "evicted"
    event: str = ""  # the reason of the Event that says so once it is evicted; empty: none
    gang: str = ""  # namespace/name; empty: the pod is in none
    node: str = ""  # where it is bound
    priority: int | None = None  # which counted for the choice
    for_whom: Beneficiary | None = None


class EventType(Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Emit:
    """A Kubernetes Event about the pod; the core emits each one once."""

    pod: PodRef
    reason: str  # CamelCase
    type: EventType
    message: str


Action = (
    WritePlan
    | WithdrawPlan
    | Nominate
    | LiftGate
    | CreateClaim
    | DropClaim
    | Correct
    | MarkStarted
    | NoteQueue
    | NotePlaces
    | Evict
    | Emit
)


change = msgspec.structs.replace


def applied(action: Action, pod: Pod) -> Pod:
    """*pod* after *action*. An Event or a claim changes no pod. After an Evict, the caller decides
    when the pod ends."""
    match action:
        case WritePlan():
            planned = _nominated(_annotated(pod, action.annotations), action.node)
            return _unsaid(planned) if action.unsays else planned
        case WithdrawPlan():
            return _nominated(_annotated(pod, dict.fromkeys(action.annotations)), "")
        case Nominate():
            return _nominated(pod, action.node)
        case LiftGate():
            gates = tuple(gate for gate in pod.spec.scheduling_gates if gate.name != names.GATE)
            return change(pod, spec=change(pod.spec, scheduling_gates=gates))
        case Correct() | MarkStarted() | NoteQueue():
            return _annotated(pod, action.annotations)
        case Emit() | Evict() | CreateClaim() | DropClaim() | NotePlaces():
            return pod


def bound(pod: Pod, node: str, annotations: Mapping[str, str] | None = None) -> Pod:
    pod = _annotated(pod, annotations or {})
    return change(pod, spec=change(pod.spec, node_name=node))


def leaving(pod: Pod, until: float) -> Pod:
    """*pod* after it was deleted with a grace period, which ends at *until*."""
    end = datetime.fromtimestamp(until, UTC)
    return change(pod, metadata=change(pod.metadata, deletion_timestamp=end))


def late_claim(action: CreateClaim, uid: str) -> ResourceClaim:
    """The claim that the action creates, as the API server shows it."""
    owner = OwnerReference("Pod", action.pod.name, action.pod.uid)
    meta = ObjectMeta(
        name=action.name,
        namespace=action.pod.namespace,
        uid=uid,
        resource_version="1",
        annotations={names.EDITION: action.edition},
        owner_references=(owner,),
    )
    return ResourceClaim(metadata=meta)


def _annotated(pod: Pod, patch: Mapping[str, str | None]) -> Pod:
    """Apply a merge patch: None removes a key."""
    both = {**pod.metadata.annotations, **patch}
    kept = {key: text for key, text in both.items() if text is not None}
    return change(pod, metadata=change(pod.metadata, annotations=kept))


def _unsaid(pod: Pod) -> Pod:
    rest = tuple(each for each in pod.status.conditions if each.type != "PodScheduled")
    return change(pod, status=change(pod.status, conditions=rest))


def _nominated(pod: Pod, node: str) -> Pod:
    return change(pod, status=change(pod.status, nominated_node_name=node))
