"""Implements prioritize: which of the nodes that passed is best for a pod.

The scores keep the order of the pod's choices (docs/topology.md): bandwidth, then what later pods
lose, then how full the node is. How close the links are decides about the best node only, which
alone has BEST_SCORE. A node where the pod is placed by count has 0, less than each with a suitable
set.
"""

from collections.abc import Sequence

import numpy as np

from linkwise.extender.calls.filter import placed_on
from linkwise.extender.next.queue.books import Part
from linkwise.extender.place.cluster_view import NodesView
from linkwise.extender.place.shares.choice import ShareRequest
from linkwise.extender.place.shares.nodes import request_of, share_scores
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.extender_calls import PriorityAnswer
from linkwise.extender.state.records import PodRecord, ResourceList

BEST_SCORE = 100
_BANDWIDTH, _FUTURE, _FULLNESS = 85, 10, 4  # of all scores but the best, 99 at most
_ANY = 1e-6  # if later pods lose nothing on any node, all are spared equally


class Prioritize(Part):
    def answer(self, record: PodRecord, names: Sequence[str], now: float) -> PriorityAnswer:
        """*record* describes the pod as kube-scheduler sent it."""
        takes = record.demand.gpus or record.shares
        if record.left_alone or record.invalid or not takes or not names:
            return PriorityAnswer(names, [0] * len(names))
        placed = placed_on(self._cache, self._cache.pods.get(record.uid) or record)
        if record.shares and not record.demand.gpus and placed is None:
            return self._of_shares(record, request_of(record), names)
        if placed is not None or record.ask.gang is not None:
            return PriorityAnswer(names, [BEST_SCORE * (name == placed) for name in names])
        request = GpuRequest(record.demand, record.ask.requirement)
        claimant = self._reservations.claimant_of_single(record)
        for view in self._reservations.views(claimant, now):
            scores = self._scores(view, request, record.needs, names)
            if any(scores):
                return PriorityAnswer(names, scores)
        return self._of_shares(record, request_of(record, in_place=True), names)

    def _of_shares(
        self, record: PodRecord, request: ShareRequest, names: Sequence[str]
    ) -> PriorityAnswer:
        room = self._best_node.room()
        return PriorityAnswer(names, share_scores(self._cache, room, request, record.needs, names))

    def _scores(
        self, view: NodesView, request: GpuRequest, needs: ResourceList, names: Sequence[str]
    ) -> list[int]:
        cache = self._cache
        rows = cache.rows.rows_of(names)
        worth = self._best_node.worth_in(view, request, needs)
        quality = np.where(rows >= 0, worth.quality[rows], -np.inf)
        best = quality.max()
        if best == -np.inf:
            return [0] * len(names)
        fits = quality > -np.inf
        lost_room, damage = worth.lost_room[rows], worth.damage[rows]
        ratio = np.where(fits, quality / best, 0.0)
        later = lost_room if lost_room.any() else damage
        spared = 1 - later / max(later.max(), _ANY)
        fullness = 1 - worth.free_share[rows]
        scores = _BANDWIDTH * ratio + _FUTURE * spared + _FULLNESS * fullness
        scores = np.where(fits, np.clip(scores, 1, BEST_SCORE - 1), 0).astype(np.int64)
        scores[rows == self._best_node.first(worth, rows[fits])] = BEST_SCORE
        as_list: list[int] = scores.tolist()
        return as_list
