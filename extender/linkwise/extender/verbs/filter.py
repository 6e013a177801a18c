"""Implements filter: on which of the named nodes a pod has a suitable GPU set.

Calls name up to 5,000 nodes, so arrays hold the data, and each kind is evaluated once. Refusals are
stable texts, equal on all nodes with the same reason (`FilterAnswer`); `explain` has the numbers.
"""

from collections.abc import Sequence
from dataclasses import replace

from linkwise.extender.api.extender_calls import FilterAnswer, FilterCall
from linkwise.extender.api.records import NO_DEMAND, PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cycle.planner import Planner
from linkwise.extender.placement.nodes.by_count import (
    belongs_to_by_count,
    is_by_count,
    takes_by_count,
    with_by_count,
)
from linkwise.extender.placement.nodes.reasons import SUCH_REFUSED, rooms
from linkwise.extender.placement.shares.nodes import request_of, share_rooms
from linkwise.extender.queue.books import Part
from linkwise.extender.queue.waiting_reasons import why_member_waits
from linkwise.extender.verbs.call_recorder import CallRecorder
from linkwise.extender.verbs.gathering import Gathering
from linkwise.extender.verbs.shares import in_place_of_gpus

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
        if record.ask.gang is not None and self._gathering.lasts(known, now):
            answer = self._of_member(record, names) if placed is None else _exactly(placed, names)
            return replace(answer, passing=True)
        if placed is not None:
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
            answer = self._where_admitted(record, names, now)
        has_room = bool(answer.node_names)
        waiting.answered(
            known,
            now,
            has_room=has_room,
            names=() if has_room else names,
            is_partial=answer.is_partial,
        )
        return answer

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
