"""Where gangs and pods without room are in the scheduling queue, and why there."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from linkwise.extender.api.records import PodRecord
from linkwise.extender.api.views import SeniorityView
from linkwise.extender.explain.snapshot import GangState, Snapshot
from linkwise.extender.queue.queue_order import MOST_RUN_SECONDS, QueueOrder, Urgency


class QueuePlace(NamedTuple):
    ahead: int = 0  # gangs and pods without room that are more urgent
    behind: str = ""  # the last of these; empty: there is none
    seniority: SeniorityView | None = None  # None: the order is by age


class QueuePlaces:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def of(self, gang: GangState | None) -> QueuePlace:
        urgency = None if gang is None or gang.no_room is None else self._urgency(gang)
        if gang is None or urgency is None:
            return QueuePlace()
        ahead = bisect_left(self._urgencies, urgency)
        behind = self._urgencies[ahead - 1][2].title if ahead else ""
        return QueuePlace(ahead, behind, self._seniority(gang))

    def _seniority(self, gang: GangState) -> SeniorityView | None:
        ordering = self._snapshot.ordering
        if ordering.order is QueueOrder.AGE:
            return None
        live = _live(gang)
        gpus, expected = ordering.size_and_run_time(live)
        counts_as = None if math.isinf(expected) else min(expected, MOST_RUN_SECONDS)
        return SeniorityView(ordering.shift(live), gpus, counts_as)

    @cached_property
    def _urgencies(self) -> Sequence[Urgency]:
        waiting = (gang for gang in self._snapshot.gangs if gang.no_room is not None)
        return sorted(each for gang in waiting if (each := self._urgency(gang)) is not None)

    def _urgency(self, gang: GangState) -> Urgency | None:
        """None: the gang does not wait."""
        if gang.urgency is not None:
            return gang.urgency
        if gang.alone and gang.found.open:
            return self._snapshot.ordering.of_single(gang.found.open[0])
        return None


def _live(gang: GangState) -> list[PodRecord]:
    return [member for member in gang.found.all if member.live]
