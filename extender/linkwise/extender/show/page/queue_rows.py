"""Who waits for GPUs, the most urgent first, as rows of a table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from math import isinf
from operator import itemgetter

from linkwise.drawing.tables import Column, Link, Table
from linkwise.drawing.words import gpus_in_words, pods_in_words, some
from linkwise.extender.next.cycle.reserve import InVain
from linkwise.extender.next.queue.reservations import Reservation
from linkwise.extender.next.queue.scheduling_queue import Urgency
from linkwise.extender.show.explain.empty_cluster import EmptyCluster
from linkwise.extender.show.explain.explainer import WAITING, state_of
from linkwise.extender.show.explain.snapshot import GangState, Snapshot
from linkwise.extender.show.explain.texts.reasons import (
    gang_reason,
    no_room_now,
    why_broken_off,
    why_gang_waits,
)
from linkwise.extender.show.page import elements
from linkwise.extender.show.page.elements import Slots, clock
from linkwise.extender.state.records import PodRecord

MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class QueueRow:
    who: str
    link: str
    wants: str
    since: str
    why: str
    reserved: str  # what is reserved for it


_COLUMNS: Sequence[Column[QueueRow]] = (
    Column("who", lambda it: Link(it.who, it.link), name="who"),
    Column("wants", lambda it: it.wants, name="wants"),
    Column("why it waits", lambda it: it.why, name="why"),
    Column("reserved for it", lambda it: it.reserved, name="reserved"),
    Column("since (UTC)", lambda it: it.since, name="since"),
)


@dataclass(frozen=True, slots=True)
class Queue:
    rows: tuple[QueueRow, ...]  # MOST_ROWS at most
    waiting: int  # gangs, and pods in no gang

    @property
    def table(self) -> Table:
        return Table.of(_COLUMNS, self.rows, dash="")


def queue_of(snapshot: Snapshot) -> Queue:
    waiting: list[tuple[Urgency, GangState | PodRecord]] = [*_gangs(snapshot), *_pods(snapshot)]
    first = nsmallest(MOST_ROWS, waiting, key=itemgetter(0))
    reserved = {each.key[:2]: each for each in snapshot.reservations}
    alone = {gang.key.uid: gang for gang in snapshot.gangs if gang.alone}
    empty = EmptyCluster(snapshot)
    rows = (
        _gang_row(who, empty, reserved)
        if isinstance(who, GangState)
        else _pod_row(who, alone.get(who.uid), empty, reserved)
        for _, who in first
    )
    return Queue(tuple(rows), len(waiting))


def first_slots(queue: Queue) -> Slots:
    """Of the first page."""
    more = queue.waiting - len(queue.rows)
    explain = f"and {more:,} more; kubectl linkwise explain shows all" if more else ""
    return {
        "q-waiting": {"text": f"{queue.waiting:,}"},
        "q-none": elements.shown_if(not queue.rows),
        "q-table": elements.shown_if(bool(queue.rows)),
        "q-more": elements.shown(explain),
        **elements.live("q", queue.table, MOST_ROWS),
    }


def _gangs(snapshot: Snapshot) -> Iterator[tuple[Urgency, GangState]]:
    for gang in snapshot.gangs:
        if not gang.alone and gang.urgency is not None:
            yield gang.urgency, gang


def _pods(snapshot: Snapshot) -> Iterator[tuple[Urgency, PodRecord]]:
    for record in snapshot.pods:
        # The first two are quick, and true of most pods.
        if record.node or record.ended or record.ask.gang is not None or not record.live:
            continue
        if state_of(snapshot, record) in WAITING:
            yield snapshot.ordering.of_single(record), record


def _gang_row(
    gang: GangState, empty: EmptyCluster, reserved: Mapping[tuple[str, str], Reservation]
) -> QueueRow:
    gang = empty.judged(gang)
    found = gang.found
    waits = found.open or found.seats
    gpus = sum(member.demand.gpus for member in waits)
    name = f"{gang.key.namespace}/{gang.key.name}"
    return QueueRow(
        who=f"gang {name}",
        link=elements.to_gang(name),
        wants=f"{gpus_in_words(gpus)} for {pods_in_words(len(waits))}",
        since=clock(found.since if gang.lost_since is None else gang.lost_since),
        why=gang_reason(gang) or why_gang_waits(gang).removeprefix(":").strip(),
        reserved=_reserved(reserved.get(gang.key[:2])),
    )


def _pod_row(
    record: PodRecord,
    gang: GangState | None,
    empty: EmptyCluster,
    reserved: Mapping[tuple[str, str], Reservation],
) -> QueueRow:
    shares = [f"{demand.gpus} of {resource}" for resource, demand in record.shares]
    return QueueRow(
        who=f"pod {record.key}",
        link=elements.to_pod(record.key),
        wants=", ".join(
            [*([gpus_in_words(record.demand.gpus)] * bool(record.demand.gpus)), *shares]
        ),
        since=clock(record.created),
        why=_why(record, gang, empty),
        reserved=_reserved(reserved.get((record.ref.namespace, record.ref.name))),
    )


def _why(record: PodRecord, gang: GangState | None, empty: EmptyCluster) -> str:
    if record.invalid:
        return f"it cannot be placed: {record.invalid}"
    if record.broken_off:
        return why_broken_off(record)
    if record.awaits:
        return "its gang is not known yet"
    if record.held_back:
        return "another scheduling gate keeps it back"
    if gang is not None and gang.refused:
        return f"its plans came to nothing: {gang.reason}"
    if empty.rules_out(record):
        return f"no node has room for it{no_room_now(InVain.NEVER_FITS)}"
    if gang is not None and gang.no_room is not None:
        return f"no node has room for it{no_room_now(gang.in_vain)}"
    return "kube-scheduler has no node for it yet"


def _reserved(reservation: Reservation | None) -> str:
    if reservation is None:
        return ""
    gpus = sum(mask.bit_count() for mask in reservation.gpus.values())
    where = f"{gpus_in_words(gpus)} on {some(sorted(reservation.gpus), 2)}"
    if isinf(reservation.start):
        return f"{where}, of which servers have some"
    if not reservation.earliest.known:
        return f"{where}; when all will be free is unknown"
    about = "" if reservation.earliest.sure else "about "
    return f"{where}, free {about}{clock(reservation.start)}"
