"""The holders of a node's GPUs, and until when they have them, if they state it."""

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from linkwise.extender.next.queue.reservations import Reservation
from linkwise.extender.show.explain.snapshot import NodeState, Snapshot
from linkwise.extender.state.records import PodRecord, WrittenPlan
from linkwise.extender.state.views import EndSource, Holder, HolderState
from linkwise.topology.machine.model import MAX_GPUS

_ALL_GPUS = (1 << MAX_GPUS) - 1


def holders_of(
    snapshot: Snapshot, nodes: Iterable[NodeState], open_reservations: Container[int] = ()
) -> tuple[Holder, ...]:
    """The holders of GPUs of *nodes*, then the reservations of their free GPUs.

    *open_reservations* are the indices of those that are open to the caller and are left out.
    """
    nodes = tuple(nodes)
    kept = [
        _reserved(reservation, nodes)
        for place, reservation in enumerate(snapshot.reservations)
        if place not in open_reservations
    ]
    whole = dict.fromkeys((node.name for node in nodes), _ALL_GPUS)
    return (*owners_of(snapshot, whole), *(each for each in kept if each.gpus))


def owners_of(snapshot: Snapshot, gpus: Mapping[str, int]) -> tuple[Holder, ...]:
    """The holders of these GPUs, given as node -> bitmask.

    Terminating pods come first, then holders with a known end, the soonest first, then the others;
    of equals, the one with the most GPUs first.
    """
    found: dict[str, Holder] = {}
    for name, wanted in gpus.items():
        node = snapshot.node_named.get(name)
        if node is None:
            continue
        for uid, mask in node.owned.items():
            if mask & wanted:
                held = _holder(snapshot, node, uid, mask & wanted)
                before = found.get(uid)
                found[uid] = held if before is None else _together(before, held)
    return tuple(sorted(found.values(), key=_order))


def _holder(snapshot: Snapshot, node: NodeState, uid: str, mask: int) -> Holder:
    record = snapshot.by_uid.get(uid)
    gpus, shared = mask.bit_count(), (mask & node.strays.get(uid, 0)).bit_count()
    if record is None:  # the kubelet still reports the pod, and the API server has deleted it
        name = node.name_of(uid)
        return Holder(name, "", gpus, HolderState.ENDING, None, None, EndSource.NONE, shared)
    state = HolderState.USED if mask & node.used else HolderState.HELD
    if not record.live:
        state = HolderState.ENDING
    written = snapshot.plan_of(record)
    since = written.plan.made if written is not None else record.created or None
    until, because = _until(snapshot, record, written)
    return Holder(record.key, record.gang_name, gpus, state, since, until, because, shared)


def _until(
    snapshot: Snapshot, record: PodRecord, written: WrittenPlan | None
) -> tuple[float | None, EndSource]:
    gang = snapshot.gang_by_key.get(record.gang) if record.gang is not None else None
    if gang is not None and gang.deadline is not None and not gang.found.started:
        return gang.deadline, EndSource.TIMEOUT
    # As in `RunningPods`: the expected duration of a pod starts with its plan.
    expected = record.declared_seconds(written)
    if expected is not None and written is not None:
        return written.plan.made + expected, EndSource.EXPECTED
    return None, EndSource.ENDLESS if record.endless else EndSource.NONE


def _reserved(reservation: Reservation, nodes: Iterable[NodeState]) -> Holder:
    """The reservation's free GPUs, as a holder."""
    gpus = sum((node.reserved & reservation.gpus.get(node.name, 0)).bit_count() for node in nodes)
    who = f"{reservation.key.namespace}/{reservation.key.name}"
    pod, gang = (who, "") if reservation.key.uid else ("", who)
    # If servers have some of its GPUs, these come free by moves or evictions: nothing says when.
    known = reservation.earliest.sure and reservation.start < math.inf
    start = reservation.start if known else None
    return Holder(pod, gang, gpus, HolderState.RESERVED, None, start, EndSource.NONE)


def _together(first: Holder, second: Holder) -> Holder:
    gpus, shared = first.gpus + second.gpus, first.shared + second.shared
    return replace(first, gpus=gpus, shared=shared)


def _order(holder: Holder) -> tuple[bool, bool, float, int, str]:
    ending = holder.state is HolderState.ENDING
    known = holder.until is not None
    return not ending, not known, holder.until or 0.0, -holder.gpus, holder.pod
