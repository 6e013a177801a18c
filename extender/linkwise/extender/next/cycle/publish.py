"""The last step of a round: it queues the writes of all decisions to the API server."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from linkwise.extender.next.cycle.changes import Changes
from linkwise.extender.next.cycle.reserve import Reserve
from linkwise.extender.next.gangs.lifecycle import GangLifecycle
from linkwise.extender.next.gangs.scheduling_gates import SchedulingGates
from linkwise.extender.next.gangs.to_come import MembersToCome
from linkwise.extender.next.gangs.uncreated import UncreatedMembers
from linkwise.extender.next.moves.targets import Targets
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.next.queue.quota_turns import QuotaTurns
from linkwise.extender.next.queue.unschedulable_pods import UnschedulablePods
from linkwise.extender.next.queue.waiting_events import WaitingEvents
from linkwise.extender.state.cache.plans import PlanCorrections
from linkwise.extender.state.queue_note import queue_note
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.timers import Timers


class LongWaits(Part):
    """Shows gangs without room to a node autoscaler: lifts the gates of their members.

    Cluster Autoscaler and Karpenter add nodes for pods that kube-scheduler found unschedulable, and
    kube-scheduler does not try a gated pod (docs/operating/autoscaling.md). A gang whose members
    are missing, or that has or gets GPUs, keeps its gates: it needs no new node.

    *after_seconds*: how long a gang keeps its gates without room; None: forever.
    """

    def __init__(self, books: Books, after_seconds: float | None) -> None:
        super().__init__(books)
        self._after_seconds = after_seconds
        self._alarms: Timers[GangKey] = Timers(books.agenda)

    def note(self, key: GangKey, now: float) -> None:
        """The gang changed; call this once it is known whether it has room."""
        if self._after_seconds is None or not self._gated(key):
            self._alarms.drop(key)
        elif self._alarms.get(key) is None:
            self._alarms[key] = now + self._after_seconds

    def look(self, now: float, surviving: Callable[[object], AbstractContextManager[None]]) -> None:
        """Lift the gates of gangs that had no room for long enough. *surviving* keeps one defect
        from affecting the other gangs."""
        for key in self._alarms.take(now):
            with surviving(key.title):
                if not self._reservations.is_by_preemption(key):  # its victims still end
                    for member in self._gated(key):
                        self._pending_writes.lift_gate(member, now)
                self.note(key, now)

    def _gated(self, key: GangKey) -> list[PodRecord]:
        """The members behind the gate that found no room."""
        gang = self._registry.gangs.get(key)
        if gang is None or not self._queue.has_no_room(gang):
            return []
        return [member for member in self._registry.members_of(gang).open if member.gated]


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
                    self._lifecycle.publish(
                        gang,
                        now,
                        self._changes.pause,
                        has_no_room=has_no_room,
                        asked=self._held_calls.nodes(key),
                    )
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
            idle_used=self._reserve.idle_used(key),
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
