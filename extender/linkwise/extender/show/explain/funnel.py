"""Where pods could go; one search for all pods that are alike."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from linkwise.extender.next.queue.reservations import Claimant
from linkwise.extender.place.nodes.reasons import why_closed_exactly
from linkwise.extender.place.shares.choice import ShareRequest, choose_shares
from linkwise.extender.place.shares.nodes import request_of, why_no_shares
from linkwise.extender.show.explain.levels import SHARES, Levels
from linkwise.extender.show.explain.node_arrays import Field
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.views import (
    LevelView,
    NearestMiss,
    ReasonCount,
    RequestView,
    SearchView,
)
from linkwise.pods.annotations import link_word


class Funnel:
    """Caches the search result of pods that are alike."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.field = Field(snapshot)
        self._known: dict[object, SearchView] = {}

    def search(self, records: Sequence[PodRecord], claimant: Claimant) -> SearchView:
        """*records* are pods for which `alike` is equal."""
        mine = self.field.open_to(claimant)
        key = (alike(records[0]), len(records), mine)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._search(records[0], len(records), mine)
        return found

    def _search(self, record: PodRecord, pods: int, mine: frozenset[int]) -> SearchView:
        if not record.demand.gpus:
            return self._search_shares(record, pods, request_of(record))
        if record.shares:
            return self._search_both(record, pods, mine)
        found = self._search_gpus(record, pods, mine)
        in_place = request_of(record, in_place=True)
        if record.ask.gang is not None or not any(
            node.shares.offers(record.resource) for node in self.field.nodes
        ):
            return found
        shares = self._search_shares(record, pods, in_place)
        return replace(
            found,
            levels=(*found.levels, *shares.levels),
            room=max(found.room, shares.room),
            nearest=None if shares.room >= pods else found.nearest,
        )

    def _search_shares(self, record: PodRecord, pods: int, request: ShareRequest) -> SearchView:
        """Shares of divided GPUs: how many nodes have some for one such pod."""
        reasons: Counter[str] = Counter()
        room, nearest, most = 0, None, -1
        closed = self.field.closed(record.template)
        offering = [
            (node, str(why))
            for node, why in zip(self.field.nodes, closed, strict=True)
            if all(node.shares.offers(name) for name, _ in request.wants)
        ]
        for node, why in offering:
            why = why or why_closed_exactly(node.closed)
            if not why and node.kind is not None:
                if choose_shares(node.kind, node.shares, request) is not None:
                    room += 1
                    continue
                why, _ = why_no_shares(node.kind, node.shares, request)
            why = why.removeprefix("linkwise: ")
            reasons[why] += 1
            free = sum(node.shares.free.get(name, 0) for name, _ in request.wants)
            if free > most:
                lacks = f"{why} ({free} free)"
                nearest, most = NearestMiss(node.name, "node", lacks), free
        wanted = " and ".join(f"{demand.gpus} {name}" for name, demand in request.wants)
        missing = tuple(ReasonCount(why, count) for why, count in reasons.most_common())
        level = LevelView(SHARES, f"have {wanted} free", "nodes", room, len(offering), missing)
        return SearchView(
            pods,
            wanted_of(record),
            (level,),
            min(room, pods),
            None if room >= pods else nearest,
        )

    def _search_both(self, record: PodRecord, pods: int, mine: frozenset[int]) -> SearchView:
        """Whole GPUs and shares on one node."""
        gpus, request = Levels(self.field, record, mine), request_of(record)
        levels, room = gpus.all(), gpus.room()
        has_shares = [
            node.kind is not None
            and not node.closed
            and choose_shares(node.kind, node.shares, request) is not None
            for node in self.field.nodes
        ]
        total = min(int((room * np.array(has_shares, dtype=np.int64)).sum()), pods)
        shares = self._search_shares(record, pods, request)
        nearest = None if total >= pods else shares.nearest or gpus.nearest(room)
        return replace(shares, levels=(*levels, *shares.levels), room=total, nearest=nearest)

    def _search_gpus(self, record: PodRecord, pods: int, mine: frozenset[int]) -> SearchView:
        found = Levels(self.field, record, mine)
        levels = found.all()
        room = found.room()
        total = min(int(room.sum()), pods)
        nearest = None if total >= pods else found.nearest(room)
        return SearchView(pods, wanted_of(record), tuple(levels), total, nearest)


def alike(record: PodRecord) -> object:
    """Equal for pods that may go to the same nodes."""
    wants = record.demand, record.shares, record.ask.sharing, record.ask.requirement
    return *wants, record.needs, record.template


def wanted_of(record: PodRecord) -> RequestView:
    requirement = record.ask.requirement
    shares = {name: demand.gpus for name, demand in record.shares}
    return RequestView(
        gpus=record.demand.gpus,
        containers={c.name: c.gpus for c in record.demand.containers},
        require_link=link_word(requirement.require),
        prefer_link=link_word(requirement.prefer),
        hardware=tuple(requirement.hardware.in_words()),
        milli_cpu=record.needs.milli_cpu,
        memory=record.needs.memory,
        others={name: need for name, need in record.needs.others if name not in shares},
        shares=shares,
        share=record.ask.sharing.value,
    )
