"""Plans whole gangs: the one place where GPUs are promised ahead of a bind.

`decide` first reconciles every gang that something happened to (`lifecycle`), so that what is given
back is there for all. Then those that wait (`scheduling_queue`) have their `turns`: each is planned
whole (`placing`), or as many of its members as may go without the others (`partial_admission`).
What does not fit is not tried again before room appears.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from linkwise.extender.api.actions import Action, Emit, Evict
from linkwise.extender.api.extender_calls import Outcome
from linkwise.extender.api.placement_totals import Placed
from linkwise.extender.api.queue_note import queue_note
from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.api.unlocked import RunUnlocked, T, run_inline
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.kubelet_admission import KubeletAdmission
from linkwise.extender.cache.pending_writes import PendingWrites
from linkwise.extender.cache.plan_corrections import PlanCorrections
from linkwise.extender.cycle.allocate import Allocate
from linkwise.extender.cycle.reserve import Reserve
from linkwise.extender.gangs.allocate import GangSearch, StaleResult
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.lifecycle import GangLifecycle
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.gangs.registry import GangRegistry
from linkwise.extender.gangs.repair import Repair
from linkwise.extender.gangs.scheduling_gates import SchedulingGates
from linkwise.extender.gangs.waiting_events import WaitingEvents
from linkwise.extender.placement.nodes.best_node import BestNode
from linkwise.extender.placement.nodes.node_filters import NodeFilters
from linkwise.extender.placement.nodes.scheduler_feedback import SchedulerFeedback
from linkwise.extender.placement.nodes.single_node import Offers
from linkwise.extender.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.preemption.gang_preemption import GangPreemption
from linkwise.extender.preemption.policy import Preempt
from linkwise.extender.queue.idle_limit import IdleLimit
from linkwise.extender.queue.reservations import Reservations
from linkwise.extender.queue.run_times import RunTimes
from linkwise.extender.queue.running_pods import RunningPods
from linkwise.extender.queue.scheduling_queue import Ages, SchedulingQueue
from linkwise.extender.queue.unschedulable_pods import UnschedulablePods

_MOST_LOOKS = 3  # what is left then is decided in the next round

# Members: others are let in after each look at so many.
_VERY_MANY = 512


class Planner:
    def __init__(
        self,
        cache: Cache,
        pending_writes: PendingWrites,
        *,
        gang_timeout_seconds: float,
        max_refusals: int,
        span_levels: Sequence[str],
        hold_share: float,
        hold_limit_seconds: float,
        preempt: Preempt,
        budgets: DisruptionBudgets,
        run_times: RunTimes,
        ages: Ages,
    ) -> None:
        self.node_filters = NodeFilters(cache)
        self.feedback = SchedulerFeedback(cache)
        self._best_node = BestNode(cache)
        self.levels = tuple(span_levels)
        self._search = GangSearch(
            cache, self.node_filters, self.feedback, self._best_node, span_levels
        )
        self._cache = cache
        self._pending_writes = pending_writes
        self.aside: RunUnlocked = run_inline
        self._due: set[GangKey] = set()
        self._moved: set[GangKey] = set()  # what happened to them was not looked at yet
        self._changes_seen = 0
        self._defects: list[Exception] = []
        self._gates = SchedulingGates(cache, pending_writes)
        self._registry = GangRegistry(cache)
        self._waiting_events = WaitingEvents(cache, pending_writes, self._registry)
        self._line = SchedulingQueue(cache, self._registry, ages)
        self.run_times = run_times
        running_pods = RunningPods(cache, run_times)
        self.reservations = Reservations(
            cache, self._line, self.node_filters, running_pods, run_times
        )
        self.turns = Reserve(
            cache,
            self._registry,
            self._line,
            self._search,
            self.reservations,
            running_pods,
            share=hold_share,
            idle_limit=IdleLimit(hold_limit_seconds),
        )
        self._repair = Repair(cache, pending_writes, self.node_filters, self.feedback)
        self._lifecycle = GangLifecycle(
            cache,
            pending_writes,
            self._registry,
            self.node_filters,
            self._gates,
            self._repair,
            gang_timeout_seconds=gang_timeout_seconds,
            max_refusals=max_refusals,
        )
        self.preemption = GangPreemption(
            cache,
            pending_writes,
            self._registry,
            self._line,
            self._search,
            self.reservations,
            running_pods,
            budgets=budgets,
            who=preempt,
        )
        self._placing = Allocate(
            cache,
            pending_writes,
            self._registry,
            self._line,
            self._search,
            self.reservations,
            self.turns,
            self.preemption,
            self._lifecycle,
            self._repair,
            self._step_aside,
        )
        self.unschedulable_pods = UnschedulablePods(
            cache, pending_writes, self.reservations, self._search.best_for
        )
        self._plan_corrections = PlanCorrections(cache, pending_writes)
        self._kubelet_admission = KubeletAdmission(cache)
        self.offers = Offers(cache, self._best_node)

    @property
    def swaps(self) -> int:
        return self._plan_corrections.swaps

    @property
    def placed(self) -> Placed:
        return self._placing.placed

    @property
    def refusals(self) -> int:
        return self._lifecycle.refusals

    @property
    def leader(self) -> int:
        """The term in which this process decides."""
        return self._pending_writes.leader

    def believe_no_older(self) -> None:
        """All plans of leaders before this one have been seen."""
        self._pending_writes.begin()

    def rest(self) -> None:
        """While another decides: keep no list of what there would be to do."""
        self.node_filters.trim()
        self._best_node.trim()
        self._cache.take_touched()
        self._due.clear()

    @property
    def gangs(self) -> Mapping[GangKey, Gang]:
        return self._registry.gangs

    def muster(self, gang: Gang) -> GangMembers:
        return self._registry.muster(gang)

    # What happened.

    def pod_changed(self, before: PodRecord | None, record: PodRecord, now: float) -> None:
        """A pod came or changed; the books know it already."""
        self._kubelet_admission.changed(before, record, now)
        if record.asked:
            self.asked_by(record.scheduler)
        self._gates.pod_changed(record)
        self.unschedulable_pods.changed(record)
        if record.node:
            self.offers.forget(record.uid)
        if record.gang is None and record.uid in self._cache.plans:
            # Let go by hand before its plan was on it, or kube-scheduler did not want the node.
            self._cache.plan(record.uid, None)
        news = self._pending_writes.seen(record)
        if news and record.live and not record.node and _is_planned(record):
            self._cache.plan(record.uid, record.written)
        for known in (before, record):
            if known is not None and known.gang is not None:
                self._due.add(known.gang)
        if before is None or not _same_member(before, record):
            self._line.take_up(record.gang)

    def asked_by(self, scheduler: str) -> None:
        """A scheduler of this name asks us about its pods, so it takes our plans too."""
        if scheduler not in self._cache.schedulers:
            self._cache.schedulers.add(scheduler)
            self._due |= set(self.gangs)
            self.unschedulable_pods.look_now(0.0)

    def pod_gone(self, record: PodRecord) -> None:
        self._pending_writes.forget(record.uid)
        self._gates.forget(record.uid)
        self._plan_corrections.forget(record.uid)
        self.unschedulable_pods.forget(record.uid)
        self.offers.forget(record.uid)
        if record.gang is not None:
            self._due.add(record.gang)
            self._line.take_up(record.gang)

    def asked(self, record: PodRecord, *, is_planned: bool) -> None:
        """kube-scheduler asks about a member. Where it never did while there was a plan, that was
        too late for want of its calls, and now they come again."""
        gang = self._registry.of(record)
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
            self.feedback.asked_about(record.uid, record.nominated)
        if self.feedback.named(record.template, names):
            self._refusals_ended()

    def not_asked_about(
        self, record: PodRecord, node: str, names: tuple[str, ...], now: float
    ) -> None:
        """A filter call lacks the node that *record* is nominated for: kube-scheduler refused it,
        or the call about that node was lost."""
        assert record.template is not None, "every pod that takes GPUs has one"
        if not self.feedback.lacks(record.uid, node, names, now):
            return
        self.feedback.refuse(record.template, node, now)
        gang = self._registry.of(record)
        if gang is not None:
            gang.was_refused = True
            gang.reason = f"kube-scheduler refused node {node} for pod {record.ref.name}"
            self._due.add(gang.key)

    def bind_ended(self, record: PodRecord) -> None:
        if record.gang is not None:
            self._due.add(record.gang)

    def wrote(self, action: Action, outcome: Outcome, now: float) -> None:
        self._pending_writes.done(action, outcome, now)
        if isinstance(action, Evict) and outcome is Outcome.REFUSED:
            self.preemption.refused(action.pod.uid, now)
        if isinstance(action, Emit):
            return  # nothing waits for it
        record = self._cache.pods.get(action.pod.uid)
        if record is not None and record.gang is not None:
            self._due.add(record.gang)
            if isinstance(action, Evict):
                self._line.keep_age(record.gang, now)

    # What to do about it.

    def decide(self, now: float, doubted: Mapping[str, str]) -> tuple[Action, ...]:
        """*doubted*: uid -> the one node on which pods may be whose Bindings had no answer."""
        self._kubelet_admission.look(now)
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
                    self._lifecycle.publish(self.gangs[key], now, self._pause)
                    self._pause_for(key)
                self._waiting_events.note(key, now)
        for key in sorted(looked_at | self.turns.take_changed() | self._line.take_evicted()):
            with self._surviving(key.title):
                self._note_queue(key, now)
        for uid, node in doubted.items():
            record = self._cache.pods.get(uid)
            if record is not None and record.live and record.nominated != node:
                self._pending_writes.nominate(record, node, now)
        self._gates.look_at_strays(now)
        self._waiting_events.look(now, self._surviving)
        self.unschedulable_pods.look(now)
        self._plan_corrections.look(now, self._surviving)
        self._look_again_at_moved()
        return self._pending_writes.take()

    def _reconcile(self, key: GangKey, now: float) -> None:
        self._line.leave(key)
        if self._lifecycle.reconcile(key, now):
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
            alike = self._registry.request_of_single(gang)
            if (
                alike in had_turns
                and not self.reservations.evicts(gang.key)
                and self._line.stays_aside(gang, in_vain.get(alike), now)
            ):
                continue
            with self._surviving(gang.name), suppress(StaleResult):
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
        live = [] if gang is None else [m for m in self.muster(gang).all if m.live]
        if not live:
            return
        created = min(member.created for member in live)
        oldest = min((m for m in live if m.created == created), key=lambda member: member.uid)
        reservation = self.reservations.of(key)
        spots = () if reservation is None else reservation.earliest.spots
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
                self._pending_writes.note_queue(member, wanted, now)

    def _pause(self) -> None:
        self._step_aside(lambda: None)

    def _pause_for(self, key: GangKey) -> None:
        """Each look at thousands of members takes a while."""
        if len(self._cache.gangs.get(key, ())) >= _VERY_MANY:
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
            self._lifecycle.next_due(),
            self.turns.next_due(),
            self.preemption.next_due(),
            self._pending_writes.next_due(),
            self._waiting_events.next_due(),
            self.unschedulable_pods.next_due,
            self.feedback.next_due(),
            self._kubelet_admission.next_due(),
        )
        return min((time for time in times if time is not None), default=None)

    def is_writing(self, uid: str) -> bool:
        """Whether a write of the pod's plan is on its way."""
        return self._pending_writes.busy(uid)

    def deadline(self, gang: Gang) -> float | None:
        return self._lifecycle.deadline(gang)

    def _take_due(self, now: float) -> set[GangKey]:
        cache = self._cache
        self.node_filters.trim()
        self._best_node.trim()
        touched = cache.take_touched()
        for name in touched:
            info = cache.nodes.get(name)
            keys = (cache.pods[uid].gang for uid in (info.plans if info is not None else ()))
            self._due |= {key for key in keys if key is not None}
        if self.feedback.lapse(touched, now):
            self._refusals_ended()
        if len(cache.changed_rows) != self._changes_seen:
            self._changes_seen = len(cache.changed_rows)
            self._take_up_refused()
        self._due |= self._lifecycle.take_late(now)
        for uid in self._pending_writes.take_woken(now):
            record = cache.pods.get(uid)
            if record is not None:
                self._gates.pod_changed(record)
                if record.gang is not None:
                    self._due.add(record.gang)
        due, self._due = self._due, set()
        return due

    def _refusals_ended(self) -> None:
        self._cache.room += 1  # for all who wait: what refused them then may let them in now
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
