"""Implements filter: on which of the named nodes a pod has a suitable GPU set.

Calls name up to 5,000 nodes, so arrays hold the data, and each kind is evaluated once. Refusals are
stable texts, equal on all nodes with the same reason (`FilterAnswer`); `explain` has the numbers.
"""

from collections.abc import Sequence
from dataclasses import replace

from linkwise.extender.calls.shares import in_place_of_gpus
from linkwise.extender.next.cycle.planner import Planner
from linkwise.extender.next.gangs.gang import Gang, Phase
from linkwise.extender.next.queue.books import Part
from linkwise.extender.next.queue.waiting_events import why_member_waits
from linkwise.extender.place.nodes.by_count import (
    belongs_to_by_count,
    is_by_count,
    takes_by_count,
    with_by_count,
)
from linkwise.extender.place.nodes.reasons import SUCH_REFUSED, of_other_resource, rooms
from linkwise.extender.place.nodes.scheduler_feedback import names_all
from linkwise.extender.place.shares.nodes import request_of, share_rooms
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.extender_calls import FilterAnswer, FilterCall
from linkwise.extender.state.records import NO_DEMAND, GangKey, PodRecord


class CallRecorder(Part):
    """Records what a filter call shows: the nodes that it names passed all other filters of
    kube-scheduler, and a planned node that it omits may have been refused.
    """

    def __init__(self, planner: Planner) -> None:
        super().__init__(planner)
        self._changes, self._refused_plans = planner.changes, planner.refused_plans

    def record(
        self, record: PodRecord, names: tuple[str, ...], wanted: str | None, now: float
    ) -> None:
        """A filter call about *record* names these nodes. *wanted*: the only node that the extender
        lets it through to; None: there is none."""
        if record.template is None:
            return
        self._asked(record, is_planned=wanted is not None)
        # Earlier refusals of the nodes that it names no longer count.
        if record.nominated and record.nominated in names:
            self._feedback.asked_about(record.uid, record.nominated)
        ended = bool(names) and self._gang_refusals.named(record.gang)
        if self._feedback.named(record.template, names) or ended:
            self._changes.refusals_ended()
        is_omitted = wanted is not None and wanted not in names
        if record.gang is not None and (wanted is None or is_omitted):
            self._feedback.passed(record.template, names, now)
        if wanted is None:
            return
        if not is_omitted:
            self._refused_plans.let_through(record, wanted)
        elif record.nominated == wanted:
            self._refused_plans.omitted(record, wanted, names, now)

    def _asked(self, record: PodRecord, *, is_planned: bool) -> None:
        """kube-scheduler calls about a member. If it never did while there was a plan, the plan
        timed out because its calls were missing; now the calls arrive again."""
        gang = self._registry.of(record)
        if gang is None:
            return
        if record.of_other_priority and not gang.called:
            gang.called = True
            self._changes.due.add(gang.key)
        if is_planned:
            gang.asked = True
        elif gang.refused and not gang.asked:
            self._queue.take_up(gang.key)
            self._changes.due.add(gang.key)


# kube-scheduler tries no other pod meanwhile. So the calls about a gang wait for this long in
# total, twice what the refusal of one member costs; longer if its plan is being written. All gangs
# together take a fifth of kube-scheduler's time, except a few that come at once.
GATHERING_SECONDS, BRINGING_SECONDS = 0.02, 0.05
_SHARE = 5
_EACH_SECONDS = _SHARE * BRINGING_SECONDS
_AT_ONCE_SECONDS = 4.5 * _EACH_SECONDS  # five of the longest waits
_FORGOTTEN_SECONDS = 1.0  # a gang that no watch shows by then


class Gathering(Part):
    """Lets the first call about a gang wait until the gang has its plan.

    kube-scheduler spends some 10 ms on a member that `filter` refuses: it looks for pods to evict,
    and writes the refusal on the pod. Other members wait meanwhile, and that one waits for its
    nomination to be seen. A gang's pods are mostly created within milliseconds, so a call that
    waits as long is answered with the planned node. Meanwhile kube-scheduler learns the nominations
    of the other members, and then tries each on its own node only.
    """

    def __init__(self, planner: Planner) -> None:
        super().__init__(planner)
        self._changes = planner.changes
        self._paid_until = 0.0  # by then the waits so far make up a fifth of the time
        self._waits_since: dict[str, float] = {}  # by scheduler, if its call waits
        # Gangs that the cache does not know yet -> until when calls about them wait; the oldest
        # first.
        self._unknown: dict[GangKey, float] = {}

    def lasts(self, record: PodRecord, names: tuple[str, ...], now: float) -> bool:
        """Whether the answer about this member may be better in a moment. Until then, its plan
        prefers the nodes that the call *names*: kube-scheduler takes the planned node only if it
        is one of them."""
        if record.gang is None:
            return False
        self._pay(record.scheduler, now)
        gang = self._registry.of(record)
        until = self._until(record.gang, gang, now)
        waited = now - (until - GATHERING_SECONDS)
        # A call that names all nodes is about the planned one whatever is nominated.
        brings = gang is not None and not names_all(names) and self._is_to_bring(gang)
        if waited < GATHERING_SECONDS:
            lasts = gang is None or self._is_to_plan(gang) or brings
        else:
            lasts = waited < BRINGING_SECONDS and brings
        if lasts and waited >= 0:  # less: the clock was set back
            self._held_calls.begin(record.gang, names)
            self._waits_since[record.scheduler] = now
            return True
        self._held_calls.end(record.gang)
        return False

    def _pay(self, scheduler: str, now: float) -> None:
        """For the time since the last look at a call of this scheduler, if that call waits. Its pod
        may name another gang at each look."""
        since = self._waits_since.pop(scheduler, now)
        held = min(max(now - since, 0.0), BRINGING_SECONDS)
        self._paid_until = max(self._paid_until, since) + _SHARE * held

    def expects_call(self) -> bool:
        """Whether a gang has just come of which kube-scheduler is about to try the first member."""
        return any(map(self._is_new, self._changes.due))

    def _is_new(self, key: GangKey) -> bool:
        gang, cache = self._registry.gangs.get(key), self._cache
        if key in self._unknown or self._queue.no_room(key) is not None:
            return False
        if gang is not None and (
            gang.phase is not Phase.FORMING or gang.gathers_until is not None or gang.refused
        ):
            return False
        pods = (cache.pods[uid] for uid in cache.gangs.get(key, ()))
        return any(
            pod.live
            and pod.needs.gpus
            and pod.scheduler in cache.schedulers
            and not (pod.node or pod.gated or pod.left_alone or pod.uid in cache.plans)
            for pod in pods
        )

    def _until(self, key: GangKey, gang: Gang | None, now: float) -> float:
        """Until when calls about the gang wait for its plan; long past if too many others did."""
        if gang is None:
            self._forget_unknown(now)
            if key not in self._unknown:
                self._unknown[key] = self._new_until(now)
            return self._unknown[key]
        if gang.gathers_until is None:
            known = self._unknown.pop(key, None)
            gang.gathers_until = self._new_until(now) if known is None else known
        return gang.gathers_until

    def _new_until(self, now: float) -> float:
        """The same for a gang that kube-scheduler asks about for the first time."""
        # It is later than that only if the clock was set back.
        self._paid_until = min(self._paid_until, now + _AT_ONCE_SECONDS + _EACH_SECONDS)
        if self._paid_until - now > _AT_ONCE_SECONDS:
            return now - BRINGING_SECONDS
        return now + GATHERING_SECONDS

    def _forget_unknown(self, now: float) -> None:
        while self._unknown:
            oldest = next(iter(self._unknown))
            if abs(now - self._unknown[oldest]) < _FORGOTTEN_SECONDS:
                break
            del self._unknown[oldest]

    def _is_to_plan(self, gang: Gang) -> bool:
        return gang.phase is Phase.FORMING and self._queue.no_room(gang.key) is None

    def _is_to_bring(self, gang: Gang) -> bool:
        """Whether the API server does not show all plans of its members yet."""
        plans, bring = self._cache.plans, self._pending_writes
        return gang.phase is Phase.PLANNED and not all(
            bring.has_brought(member, plans[member.uid])
            for member in self._registry.members_of(gang).planned
        )


ELSEWHERE = "linkwise: planned on another node"
# A read of an owner takes milliseconds. kube-scheduler tries no other pod meanwhile. So each pod
# may delay it for this long in total; then it gets the reason that stands on the pod for minutes.
READING_SECONDS = 0.2


class Filter(Part):
    def __init__(self, planner: Planner) -> None:
        super().__init__(planner)
        self._offers, self._unschedulable_pods = planner.offers, planner.unschedulable_pods
        self._recorder, self._gathering = CallRecorder(planner), Gathering(planner)
        self._targets = planner.targets
        self.expects_call = self._gathering.expects_call

    def answer(self, record: PodRecord, call: FilterCall, now: float) -> FilterAnswer:
        """*record* describes the pod as kube-scheduler sent it."""
        names = call.node_names
        if record.left_alone:
            return FilterAnswer(node_names=names)
        if record.invalid:
            return FilterAnswer(unresolvable=dict.fromkeys(names, f"linkwise: {record.invalid}"))
        if not (record.demand.gpus or record.shares):
            return FilterAnswer(node_names=names)
        known = self._cache.pods.get(record.uid) or record
        placed = placed_on(self._cache, known)
        is_elsewhere = placed is not None and placed not in names
        # A call about other nodes than the planned one is answered at once: the next one, once the
        # nomination is written, is about that node.
        if (
            record.ask.gang is not None
            and self._gathering.lasts(known, names, now)
            and not is_elsewhere
        ):
            answer = self._of_member(record, names) if placed is None else _exactly(placed, names)
            return replace(answer, passing=True)
        if placed is not None:
            if is_elsewhere:
                self._pending_writes.sent_away(record.uid)
            self._recorder.record(record, names, placed, now)
            return _exactly(placed, names)
        waiting = self._unschedulable_pods
        awaits = known.awaits or record.awaits
        if awaits:
            waiting.answered(known, now, has_room=False)
            passing = now - waiting.since(known.uid, now) < READING_SECONDS
            failed = dict.fromkeys(names, f"linkwise: {awaits}")
            return FilterAnswer(failed=failed, passing=passing)
        if record.ask.gang is not None and record.demand.gpus:
            self._recorder.record(record, names, None, now)
            return self._of_member(record, names)
        self._recorder.record(record, names, waiting.nominated(record), now)
        target = self._targets.with_shares(known, names)
        if target is not None:
            answer = _exactly(target.spot.node, names)
        else:
            answer = self._of_its_resource(record, names, now)
        has_room = bool(answer.node_names)
        waiting.answered(
            known,
            now,
            has_room=has_room,
            names=() if has_room else names,
            is_partial=answer.is_partial,
        )
        return answer

    def _of_its_resource(
        self, record: PodRecord, names: tuple[str, ...], now: float
    ) -> FilterAnswer:
        """Nodes with GPUs by another resource never take the pod."""
        foreign = of_other_resource(self._cache, record.resource, names)
        if not foreign:
            return self._where_admitted(record, names, now)
        own = tuple(name for name in names if name not in foreign)
        answer = self._where_admitted(record, own, now)
        return replace(answer, unresolvable={**answer.unresolvable, **foreign})

    def _where_admitted(
        self, record: PodRecord, names: tuple[str, ...], now: float
    ) -> FilterAnswer:
        """Nodes that refused such a pod come last, to try one there."""
        away = self._cache.turned_away
        refused = away.of(record.template)
        if not refused or refused.isdisjoint(names):  # a set without elements looks at all names
            return self._of_single(record, names, now)
        others = tuple(name for name in names if name not in refused)
        answer = self._of_single(record, others, now)
        if not answer.node_names:
            open_ = tuple(n for n in names if not away.takes_none(record.template, n))
            answer = self._of_single(record, open_, now)
        told = {*answer.node_names, *answer.failed, *answer.unresolvable}
        # kube-scheduler need not look for pods to evict there.
        closed = {name: SUCH_REFUSED for name in refused.intersection(names) if name not in told}
        return replace(answer, unresolvable={**answer.unresolvable, **closed})

    def _of_single(self, record: PodRecord, names: tuple[str, ...], now: float) -> FilterAnswer:
        """The pod sees GPUs reserved for others only if nothing else is left and it may use
        them. A node where it is placed by count is something else."""
        if record.shares:
            return self._of_single_with_shares(record, names, now)
        answer = FilterAnswer()
        request = GpuRequest(record.demand, record.ask.requirement)
        claimant = self._reservations.claimant_of_single(record)
        by_count = takes_by_count(record)
        for view in self._reservations.views(claimant, now):
            best = self._offers.offer(record, names, view)
            if best is not None:
                return FilterAnswer(node_names=(best,))
            best_node = self._offers.best_node
            answer = rooms(self._cache, best_node, view, request, record.needs, names)
            if by_count:
                answer = with_by_count(self._cache, record, answer, names)
            if answer.node_names:
                return answer
        return in_place_of_gpus(self._cache, record, names, answer)

    def _of_single_with_shares(
        self, record: PodRecord, names: tuple[str, ...], now: float
    ) -> FilterAnswer:
        """Of the nodes that have the shares, those that also have the whole GPUs."""
        shares = share_rooms(self._cache, request_of(record), names)
        if takes_by_count(record):
            shares = with_by_count(self._cache, replace(record, demand=NO_DEMAND), shares, names)
        if not record.demand.gpus or not shares.node_names:
            return shares
        answer = self._of_single(replace(record, shares=()), shares.node_names, now)
        return replace(
            answer,
            failed={**shares.failed, **answer.failed},
            unresolvable={**shares.unresolvable, **answer.unresolvable},
            is_partial=shares.is_partial or answer.is_partial,
        )

    def _of_member(self, record: PodRecord, names: tuple[str, ...]) -> FilterAnswer:
        """The answer for a gang's member without a plan."""
        here = belongs_to_by_count(self._cache, record)
        passing = tuple(node for node in names if here and is_by_count(self._cache, record, node))
        why, others = self._why_waits(record), {*names}.difference(passing)
        return FilterAnswer(passing, {node: why for node in names if node in others})

    def _why_waits(self, record: PodRecord) -> str:
        """The reason why a member without a plan waits."""
        assert record.ask.gang is not None
        gang = self._registry.of(record)
        members = None if gang is None else self._registry.members_of(gang)
        no_room = None if gang is None else self._queue.no_room(gang.key)
        why = why_member_waits(gang, members, record, no_room)
        return f"linkwise: gang {record.ask.gang.name}{why.words}"


def placed_on(cache: Cache, record: PodRecord) -> str | None:
    """The only node where the pod may be: it is bound, being bound or planned there."""
    if record.node:
        return record.node
    for node in cache.assumed.get(record.uid, ()):
        return node
    if cache.keeps_plan(record.uid):
        return cache.plans[record.uid].plan.node
    return None


def _exactly(node: str, names: Sequence[str]) -> FilterAnswer:
    return FilterAnswer(
        node_names=(node,) if node in names else (),
        failed={name: ELSEWHERE for name in names if name != node},
    )
