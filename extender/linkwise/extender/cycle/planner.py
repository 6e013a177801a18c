"""Plans whole gangs: the one place where GPUs are promised ahead of a bind.

`decide` first puts every gang in order that something happened to (`life`), so that what is given
back is there for all. Then those that wait (`line`) have their `turns`: each is planned whole
(`placing`), or as many of its members as may go without the others (`growth`). What does not fit is
not tried again before room appears.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from linkwise.extender.api.actions import Action, Emit, Evict
from linkwise.extender.api.extender_calls import Outcome
from linkwise.extender.api.placement_totals import Placed
from linkwise.extender.api.queue_note import queue_note
from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.api.unlocked import RunUnlocked, T, run_inline
from linkwise.extender.cache.cache import Books
from linkwise.extender.cache.kubelet_admission import Admissions
from linkwise.extender.cache.pending_writes import Outbox
from linkwise.extender.cache.plan_corrections import Corrections
from linkwise.extender.cycle.placing import Placing
from linkwise.extender.cycle.turns import Turns
from linkwise.extender.gangs.allocate import Moved, Search
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.lifecycle import Life
from linkwise.extender.gangs.members import Muster
from linkwise.extender.gangs.registry import Roll
from linkwise.extender.gangs.repair import Repair
from linkwise.extender.gangs.scheduling_gates import Gates
from linkwise.extender.gangs.waiting_events import Telling
from linkwise.extender.placement.nodes.best_node import BestNode
from linkwise.extender.placement.nodes.node_filters import Feasible
from linkwise.extender.placement.nodes.scheduler_feedback import Learned
from linkwise.extender.placement.nodes.single_node import Offers
from linkwise.extender.preemption.disruption_budgets import Budgets
from linkwise.extender.preemption.gang_preemption import Preemption
from linkwise.extender.preemption.policy import Preempt
from linkwise.extender.queue.idle_limit import IdleBound
from linkwise.extender.queue.reservations import Holds
from linkwise.extender.queue.run_times import RunTimes
from linkwise.extender.queue.running_pods import Tenants
from linkwise.extender.queue.scheduling_queue import Ages, Line
from linkwise.extender.queue.unschedulable_pods import TurnedAway

_MOST_LOOKS = 3  # what is left then is decided in the next round

# Members: others are let in after each look at so many.
_VERY_MANY = 512


class Planner:
    def __init__(
        self,
        books: Books,
        outbox: Outbox,
        *,
        gang_timeout_seconds: float,
        max_refusals: int,
        span_levels: Sequence[str],
        hold_share: float,
        hold_limit_seconds: float,
        preempt: Preempt,
        budgets: Budgets,
        run_times: RunTimes,
        ages: Ages,
    ) -> None:
        self.feasible = Feasible(books)
        self.learned = Learned(books)
        self._best_node = BestNode(books)
        self.levels = tuple(span_levels)
        self._search = Search(books, self.feasible, self.learned, self._best_node, span_levels)
        self._books = books
        self._outbox = outbox
        self.aside: RunUnlocked = run_inline
        self._due: set[GangKey] = set()
        self._moved: set[GangKey] = set()  # what happened to them was not looked at yet
        self._changes_seen = 0
        self._defects: list[Exception] = []
        self._gates = Gates(books, outbox)
        self._roll = Roll(books)
        self._telling = Telling(books, outbox, self._roll)
        self._line = Line(books, self._roll, ages)
        self.run_times = run_times
        tenants = Tenants(books, run_times)
        self.holds = Holds(books, self._line, self.feasible, tenants, run_times)
        self.turns = Turns(
            books,
            self._roll,
            self._line,
            self._search,
            self.holds,
            tenants,
            share=hold_share,
            idle_bound=IdleBound(hold_limit_seconds),
        )
        self._repair = Repair(books, outbox, self.feasible, self.learned)
        self._life = Life(
            books,
            outbox,
            self._roll,
            self.feasible,
            self._gates,
            self._repair,
            gang_timeout_seconds=gang_timeout_seconds,
            max_refusals=max_refusals,
        )
        self.preemption = Preemption(
            books,
            outbox,
            self._roll,
            self._line,
            self._search,
            self.holds,
            tenants,
            budgets=budgets,
            who=preempt,
        )
        self._placing = Placing(
            books,
            outbox,
            self._roll,
            self._line,
            self._search,
            self.holds,
            self.turns,
            self.preemption,
            self._life,
            self._repair,
            self._step_aside,
        )
        self.turned_away = TurnedAway(books, outbox, self.holds, self._search.best_for)
        self._corrections = Corrections(books, outbox)
        self._admissions = Admissions(books)
        self.offers = Offers(books, self._best_node)

    @property
    def swaps(self) -> int:
        return self._corrections.swaps

    @property
    def placed(self) -> Placed:
        return self._placing.placed

    @property
    def refusals(self) -> int:
        return self._life.refusals

    @property
    def leader(self) -> int:
        """The term in which this process decides."""
        return self._outbox.leader

    def believe_no_older(self) -> None:
        """All plans of leaders before this one have been seen."""
        self._outbox.begin()

    def rest(self) -> None:
        """While another decides: keep no list of what there would be to do."""
        self.feasible.trim()
        self._best_node.trim()
        self._books.take_touched()
        self._due.clear()

    @property
    def gangs(self) -> Mapping[GangKey, Gang]:
        return self._roll.gangs

    def muster(self, gang: Gang) -> Muster:
        return self._roll.muster(gang)

    # What happened.

    def pod_changed(self, before: PodRecord | None, record: PodRecord, now: float) -> None:
        """A pod came or changed; the books know it already."""
        self._admissions.changed(before, record, now)
        if record.asked:
            self.asked_by(record.scheduler)
        self._gates.pod_changed(record)
        self.turned_away.changed(record)
        if record.node:
            self.offers.forget(record.uid)
        if record.gang is None and record.uid in self._books.plans:
            # Let go by hand before its plan was on it, or kube-scheduler did not want the node.
            self._books.plan(record.uid, None)
        news = self._outbox.seen(record)
        if news and record.live and not record.node and _is_planned(record):
            self._books.plan(record.uid, record.written)
        for known in (before, record):
            if known is not None and known.gang is not None:
                self._due.add(known.gang)
        if before is None or not _same_member(before, record):
            self._line.take_up(record.gang)

    def asked_by(self, scheduler: str) -> None:
        """A scheduler of this name asks us about its pods, so it takes our plans too."""
        if scheduler not in self._books.schedulers:
            self._books.schedulers.add(scheduler)
            self._due |= set(self.gangs)
            self.turned_away.look_now(0.0)

    def pod_gone(self, record: PodRecord) -> None:
        self._outbox.forget(record.uid)
        self._gates.forget(record.uid)
        self._corrections.forget(record.uid)
        self.turned_away.forget(record.uid)
        self.offers.forget(record.uid)
        if record.gang is not None:
            self._due.add(record.gang)
            self._line.take_up(record.gang)

    def asked(self, record: PodRecord, *, is_planned: bool) -> None:
        """kube-scheduler asks about a member. Where it never did while there was a plan, that was
        too late for want of its calls, and now they come again."""
        gang = self._roll.of(record)
        if gang is None:
            return
        if is_planned:
            gang.asked = True
        elif gang.refused and not gang.asked:
            self._line.take_up(gang.key)
            self._due.add(gang.key)

    def named(self, record: PodRecord, names: tuple[str, ...]) -> None:
        """A filter call about *record* names these nodes: whatever they refused, they take now."""
        assert record.template is not None, "every pod that takes GPUs has one"
        if record.nominated and record.nominated in names:
            self.learned.asked_about(record.uid, record.nominated)
        if self.learned.named(record.template, names):
            self._refusals_ended()

    def not_asked_about(
        self, record: PodRecord, node: str, names: tuple[str, ...], now: float
    ) -> None:
        """A filter call lacks the node that *record* is nominated for: kube-scheduler refused it,
        or the call about that node was lost."""
        assert record.template is not None, "every pod that takes GPUs has one"
        if not self.learned.lacks(record.uid, node, names, now):
            return
        self.learned.refuse(record.template, node, now)
        gang = self._roll.of(record)
        if gang is not None:
            gang.was_refused = True
            gang.reason = f"kube-scheduler refused node {node} for pod {record.ref.name}"
            self._due.add(gang.key)

    def bind_ended(self, record: PodRecord) -> None:
        if record.gang is not None:
            self._due.add(record.gang)

    def wrote(self, action: Action, outcome: Outcome, now: float) -> None:
        self._outbox.done(action, outcome, now)
        if isinstance(action, Evict) and outcome is Outcome.REFUSED:
            self.preemption.refused(action.pod.uid, now)
        if isinstance(action, Emit):
            return  # nothing waits for it
        record = self._books.pods.get(action.pod.uid)
        if record is not None and record.gang is not None:
            self._due.add(record.gang)
            if isinstance(action, Evict):
                self._line.keep_age(record.gang, now)

    # What to do about it.

    def decide(self, now: float, doubted: Mapping[str, str]) -> tuple[Action, ...]:
        """*doubted*: uid -> the one node on which pods may be whose Bindings had no answer."""
        self._admissions.look(now)
        looked_at = self._take_due(now)
        for key in sorted(looked_at):
            with self._surviving(key.title):
                self._reconcile(key, now)
                self._pause_for(key)
        if self._line.freshen(now):
            self._search.forget_refusals()
        for _ in range(_MOST_LOOKS):
            self._go_through_line(now, looked_at)
            with self._surviving("preemption"):
                self.preemption.look(now)
            if not self._line.any_untried():
                break
        for key in sorted(looked_at):
            with self._surviving(key.title):
                if key in self.gangs:
                    self._life.publish(self.gangs[key], now, self._pause)
                    self._pause_for(key)
                self._telling.note(key, now)
        for key in sorted(looked_at | self.turns.take_changed() | self._line.take_evicted()):
            with self._surviving(key.title):
                self._note_queue(key, now)
        for uid, node in doubted.items():
            record = self._books.pods.get(uid)
            if record is not None and record.live and record.nominated != node:
                self._outbox.nominate(record, node, now)
        self._gates.look_at_strays(now)
        self._telling.look(now, self._surviving)
        self.turned_away.look(now)
        self._corrections.look(now, self._surviving)
        self._look_again_at_moved()
        return self._outbox.take()

    def _reconcile(self, key: GangKey, now: float) -> None:
        self._line.leave(key)
        if self._life.reconcile(key, now):
            self._line.join(key)
        elif key not in self.gangs:
            self._line.forget(key)

    def _go_through_line(self, now: float, looked_at: set[GangKey]) -> None:
        """The most urgent first: what it may have, or else what is kept for it; then the next.

        Of thousands of single pods that are alike, the first speaks for those behind it: they are
        shown no more than it was.
        """
        if not (self._line.any_untried() or self.turns.have_to_look(now)):
            return
        self.turns.begin()
        had_turns: set[object] = set()  # what single pods want that found no room
        in_vain: dict[object, Gang] = {}  # the same of those that have just been tried
        for gang in self._line.in_order():
            alike = self._roll.wishes_alone(gang)
            if (
                alike in had_turns
                and not self.holds.evicts(gang.key)
                and self._line.stays_aside(gang, in_vain.get(alike), now)
            ):
                continue
            with self._surviving(gang.name), suppress(Moved):
                self.turns.begin_turn(gang)
                if self._line.is_untried(gang) and gang.key not in self._moved:
                    looked_at.add(gang.key)
                    in_vain[alike] = gang
                    self._placing.place(gang, now)
                    self._pause_for(gang.key)
            if self._line.has_no_room(gang):
                with self._surviving(gang.name):
                    self.turns.end_turn(gang, now, self._pause)
                if alike is not None:
                    had_turns.add(alike)
        with self._surviving("holds"):
            self.turns.end(now)

    def _note_queue(self, key: GangKey, now: float) -> None:
        """Have the oldest pod of a gang carry what the gang has in the queue."""
        gang = self.gangs.get(key)
        live = [] if gang is None else [m for m in self.muster(gang).members if m.live]
        if not live:
            return
        created = min(member.created for member in live)
        oldest = min((m for m in live if m.created == created), key=lambda member: member.uid)
        hold = self.holds.of(key)
        spots = () if hold is None else hold.reservation.spots
        age = self._line.evicted_age(key)
        waits = gang is not None and self._line.has_no_room(gang)
        note = queue_note(
            oldest.uid,
            age,
            [(spot.node, spot.gpus) for spot in spots],
            idle_since=self.turns.idles_since(key),
            rests_until=self.turns.rests_until(key, now) if waits else None,
        )
        for member in live:
            wanted = note if member is oldest else None
            if member.queue is not wanted:
                self._outbox.note_queue(member, wanted, now)

    def _pause(self) -> None:
        self._step_aside(lambda: None)

    def _pause_for(self, key: GangKey) -> None:
        """Each look at thousands of members takes a while."""
        if len(self._books.gangs.get(key, ())) >= _VERY_MANY:
            self._pause()

    def _step_aside(self, work: Callable[[], T]) -> T:
        """Let others use the core while *work* is done. Gangs that something happens to meanwhile
        are left alone for the rest of this decision, and looked at in the next one."""
        before = set(self._due)
        try:
            return self.aside(work)
        finally:
            self._moved |= self._due - before

    def _look_again_at_moved(self) -> None:
        for key in self._moved:
            self._due.add(key)
            if key in self.gangs:
                self.gangs[key].try_again()
        self._moved.clear()

    def take_defects(self) -> list[Exception]:
        """What went wrong since this was last asked, and must not have: mistakes of ours."""
        defects, self._defects = self._defects, []
        return defects

    @contextmanager
    def _surviving(self, what: object) -> Iterator[None]:
        """A gang or a pod that trips over a mistake of ours is left out; all others go on."""
        try:
            yield
        except Exception as defect:
            defect.add_note(f"while deciding about {what}")
            self._defects.append(defect)

    def next_due(self) -> float | None:
        """When `decide` has something to do even if nothing happens until then."""
        times = (
            self._life.next_due(),
            self.turns.next_due(),
            self.preemption.next_due(),
            self._outbox.next_due(),
            self._telling.next_due(),
            self.turned_away.next_due,
            self.learned.next_due(),
            self._admissions.next_due(),
        )
        return min((time for time in times if time is not None), default=None)

    def is_writing(self, uid: str) -> bool:
        """Whether a write of the pod's plan is on its way."""
        return self._outbox.busy(uid)

    def deadline(self, gang: Gang) -> float | None:
        return self._life.deadline(gang)

    def _take_due(self, now: float) -> set[GangKey]:
        books = self._books
        self.feasible.trim()
        self._best_node.trim()
        touched = books.take_touched()
        for name in touched:
            book = books.nodes.get(name)
            keys = (books.pods[uid].gang for uid in (book.plans if book is not None else ()))
            self._due |= {key for key in keys if key is not None}
        if self.learned.lapse(touched, now):
            self._refusals_ended()
        if len(books.changed_rows) != self._changes_seen:
            self._changes_seen = len(books.changed_rows)
            self._take_up_refused()
        self._due |= self._life.take_late(now)
        for uid in self._outbox.take_woken(now):
            record = books.pods.get(uid)
            if record is not None:
                self._gates.pod_changed(record)
                if record.gang is not None:
                    self._due.add(record.gang)
        due, self._due = self._due, set()
        return due

    def _refusals_ended(self) -> None:
        self._books.room += 1  # for all who wait: what refused them then may let them in now
        self._take_up_refused()

    def _take_up_refused(self) -> None:
        for key, gang in self.gangs.items():
            if gang.refused:
                self._line.take_up(key)
                self._due.add(key)


def _is_planned(record: PodRecord) -> bool:
    """Whether the plan that is written on it may count. A nomination tells it from a copied
    annotation; from members that it tries, though, kube-scheduler takes nominations away."""
    if record.gang is None or record.written is None:
        return False
    tried = not (record.gang.uid or record.gated)
    if record.awaits:
        return True  # nobody else gets these GPUs before it is known whose plan that is
    return tried or record.nominated == record.written.plan.node


def _same_member(before: PodRecord, record: PodRecord) -> bool:
    """Whether nothing changed that could help a gang that was left to wait."""
    return (
        before.live == record.live
        and before.held_back == record.held_back
        and before.node == record.node
        and before.demand == record.demand
        and before.ask == record.ask
        and before.template is record.template
    )
