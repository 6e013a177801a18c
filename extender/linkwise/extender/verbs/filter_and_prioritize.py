"""Implements filter and prioritize: which nodes have a suitable GPU set, and which is best.

Calls name up to 5,000 nodes, so arrays hold the data, and each kind is evaluated once. Refusals are
stable texts, equal on all nodes with the same reason (`FilterAnswer`); `explain` has the numbers.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.api.extender_calls import (
    FilterAnswer,
    FilterCall,
    PriorityAnswer,
)
from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.node_table import NodeTable, popcount
from linkwise.extender.cycle.planner import Planner
from linkwise.extender.gangs.scheduling_gates import why_gang_waits
from linkwise.extender.placement.nodes.reasons import by_kind, rooms
from linkwise.extender.placement.shares.nodes import request_of, share_rooms
from linkwise.extender.verbs.shares import in_place_of_gpus, prioritize_shares

ELSEWHERE = "linkwise: planned on another node"
# A read of an owner takes milliseconds. kube-scheduler tries no other pod meanwhile. So each pod
# may delay it for this long in total; then it gets the reason that stands on the pod for minutes.
READING_SECONDS = 0.2
BEST_SCORE = 100
_BANDWIDTH, _FUTURE, _FULLNESS = 85, 10, 4  # of all scores but the best, 99 at most
_ANY_DAMAGE = 1e-6  # GB/s: if all nodes lose nothing, all are spared equally


def filter_nodes(
    cache: Cache, planner: Planner, record: PodRecord, call: FilterCall, now: float
) -> FilterAnswer:
    """*record* describes the pod as kube-scheduler sent it."""
    names = call.node_names
    if record.invalid:
        return FilterAnswer(unresolvable=dict.fromkeys(names, f"linkwise: {record.invalid}"))
    if not (record.demand.gpus or record.shares):
        return FilterAnswer(node_names=names)
    known = cache.pods.get(record.uid) or record
    placed = _placed_on(cache, known)
    if placed is not None:
        _learn(planner, record, names, placed, now)
        return _exactly(placed, names)
    awaits = known.awaits or record.awaits
    if awaits:
        planner.unschedulable_pods.answered(known, now, has_room=False)
        passing = now - planner.unschedulable_pods.since(known.uid, now) < READING_SECONDS
        failed = dict.fromkeys(names, f"linkwise: {awaits}")
        return FilterAnswer(failed=failed, passing=passing)
    if record.ask.gang is not None and record.demand.gpus:
        _learn(planner, record, names, None, now)
        return FilterAnswer(failed=dict.fromkeys(names, gang_text(planner, record)))
    _learn(planner, record, names, planner.unschedulable_pods.nominated(record), now)
    answer = _of_single(cache, planner, record, names, now)
    has_room = bool(answer.node_names)
    planner.unschedulable_pods.answered(
        known, now, has_room=has_room, names=() if has_room else names
    )
    return answer


def _of_single(
    cache: Cache, planner: Planner, record: PodRecord, names: tuple[str, ...], now: float
) -> FilterAnswer:
    """The pod sees GPUs reserved for others only if nothing else is left and it may use them."""
    answer = FilterAnswer()
    if record.shares:
        shares = share_rooms(cache, request_of(record), names)
        if not record.demand.gpus or not shares.node_names:
            return shares
        answer = _of_single(cache, planner, replace(record, shares=()), shares.node_names, now)
        return replace(
            answer,
            failed={**shares.failed, **answer.failed},
            unresolvable={**shares.unresolvable, **answer.unresolvable},
        )
    request = GpuRequest(record.demand, record.ask.requirement)
    reservations = planner.reservations
    for view in reservations.views(reservations.claimant_of_single(record), now):
        best = planner.offers.offer(record, names, view)
        if best is not None:
            return FilterAnswer(node_names=(best,))
        answer = rooms(cache, view, request, names)
        if answer.node_names:
            return answer
    return in_place_of_gpus(cache, record, names, answer)


def gang_text(planner: Planner, record: PodRecord) -> str:
    """The reason why a member without a plan waits."""
    assert record.ask.gang is not None
    gang = planner.gangs.get(record.gang) if record.gang is not None else None
    members = planner.muster(gang) if gang is not None else None
    return f"linkwise: gang {record.ask.gang.name}{why_gang_waits(gang, members, record)}"


def prioritize(
    cache: Cache, planner: Planner, record: PodRecord, names: Sequence[str], now: float
) -> PriorityAnswer:
    if record.invalid or not (record.demand.gpus or record.shares) or not names:
        return PriorityAnswer(tuple((name, 0) for name in names))
    placed = _placed_on(cache, cache.pods.get(record.uid) or record)
    if record.shares and not record.demand.gpus and placed is None:
        return prioritize_shares(cache, request_of(record), names)
    if placed is not None or record.ask.gang is not None:
        return PriorityAnswer(tuple((name, BEST_SCORE * (name == placed)) for name in names))
    request = GpuRequest(record.demand, record.ask.requirement)
    scores = [0] * len(names)
    reservations = planner.reservations
    for view in reservations.views(reservations.claimant_of_single(record), now):
        scores = _scores(cache, view.table(), request, names)
        if any(scores):
            return PriorityAnswer(tuple(zip(names, scores, strict=True)))
    return prioritize_shares(cache, request_of(record, cache.managed), names)


def _scores(cache: Cache, table: NodeTable, request: GpuRequest, names: Sequence[str]) -> list[int]:
    rows = table.rows_of(names)
    quality: NDArray[np.float64] = np.full(len(names), -np.inf)
    damage, free_share = np.zeros(len(names)), np.ones(len(names))
    for kind, places, free in by_kind(cache, table, rows):
        quality[places] = kind.qualities(request, free)
        damage[places] = kind.damages_within(request, free)
        free_share[places] = popcount(free) / kind.all_gpus.bit_count()
    best = quality.max()
    if best == -np.inf:
        return [0] * len(names)
    ratio = np.where(quality > -np.inf, quality / best, 0.0)
    spared = 1 - damage / max(damage.max(), _ANY_DAMAGE)
    scores = _BANDWIDTH * ratio + _FUTURE * spared + _FULLNESS * (1 - free_share)
    scores = np.where(quality > -np.inf, np.clip(scores, 0, BEST_SCORE - 1), 0).astype(np.int64)
    ranks = np.where(rows >= 0, cache.rows.name_ranks()[rows], len(cache.rows))
    scores[_first(-quality, damage, free_share, ranks)] = BEST_SCORE
    as_list: list[int] = scores.tolist()
    return as_list


def _first(*keys: NDArray[np.generic]) -> int:
    """The place that is first by these keys, one after the other; the rest is not sorted."""
    places = np.arange(len(keys[0]))
    for key in keys:
        of_places = key[places]
        places = places[of_places == of_places.min()]
    return int(places[0])


def _placed_on(cache: Cache, record: PodRecord) -> str | None:
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


def _learn(
    planner: Planner, record: PodRecord, names: tuple[str, ...], wanted: str | None, now: float
) -> None:
    """Learn from the nodes of this call: those that it names passed all other filters. The
    *wanted* node, for which the extender nominated the pod, may have refused it."""
    if record.template is None:
        return
    planner.asked(record, is_planned=wanted is not None)
    planner.named(record, names)
    if record.gang is not None and (wanted is None or wanted not in names):
        planner.feedback.passed(record.template, names, now)
    if wanted is not None and wanted not in names and record.nominated == wanted:
        planner.not_asked_about(record, wanted, names, now)
