"""Makes the parts of a scheduling round, and tells them what changes in the cluster.

`decide` runs one `Round`: the only place where the extender assigns GPUs ahead of a bind.
"""

from collections.abc import Mapping, MutableSet, Sequence
from dataclasses import replace

from linkwise.extender.next.core_settings import CoreSettings
from linkwise.extender.next.cycle.allocate import Allocate
from linkwise.extender.next.cycle.changes import Changes
from linkwise.extender.next.cycle.refused_plans import RefusedPlans
from linkwise.extender.next.cycle.reserve import InVain, Reserve
from linkwise.extender.next.cycle.round import Publish, Round
from linkwise.extender.next.gangs.lifecycle import GangLifecycle
from linkwise.extender.next.gangs.scheduling_gates import SchedulingGates
from linkwise.extender.next.gangs.to_come import MembersToCome
from linkwise.extender.next.gangs.uncreated import FetchRefusals, RefusedPod, UncreatedMembers
from linkwise.extender.next.moves.emptying import Emptying, WholeNodes
from linkwise.extender.next.moves.may_move import MayMove
from linkwise.extender.next.moves.planned_moves import PlannedMoves
from linkwise.extender.next.moves.targets import Targets
from linkwise.extender.next.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.next.preemption.eviction_candidates import EvictionCandidates
from linkwise.extender.next.preemption.gang_preemption import GangPreemption, Rests
from linkwise.extender.next.preemption.reclaim import IdlePods
from linkwise.extender.next.queue.books import Books
from linkwise.extender.next.queue.idle_limit import IdleLimit
from linkwise.extender.next.queue.quota_turns import QuotaTurns
from linkwise.extender.next.queue.run_times import RunTimes
from linkwise.extender.next.queue.scheduling_queue import Ages
from linkwise.extender.next.queue.unschedulable_pods import UnschedulablePods
from linkwise.extender.place.nodes.best_node import Offers
from linkwise.extender.place.nodes.kubelet_admission import KubeletAdmission
from linkwise.extender.state.actions import Action, Emit, Evict, NotePlaces, WithdrawPlan
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.pending_writes import PendingWrites
from linkwise.extender.state.cache.plans import PlanCorrections
from linkwise.extender.state.decisions import History, of_action, of_bind
from linkwise.extender.state.extender_calls import BindOrder, Outcome
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.timers import Agenda
from linkwise.extender.state.views import Placed


class Planner(Books):
    """The books, and the parts of a round that work with them."""

    def __init__(
        self,
        cache: Cache,
        pending_writes: PendingWrites,
        agenda: Agenda,
        settings: CoreSettings,
        *,
        activity: Mapping[str, str],
        budgets: DisruptionBudgets,
        run_times: RunTimes,
        ages: Ages,
        awaited: MutableSet[str],
    ) -> None:
        super().__init__(
            cache,
            pending_writes,
            agenda,
            levels=settings.span_levels,
            order=settings.queue_order,
            ages=ages,
            run_times=run_times,
        )
        self.levels, self.budgets, self.history = settings.span_levels, budgets, History()
        self._gates, self.uncreated = SchedulingGates(self), UncreatedMembers(self)
        self._quota_turns = QuotaTurns(self, self.uncreated)
        self.to_come = MembersToCome(
            self,
            wave_seconds=settings.wave_seconds,
            replacement_seconds=settings.replacement_seconds,
        )
        self.targets = Targets(self, policy=settings.moves, awaited=awaited)
        self.reserve = Reserve(
            self,
            to_come=self.to_come,
            targets=self.targets,
            share=settings.reserve_share,
            idle_limit=IdleLimit(settings.reserve_limit_seconds),
        )
        self.lifecycle = GangLifecycle(
            self,
            gates=self._gates,
            to_come=self.to_come,
            gang_timeout_seconds=settings.gang_timeout_seconds,
            max_refusals=settings.max_refusals,
        )
        self.candidates = EvictionCandidates(self)
        self.idle_pods = IdlePods(
            self,
            candidates=self.candidates,
            activity=activity,
            namespaces=dict(settings.reclaim_idle),
            notice_seconds=settings.reclaim_notice_seconds,
        )
        self.rests = Rests(self.registry)
        self.preemption = GangPreemption(
            self,
            candidates=self.candidates,
            idle_pods=self.idle_pods,
            budgets=budgets,
            rests=self.rests,
            allowed=settings.preempt,
        )
        self.who_may_move = MayMove(self, policy=settings.moves, budgets=budgets)
        self.moves = PlannedMoves(
            self,
            budgets=budgets,
            rests=self.rests,
            policy=settings.moves,
            who=self.who_may_move,
            targets=self.targets,
            waits_for_servers=lambda key, members: (
                self.reserve.in_vain(key, members) is InVain.SERVERS
            ),
            share=settings.reserve_share,
        )
        self.emptying = Emptying(
            self,
            who=self.who_may_move,
            targets=self.targets,
            budgets=budgets,
            policy=settings.moves,
        )
        self.whole_nodes = WholeNodes(
            self,
            emptying=self.emptying,
            who=self.who_may_move,
            targets=self.targets,
            policy=settings.moves,
        )
        self.changes = Changes(self, lifecycle=self.lifecycle, gates=self._gates)
        self.refused_plans = RefusedPlans(self, self.changes)
        self._allocate = Allocate(
            self,
            reserve=self.reserve,
            preemption=self.preemption,
            targets=self.targets,
            lifecycle=self.lifecycle,
            aside=self.changes.run,
        )
        self.unschedulable_pods = UnschedulablePods(self)
        self._plan_corrections = PlanCorrections(cache, pending_writes)
        publish = Publish(
            self,
            reserve=self.reserve,
            targets=self.targets,
            lifecycle=self.lifecycle,
            to_come=self.to_come,
            gates=self._gates,
            uncreated=self.uncreated,
            quota_turns=self._quota_turns,
            unschedulable_pods=self.unschedulable_pods,
            plan_corrections=self._plan_corrections,
            changes=self.changes,
            lift_gates_after_seconds=settings.lift_gates_after_seconds,
        )
        self.round = Round(
            self,
            changes=self.changes,
            lifecycle=self.lifecycle,
            refused_plans=self.refused_plans,
            allocate=self._allocate,
            reserve=self.reserve,
            targets=self.targets,
            moves=self.moves,
            emptying=self.emptying,
            whole_nodes=self.whole_nodes,
            preemption=self.preemption,
            publish=publish,
        )
        self._kubelet_admission = KubeletAdmission(cache, agenda)
        self.offers = Offers(cache, self.best_node)

    @property
    def swaps(self) -> int:
        return self._plan_corrections.swaps

    @property
    def placed(self) -> Placed:
        return self._allocate.placed

    def believe_no_older(self) -> None:
        """Start to lead: all plans of earlier leaders have been seen."""
        self.pending_writes.begin()

    # Input: changes.

    def pod_changed(self, before: PodRecord | None, record: PodRecord, now: float) -> None:
        """A pod was created or changed; the cache already has *record*."""
        if before is None:
            self.mix.came(record)
        self._kubelet_admission.changed(before, record, now)
        if record.asked:
            self.asked_by(record.scheduler)
        self._gates.pod_changed(record)
        self.idle_pods.pod_changed(record)
        self.unschedulable_pods.changed(record)
        self.targets.pod_changed(record, now)
        self.reservations.note_passing(record)
        self.who_may_move.pod_changed(record)
        if record.node:
            self.offers.forget(record.uid)
        if record.leaving:
            self.pending_writes.leaves(record.uid, now)
        if not (record.gang or record.awaits) and record.uid in self.cache.plans:
            # Its gate was removed by hand before the plan was written, or kube-scheduler refused
            # the node.
            self.cache.plan(record.uid, None)
            self.pending_writes.note_why(record.uid, "its gate is gone, or the node was refused")
        news = self.pending_writes.seen(record, now)
        if news and record.live and not record.node and _is_planned(record):
            self.cache.plan(record.uid, record.written)
        self.refused_plans.condition(before, record, now)
        is_progress = not news and self._is_progress(before, record)
        for known in (before, record):
            self.changes.note(known, is_progress=is_progress)
        if before is None or not _same_member(before, record):
            self.queue.take_up(record.gang)
        if before is None or not _asks_the_same(before, record):
            self.lifecycle.altered(record.gang)

    def owners_ended(self, ended: Mapping[str, bool]) -> None:
        """By uid, whether an owner that was read creates no pods now."""
        for uid, has_ended in ended.items():
            self.changes.due |= self.to_come.owner_ended(uid, has_ended=has_ended)

    def refusals_read(
        self, asked: FetchRefusals, found: Sequence[RefusedPod] | None, now: float
    ) -> None:
        self.changes.due |= self.uncreated.read(asked, found, now)
        self._quota_turns.said(asked.namespace)

    def claim_changed(self, uid: str) -> None:
        """The claim that was created for this pod's plan came, changed or went."""
        self.changes.note(self.cache.pods.get(uid), is_progress=True)

    def _is_progress(self, before: PodRecord | None, record: PodRecord) -> bool:
        """Whether the pod only went on as decided, or came to a gang that still has too few pods.
        Then no other gang or pod depends on when its own gang is looked at."""
        if before is None:
            ask = record.ask.gang
            there = len(self.cache.gangs.get(record.gang, ())) if record.gang is not None else 0
            return record.live and ask is not None and there + ask.done < ask.minimum
        gang = self.registry.of(record)
        if gang is not None and record.uid in gang.marked:  # the mark is no news
            before = replace(before, started=record.started)
        return goes_as_decided(before, record)

    def asked_by(self, scheduler: str, now: float = 0.0) -> None:
        """The scheduler of this name calls the extender about its pods, so it uses its plans. *now*
        is when it called, if that is known."""
        before = self.cache.schedulers.get(scheduler)
        self.cache.schedulers[scheduler] = max(now, before or 0.0)
        if before is None:
            self.changes.due |= set(self.registry.gangs)
            self.unschedulable_pods.look_now(0.0)

    def pod_gone(self, record: PodRecord, now: float) -> None:
        self._kubelet_admission.gone(record, now)
        self.pending_writes.leaves(record.uid, now)
        self.targets.pod_gone(record.uid, now)
        self.reservations.note_passing(record)
        self.cache.memory.gone(record.uid)
        if record.gang is not None:
            self.changes.due.add(record.gang)
            self.queue.take_up(record.gang)

    def wrote(self, action: Action, outcome: Outcome, now: float) -> None:
        gang_of_note = self.pending_writes.gang_of_note.get(action.pod.uid)
        self.pending_writes.done(action, outcome, now)
        if isinstance(action, Evict) and outcome is Outcome.REFUSED:
            self.preemption.refused(action.pod.uid, now)
        if isinstance(action, Evict) and outcome is Outcome.DONE:
            self.targets.leaves(action.pod.uid, now)
        if outcome is Outcome.DENIED:
            self.refused_plans.plan(action)
        if isinstance(action, NotePlaces):  # its gang waits for that
            self.changes.due |= {*filter(None, [gang_of_note])}
            return
        if isinstance(action, Emit):
            return  # no decision depends on an Event
        record = self.cache.pods.get(action.pod.uid)
        if record is not None and record.gang is not None:
            is_progress = outcome is Outcome.DONE and not isinstance(action, Evict | WithdrawPlan)
            self.changes.note(record, is_progress=is_progress)
            # The new pods of an idle gang must not take back what others got in its place.
            if isinstance(action, Evict) and not self.preemption.is_reclaimed(record.uid):
                self.queue.keep_age(record.gang, now)

    # What has been decided, for `history`.

    def note_bound(self, order: BindOrder, now: float) -> None:
        self.history.add([of_bind(order, self.cache.pods.get(order.uid), now)])

    def note_done(self, action: Action, now: float) -> None:
        decision = of_action(action, self.cache.pods.get(action.pod.uid), now)
        self.history.add([decision] if decision is not None else [])

    def note_reservations(self, now: float) -> None:
        self.history.add(self.reservations.take_decisions(now))

    # Output: decisions.

    def decide(self, now: float, doubted: Mapping[str, str]) -> tuple[Action, ...]:
        """Run one round. *doubted*: uid -> the only node where a pod may be whose Binding got no
        response."""
        self._kubelet_admission.look(now)
        if self.queue.reorder(now):
            self.reservations.follow_order()
            self.unschedulable_pods.look_now(now)
        self.round.run(doubted, now)
        return self.pending_writes.take()


def _is_planned(record: PodRecord) -> bool:
    """Whether the plan in the pod's annotations may count.

    The plan of a single pod, or of one behind its gate, is void once kube-scheduler has removed the
    nomination. kube-scheduler also clears the nominations of members that it tries, so these need
    none. Nor does a pod with a claim: what keeps it from its GPUs shows in the books.
    """
    if record.gang is None or record.written is None:
        return False
    tried = not (record.gang.uid or record.gated) or record.claim is not None
    if record.awaits:
        return True  # no other pod gets these GPUs until the pod's gang is known
    return tried or record.nominated == record.written.plan.node


def goes_as_decided(before: PodRecord, record: PodRecord) -> bool:
    """Whether nothing about the pod changed but what the extender decided, and what kube-scheduler,
    the kubelet and the API server say about that: its plan, its nomination, the node that was
    planned, conditions, and labels, as a Binding copies those that tell where the node is. The mark
    that its gang has started is news for the gang."""
    if record.node != before.node and record.plan_for(record.node) is None:
        return False
    if record.gated != before.gated and record.written is None:
        return False
    facts = before.facts
    if facts is not None and record.facts is not None:
        facts = replace(facts, labels=record.facts.labels)
    as_decided = replace(
        before,
        node=record.node,
        nominated=record.nominated,
        gated=record.gated,
        written=record.written,
        asked=record.asked,
        unschedulable=record.unschedulable,
        fits_nowhere=record.fits_nowhere,
        broken_off=record.broken_off,
        running=record.running,
        admitted=record.admitted,
        queue=record.queue,
        labels=record.labels,
        facts=facts,
    )
    return as_decided == record


def _same_member(before: PodRecord, record: PodRecord) -> bool:
    """Whether nothing changed that could help a gang that was left waiting."""
    return (
        before.live == record.live
        and before.held_back == record.held_back
        and before.node == record.node
        and _asks_the_same(before, record)
    )


def _asks_the_same(before: PodRecord, record: PodRecord) -> bool:
    return (
        before.demand == record.demand
        and before.ask == record.ask
        and before.template is record.template
    )
