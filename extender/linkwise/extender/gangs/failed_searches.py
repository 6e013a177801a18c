"""Gangs that are alike fail alike: what had no room is not sought again before there is more.

A hundred gangs may wait for the same kind of GPUs, and every pod that ends is a reason to look for
room: one search of 5,000 nodes does for all of them.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from linkwise.extender.api.records import PodRecord
from linkwise.extender.api.spans import Spans
from linkwise.extender.cache.cache import Cache
from linkwise.extender.placement.result import Refusal, Spot


class FailedSearches:
    """Good while `Cache.room` stays as it is: until then, what is free only gets less."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._room = -1
        self._refusals: dict[Hashable, Refusal] = {}

    def forget(self) -> None:
        """Until now nothing got more, but there may be less to tell of."""
        self._refusals.clear()

    def seek(
        self,
        members: Sequence[PodRecord],
        spans: Spans,
        shown: Hashable,
        search: Callable[[], list[Spot] | Refusal],
    ) -> list[Spot] | Refusal:
        """What *search* finds for these members of a gang that wants these *spans*, or found for
        others like them that were *shown* the same: some are shown what is held for others."""
        if self._room != self._cache.room:
            self._room = self._cache.room
            self._refusals.clear()
        alike = (requests_of(members), spans, shown)
        known = self._refusals.get(alike)
        if known is not None:
            return known
        found = search()
        if isinstance(found, Refusal):
            self._refusals[alike] = found
        return found


def requests_of(members: Sequence[PodRecord]) -> frozenset[tuple[Hashable, int]]:
    """How many members want what."""
    return frozenset(Counter(map(_wishes, members)).items())


def _wishes(member: PodRecord) -> Hashable:
    return member.demand, member.ask.requirement, member.ask.spans, member.needs, member.template
