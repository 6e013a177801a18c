"""The effect of each action and Binding of the core on a Pod, where there is no API server that
would have it."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from linkwise.extender.state.actions import (
    Action,
    Correct,
    CreateClaim,
    DropClaim,
    Emit,
    Evict,
    LiftGate,
    MarkStarted,
    Nominate,
    NotePlaces,
    NoteQueue,
    WithdrawPlan,
    WritePlan,
)
from linkwise.kube.device_claims import ResourceClaim
from linkwise.kube.objects import ObjectMeta, OwnerReference, Pod
from linkwise.topology import names

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
