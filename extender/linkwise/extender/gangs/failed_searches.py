"""Equal gangs fail equally: a search that found no room is not repeated before there is more room.

A hundred gangs may wait for the same kind of GPUs, and each pod that ends causes a new search. One
search of 5,000 nodes serves all of them.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.placement.result import NoRoom, Spot
from linkwise.pods.spans import Spans

Requests = frozenset[tuple[Hashable, int]]
"""How many members have which request."""


class FailedSearches:
    """Valid while `Cache.room` stays the same: until then, the free GPUs only become fewer."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._room = -1
        self._refusals: dict[Hashable, NoRoom] = {}

    def forget(self) -> None:
        """Drop all refusals. There is no more room than before, but the counts may be outdated."""
        self._refusals.clear()

    def seek(
        self,
        members: Sequence[PodRecord],
        spans: Spans,
        shown: Hashable,
        search: Callable[[], list[Spot] | NoRoom],
    ) -> list[Spot] | NoRoom:
        """The result of *search* for these members of a gang with these *spans*, or a refusal of
        equal members that could use the same reserved GPUs (*shown*)."""
        if self._are_kept_out(members):
            return search()  # by their labels, which may differ where all requests are equal
        if self._room != self._cache.room:
            self._room = self._cache.room
            self._refusals.clear()
        alike = (requests_of(members), spans, shown)
        known = self._refusals.get(alike)
        if known is not None:
            return known
        found = search()
        if isinstance(found, NoRoom):
            self._refusals[alike] = found
        return found

    def _are_kept_out(self, members: Sequence[PodRecord]) -> bool:
        around = self._cache.around
        if not around.keeping_apart():
            return False
        keys, labels = around.apart_keys(), self._cache.surroundings.namespaces or {}
        kinds = {m.facts.with_labels(keys) for m in members if m.facts is not None}
        return any(around.keeps_out(kind, labels) for kind in kinds)


def requests_of(members: Sequence[PodRecord]) -> Requests:
    """What these members request. Equal pods share most objects, so few are compared."""
    identities = [
        (id(m.demand), id(m.ask.requirement), id(m.ask.spans), id(m.needs), m.template, _rules(m))
        for m in members
    ]
    one_of = dict(zip(identities, members, strict=True))
    counts: Counter[Hashable] = Counter()
    for identity, count in Counter(identities).items():
        counts[_wishes(one_of[identity])] += count
    return frozenset(counts.items())


def _wishes(member: PodRecord) -> Hashable:
    ask = member.ask
    return member.demand, ask.requirement, ask.spans, member.needs, member.template, _rules(member)


def _rules(member: PodRecord) -> Hashable:
    """What it demands of the pods around it; None: nothing."""
    return member.facts if member.facts is not None and member.facts.demands else None
