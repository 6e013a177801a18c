"""The last step of a round: it queues the writes of all decisions to the API server."""

from collections.abc import Mapping

from linkwise.extender.api.queue_note import queue_note
from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.cache.plan_corrections import PlanCorrections
from linkwise.extender.cycle.changes import Changes
from linkwise.extender.cycle.reserve import Reserve
from linkwise.extender.gangs.lifecycle import GangLifecycle
from linkwise.extender.gangs.scheduling_gates import SchedulingGates
from linkwise.extender.gangs.to_come import MembersToCome
from linkwise.extender.gangs.uncreated import UncreatedMembers
from linkwise.extender.moves.targets import Targets
from linkwise.extender.queue.books import Books, Part
from linkwise.extender.queue.long_waits import LongWaits
from linkwise.extender.queue.quota_turns import QuotaTurns
from linkwise.extender.queue.unschedulable_pods import UnschedulablePods
from linkwise.extender.queue.waiting_events import WaitingEvents


class Publish(Part):
    def __init__(
        self,
        books: Books,
        *,
        reserve: Reserve,
        targets: Targets,
        lifecycle: GangLifecycle,
        to_come: MembersToCome,
        gates: SchedulingGates,
        uncreated: UncreatedMembers,
        quota_turns: QuotaTurns,
        unschedulable_pods: UnschedulablePods,
        plan_corrections: PlanCorrections,
        changes: Changes,
        lift_gates_after_seconds: float | None,
    ) -> None:
        super().__init__(books)
        self._reserve, self._targets = reserve, targets
        self._unwritten: set[GangKey] = set()  # gangs whose note is to be written a moment later
        self._lifecycle, self._to_come = lifecycle, to_come
        self._gates, self._waiting_events = gates, WaitingEvents(books)
        self._uncreated, self._quota_turns = uncreated, quota_turns
        self._long_waits = LongWaits(books, lift_gates_after_seconds)
        self._unschedulable_pods = unschedulable_pods
        self._plan_corrections, self._changes = plan_corrections, changes

    def run(self, looked_at: set[GangKey], doubted: Mapping[str, str], now: float) -> None:
        """*looked_at*: the gangs of this round. *doubted*: uid -> the only node where a pod may be
        whose Binding got no response."""
        for key in sorted(looked_at):
            with self._changes.isolated(key.title):
                if key in self._registry.gangs:
                    gang = self._registry.gangs[key]
                    has_no_room = self._queue.no_room(key) is not None
                    self._lifecycle.publish(gang, now, self._changes.pause, has_no_room=has_no_room)
                    self._changes.pause_after(key)
                self._uncreated.note(key, now)
                self._waiting_events.note(key, now)
                self._long_waits.note(key, now)
        changed = self._reserve.take_changed() | self._targets.take_changed()
        with self._changes.isolated("quotas"):
            changed |= self._quota_turns.look(now)
        unwritten, self._unwritten = self._unwritten, set()
        for key in sorted(looked_at | changed | self._queue.take_evicted() | unwritten):
            with self._changes.isolated(key.title):
                self._note_queue(key, now)
        for uid, node in doubted.items():
            record = self._cache.pods.get(uid)
            if record is not None and record.live and record.nominated != node:
                self._pending_writes.nominate(record, node, now)
        self._to_come.tidy(now)
        self._gates.look_at_strays(now)
        self._waiting_events.look(now, self._changes.isolated)
        self._long_waits.look(now, self._changes.isolated)
        self._unschedulable_pods.look(now, self._changes.pause)
        self._plan_corrections.look(now, self._changes.isolated)

    def _note_queue(self, key: GangKey, now: float) -> None:
        """Note the gang's state in the queue for the next leader, on its oldest pod: of those that
        wait, if any does. What a pod says whose gang is not known yet is of that gang."""
        gang = self._registry.gangs.get(key)
        members = self._carriers(key) if gang is None else self._registry.members_of(gang).all
        live = [
            member for member in members if member.live and not (member.coming or member.awaits)
        ]
        if not live:
            return
        oldest = min(live, key=lambda member: (bool(member.node), member.created, member.uid))
        reservation = self._reservations.of(key)
        spots = () if reservation is None else reservation.earliest.spots
        waits = gang is not None and self._queue.has_no_room(gang)
        note = queue_note(
            oldest.uid,
            self._queue.evicted_age(key),
            [(spot.node, spot.gpus) for spot in spots],
            idle_since=self._reserve.idles_since(key),
            rests_until=self._reserve.rests_until(key, now) if waits else None,
            moves=self._targets.noted(key),
            moves_at=self._targets.noted_at(key),
            turn=self._quota_turns.began(key),
        )
        for member in live:
            wanted = note if member is oldest else None
            if not self._pending_writes.note_queue(member, wanted, now):
                self._unwritten.add(key)

    def _carriers(self, key: GangKey) -> tuple[PodRecord, ...]:
        """A single pod that has started, and still carries the note of the moves for it, or gets
        that of its own move."""
        single = self._cache.pods.get(key.uid)
        if single is None:
            return ()
        has_note = single.queue is not None and single.queue.moves
        return (single,) if has_note or self._targets.noted(key) else ()
