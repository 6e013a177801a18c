"""Implements prioritize: which of the nodes that passed is best for a pod.

The scores keep the order of the pod's choices (docs/topology.md): bandwidth, then the damage to
later jobs, then how full the node is. The best node alone has BEST_SCORE. A node where the pod is
placed by count has 0, less than each with a suitable set.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.api.extender_calls import PriorityAnswer
from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.node_table import NodeTable, popcount
from linkwise.extender.placement.nodes.reasons import by_kind
from linkwise.extender.placement.shares.nodes import request_of
from linkwise.extender.queue.reservations import Reservations
from linkwise.extender.verbs.filter import placed_on
from linkwise.extender.verbs.shares import prioritize_shares

BEST_SCORE = 100
_BANDWIDTH, _FUTURE, _FULLNESS = 85, 10, 4  # of all scores but the best, 99 at most
_ANY_DAMAGE = 1e-6  # GB/s: if all nodes lose nothing, all are spared equally


class Prioritize:
    def __init__(self, cache: Cache, reservations: Reservations) -> None:
        self._cache, self._reservations = cache, reservations

    def answer(self, record: PodRecord, names: Sequence[str], now: float) -> PriorityAnswer:
        """*record* describes the pod as kube-scheduler sent it."""
        takes = record.demand.gpus or record.shares
        if record.left_alone or record.invalid or not takes or not names:
            return PriorityAnswer(tuple((name, 0) for name in names))
        placed = placed_on(self._cache, self._cache.pods.get(record.uid) or record)
        if record.shares and not record.demand.gpus and placed is None:
            return prioritize_shares(self._cache, request_of(record), names)
        if placed is not None or record.ask.gang is not None:
            return PriorityAnswer(tuple((name, BEST_SCORE * (name == placed)) for name in names))
        request = GpuRequest(record.demand, record.ask.requirement)
        claimant = self._reservations.claimant_of_single(record)
        for view in self._reservations.views(claimant, now):
            scores = _scores(self._cache, view.table(), request, names)
            if any(scores):
                return PriorityAnswer(tuple(zip(names, scores, strict=True)))
        return prioritize_shares(self._cache, request_of(record, self._cache.managed), names)


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
    scores = np.where(quality > -np.inf, np.clip(scores, 1, BEST_SCORE - 1), 0).astype(np.int64)
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
