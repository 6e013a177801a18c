"""Lets the first call about a gang wait until the gang has its plan.

kube-scheduler spends some 10 ms on a member that `filter` refuses: it looks for pods to evict, and
writes the refusal on the pod. Other members wait meanwhile, and that one waits for its nomination
to be seen. A gang's pods are mostly created within milliseconds, so a call that waits as long is
answered with the planned node. Meanwhile kube-scheduler learns the nominations of the other
members, and then tries each on its own node only.
"""

from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.cycle.planner import Planner
from linkwise.extender.gangs.gang import Gang, Phase
from linkwise.extender.queue.books import Part

# kube-scheduler tries no other pod meanwhile. So the calls about a gang wait for this long in
# total, twice what the refusal of one member costs; and all gangs together take a fifth of its
# time, however many come at once.
GATHERING_SECONDS = 0.02
_REST = 4.0  # times as long as the last wait
_FORGOTTEN_SECONDS = 1.0  # a gang that no watch shows by then


class Gathering(Part):
    def __init__(self, planner: Planner) -> None:
        super().__init__(planner)
        self._rests_until = 0.0
        # Gangs that the cache does not know yet -> until when calls about them wait; the oldest
        # first.
        self._unknown: dict[GangKey, float] = {}

    def lasts(self, record: PodRecord, now: float) -> bool:
        """Whether the answer about this member may be better in a moment."""
        if record.gang is None:
            return False
        gang = self._registry.of(record)
        until = self._until(record.gang, gang, now)
        waited = now - (until - GATHERING_SECONDS)
        if not 0 <= waited < GATHERING_SECONDS:  # less: the clock was set back
            return False
        lasts = gang is None or self._is_to_plan(gang) or self._is_to_bring(gang)
        if lasts:
            self._rests_until = now + _REST * waited
        return lasts

    def _until(self, key: GangKey, gang: Gang | None, now: float) -> float:
        """Until when calls about the gang wait; in the past if others have just waited."""
        rests = 0 < self._rests_until - now < _REST * GATHERING_SECONDS
        until = now if rests else now + GATHERING_SECONDS
        if gang is None:
            self._forget_unknown(now)
            return self._unknown.setdefault(key, until)
        if gang.gathers_until is None:
            gang.gathers_until = self._unknown.pop(key, until)
        return gang.gathers_until

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
