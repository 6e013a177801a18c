"""One scheduling round: reconcile → allocate → reserve, backfill → preempt → publish.

1. *Reconcile* every changed gang, so that GPUs that it returns are available to all.
2. Take the gangs of the scheduling queue in order, the most urgent first. *Allocate* GPUs to the
   gang. If there is no room, *reserve* the GPUs on which it can start first. The gangs behind it
   *backfill*: they get what is not reserved, and reserved GPUs that they return in time.
3. *Move* pods that consent, or *preempt* less important gangs, for a gang that still has no room.
   Move pods from nodes that are to be empty.
4. *Publish* the decisions: plans, nominations, gates, Events.

A gang without room is not tried again before there is more room.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from linkwise.extender.next.cycle.allocate import Allocate
from linkwise.extender.next.cycle.changes import Changes
from linkwise.extender.next.cycle.refused_plans import RefusedPlans
from linkwise.extender.next.cycle.reserve import WAITS_NO_MORE, Reserve
from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.gang_search import StaleResult
from linkwise.extender.next.gangs.lifecycle import GangLifecycle
from linkwise.extender.next.gangs.scheduling_gates import SchedulingGates
from linkwise.extender.next.gangs.to_come import MembersToCome
from linkwise.extender.next.gangs.uncreated import UncreatedMembers
from linkwise.extender.next.moves.emptying import Emptying, WholeNodes
from linkwise.extender.next.moves.planned_moves import PlannedMoves
from linkwise.extender.next.moves.targets import Targets
from linkwise.extender.next.preemption.gang_preemption import GangPreemption
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.next.queue.quota_turns import QuotaTurns
from linkwise.extender.next.queue.unschedulable_pods import UnschedulablePods
from linkwise.extender.next.queue.waiting_events import WaitingEvents
from linkwise.extender.state.cache.plans import PlanCorrections
from linkwise.extender.state.records import GangKey, PodRecord, queue_note
from linkwise.extender.state.timers import Timers

_FEW = 64  # members: a search for so many may keep the lock
_MOST_PASSES = 3  # through the queue; the next round decides the rest
# The looks at pod sets on nodes that the gangs of one namespace may take in a round, a tenth of a
# second of 0.4 µs each. Its other gangs have their turns in later ones, and those of others come in
# between. A pod with which another is compared, for its affinity, is a quarter of a look.
_MOST_LOOKS = 250_000

NoteStep = Callable[[str], object]
"""Called with the name of a step each time that it ends."""


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


def no_note(_step: str) -> None:
    """Note nothing."""


class Round(Part):
    def __init__(
        self,
        books: Books,
        *,
        changes: Changes,
        lifecycle: GangLifecycle,
        refused_plans: RefusedPlans,
        allocate: Allocate,
        reserve: Reserve,
        targets: Targets,
        moves: PlannedMoves,
        emptying: Emptying,
        whole_nodes: WholeNodes,
        preemption: GangPreemption,
        publish: Publish,
    ) -> None:
        super().__init__(books)
        self._changes, self._lifecycle = changes, lifecycle
        self._refused_plans = refused_plans
        self._allocate, self._reserve, self._preemption = allocate, reserve, preemption
        self._targets, self._moves, self._emptying = targets, moves, emptying
        self._whole_nodes, self._publish = whole_nodes, publish
        # By namespace: the looks that its gangs took in this round, and the gangs that had no turn
        # because of that, in an earlier pass and in this one.
        self._spent: Counter[str] = Counter()
        self._left: dict[str, set[GangKey]] = {}
        self._leaves: dict[str, set[GangKey]] = {}
        self.note_step: NoteStep = no_note

    def run(self, doubted: Mapping[str, str], now: float) -> None:
        """Run the round. *doubted*: uid -> the only node where a pod may be whose Binding got no
        response."""
        try:
            self._run(doubted, now)
        except Exception:
            self._changes.look_at_all()  # what this round took up is lost
            raise

    def _run(self, doubted: Mapping[str, str], now: float) -> None:
        self._spent.clear()
        with self._changes.isolated("moves"):
            self._targets.restore(now)
        with self._changes.isolated("noted places"):
            self._lifecycle.begin_round(now)
        looked_at = self._changes.take(now)
        for key in sorted(looked_at):
            with self._changes.isolated(key.title):
                self._reconcile(key, now)
        if self._queue.freshen(now):
            self._search.forget_refusals()
        self.note_step("reconcile")
        for _ in range(_MOST_PASSES):
            self._go_through_queue(looked_at, now)
            with self._changes.isolated("moves"):
                self._moves.run(now, self._changes.run)
            with self._changes.isolated("emptying"):
                self._whole_nodes.run(now, self._changes.run)
                self._emptying.run(now, self._changes.run)
            for key in self._targets.take_released():
                self._queue.try_again(key)
            with self._changes.isolated("preemption"):
                self._preemption.run(now, self._changes.run)
            self._changes.due |= self._preemption.take_withdrawn()  # they wait again
            self.note_step("preempt")
            if not self._queue.any_untried():
                break
        self._publish.run(looked_at, doubted, now)
        self._changes.look_again_at_moved()
        self.note_step("publish")

    def _reconcile(self, key: GangKey, now: float) -> None:
        self._queue.leave(key)
        wants_plan = self._lifecycle.reconcile(key, now, self._changes.pause)
        if self._refused_plans.by_claims(key, now):
            wants_plan = self._lifecycle.reconcile(key, now, self._changes.pause)
        if wants_plan:
            self._queue.join(key)
        else:  # others may reserve in this round what it had
            self._reserve.give_up(key, WAITS_NO_MORE)
            if key not in self._registry.gangs:
                self._queue.forget(key)
        self._changes.pause_after(key)

    def _go_through_queue(self, looked_at: set[GangKey], now: float) -> None:
        """Allocate or reserve for each gang before the next one is tried.

        Of thousands of equal single pods, the first stands for the others: they would find no more
        room than it did.
        """
        if not (self._queue.any_untried() or self._reserve.have_to_look(now)):
            return
        self._reserve.begin()
        self._take_up_left()
        had_turns: set[object] = set()  # requests of single pods that found no room
        in_vain: dict[object, Gang] = {}  # request -> the gang that was tried in this pass
        for gang in self._queue.in_order():
            if gang.key in self._changes.moved and not self._look_again(gang, now):
                continue
            alike = self._registry.request_of_single(gang)
            if (
                alike in had_turns
                and not self._reservations.is_by_preemption(gang.key)
                and self._queue.stays_aside(gang, in_vain.get(alike), now)
                and not self._reserve.gives_each(gang)
            ):
                self._had_turn(gang)
                continue
            if not self._has_turn(gang):
                self._changes.look_again_soon = True
                continue
            self._had_turn(gang)
            before = self._looks()
            with self._changes.isolated(gang.name):
                self._reserve.begin_turn(gang)
                if self._queue.is_untried(gang):
                    looked_at.add(gang.key)
                    in_vain[alike] = gang
                    self._place(gang, now)
                    self._changes.pause_after(gang.key, searched=True)
                    self.note_step("allocate")
            if self._queue.has_no_room(gang):
                with self._changes.isolated(gang.name):
                    self._reserve.end_turn(gang, now, self._changes.run)
                self._changes.pause_after(gang.key)
                self.note_step("reserve")
                if alike is not None:
                    had_turns.add(alike)
            self._spent[gang.key.namespace] += self._looks() - before
        with self._changes.isolated("reservations"):
            self._reserve.end(now)
        self.note_step("reserve")

    def _take_up_left(self) -> None:
        for namespace, keys in (*self._left.items(), *self._leaves.items()):
            self._left[namespace] = {key for key in keys if self._queue.waits(key)}
        self._left = {namespace: keys for namespace, keys in self._left.items() if keys}
        self._leaves = {}

    def _has_turn(self, gang: Gang) -> bool:
        """Whether the namespace's part of the round is left for a search. Those that had no turn
        before come first, or the first in the queue would take the turns of all others."""
        namespace = gang.key.namespace
        left = self._left.get(namespace)
        if self._spent[namespace] <= _MOST_LOOKS and (not left or gang.key in left):
            return True
        # A reservation ends if its gang has no turn.
        if self._reservations.of(gang.key) is not None or not self._queue.is_untried(gang):
            return True
        if not left:
            self._leaves.setdefault(namespace, set()).add(gang.key)
        return False

    def _had_turn(self, gang: Gang) -> None:
        self._left.get(gang.key.namespace, set()).discard(gang.key)

    def _looks(self) -> int:
        return self._search.effort.looks + self._cache.around.work // 4

    def _place(self, gang: Gang, now: float) -> None:
        """If the gang changes during its search, it has another one before the next has its turn:
        else that one could get what this one waits for."""
        try:
            self._allocate.place(gang, now)
        except StaleResult:
            if self._look_again(gang, now):
                few = len(self._registry.members_of(gang).all) <= _FEW
                try:
                    self._allocate.place(gang, now, keeps_lock=few)
                except StaleResult:  # a large gang changed once more: the next round tries it
                    self._changes.moved.add(gang.key)

    def _look_again(self, gang: Gang, now: float) -> bool:
        """The gang changed while this round ran work without the lock. Return whether it waits for
        GPUs as it is now."""
        with self._changes.isolated(gang.name):
            self._changes.moved.discard(gang.key)
            self._reconcile(gang.key, now)
            self._queue.try_again(gang.key)
        return self._queue.waits(gang.key) and self._registry.gangs.get(gang.key) is gang
