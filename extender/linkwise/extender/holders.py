"""Who holds the GPUs of a node, and until when, as far as anybody has said."""

from collections.abc import Iterable, Mapping

from linkwise.extender.records import GangKey, PodRecord
from linkwise.extender.snapshot import GangState, NodeState, Snapshot
from linkwise.extender.views import Holder

EXPECTED, TIMEOUT = "expected-duration", "gang-timeout"


def holders_of(snapshot: Snapshot, nodes: Iterable[NodeState]) -> tuple[Holder, ...]:
    """Who has most GPUs of these nodes comes first; before those whose end nobody knows, the ones
    that will end, the soonest first."""
    found: dict[str, Holder] = {}
    for node in nodes:
        for uid, mask in node.owned.items():
            held = _holder(snapshot, node, uid, mask)
            before = found.get(uid)
            found[uid] = held if before is None else _together(before, held)
    return tuple(sorted(found.values(), key=_order))


def ends_at(record: PodRecord) -> float | None:
    """When a running pod is expected to end, by its own word."""
    expected = record.ask.expected_seconds
    since = since_of(record)
    return None if expected is None or since is None else since + expected


def since_of(record: PodRecord) -> float | None:
    """Since when it has its GPUs: its plan was made then."""
    written = record.written
    if written is not None and record.node and written.plan.node == record.node:
        return written.plan.made
    return record.created or None


def _holder(snapshot: Snapshot, node: NodeState, uid: str, mask: int) -> Holder:
    record = snapshot.by_uid.get(uid)
    gpus = mask.bit_count()
    if record is None:  # the kubelet says so, and the API server knows no such pod any more
        names = {listed: name for name, listed in node.listed_as.items()}
        return Holder(names.get(uid, uid), "", gpus, "ending", None, None, "")
    gang = ""
    if record.gang is not None and not record.gang.uid:
        gang = f"{record.gang.namespace}/{record.gang.name}"
    state = "used" if mask & node.used else "held"
    if not record.live:
        state = "ending"
    until, because = _until(snapshot.gang_by_key, record)
    return Holder(record.key, gang, gpus, state, since_of(record), until, because)


def _until(gangs: Mapping[GangKey, GangState], record: PodRecord) -> tuple[float | None, str]:
    gang = gangs.get(record.gang) if record.gang is not None else None
    if gang is not None and gang.deadline is not None and not gang.found.started:
        return gang.deadline, TIMEOUT
    end = ends_at(record) if record.node else None
    return end, EXPECTED if end is not None else ""


def _together(first: Holder, second: Holder) -> Holder:
    return Holder(
        first.pod,
        first.gang,
        first.gpus + second.gpus,
        first.state,
        first.since,
        first.until,
        first.because,
    )


def _order(holder: Holder) -> tuple[bool, bool, float, int, str]:
    ending = holder.state == "ending"
    known = holder.until is not None
    return not ending, not known, holder.until or 0.0, -holder.gpus, holder.pod
