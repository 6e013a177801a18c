"""All known gangs, the state of their members, and what the parts of the core share about them."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.gang_search import GangSearch, Requests, requests_of
from linkwise.extender.next.gangs.members import GangMembers, members_of, needed
from linkwise.extender.place.nodes.best_node import BestNode
from linkwise.extender.place.nodes.node_filters import NodeFilters
from linkwise.extender.place.nodes.scheduler_feedback import GangRefusals, SchedulerFeedback
from linkwise.extender.place.room import PodMix
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.pending_writes import PendingWrites
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.timers import Agenda


class Needed(NamedTuple):
    """The members whose `open` the gang needs to start or to continue, and what those request."""

    members: GangMembers
    requests: Requests


class GangRegistry:
    def __init__(self, cache: Cache) -> None:
        self.gangs: dict[GangKey, Gang] = {}
        # Those whose plans were refused too often, and maybe others that have been since.
        self.refused: set[GangKey] = set()
        self._cache = cache
        self._looks: dict[GangKey, tuple[object, GangMembers]] = {}
        self._needed: dict[GangKey, tuple[GangMembers, Needed]] = {}

    def of(self, record: PodRecord) -> Gang | None:
        return self.gangs.get(record.gang) if record.gang is not None else None

    def forget(self, key: GangKey) -> None:
        self.gangs.pop(key, None)
        self.refused.discard(key)
        self._looks.pop(key, None)
        self._needed.pop(key, None)

    def request_of_single(self, gang: Gang) -> Hashable:
        """The request of a single pod, equal for equal pods; None: this is a gang."""
        record = self._cache.pods.get(gang.key.uid) if gang.alone else None
        if record is None:
            return None
        return record.template, record.demand, record.ask, record.owner_kind

    def members_of(self, gang: Gang) -> GangMembers:
        """The gang's members, cached until its pods change: a round looks at them many times."""
        state = (self._cache.gang_changes.get(gang.key, 0), gang.plan_id, gang.marked, gang.called)
        known = self._looks.get(gang.key)
        if known is not None and known[0] == state:
            return known[1]
        members = members_of(self._cache, gang)
        self._looks[gang.key] = (state, members)
        return members

    def needed_of(self, gang: Gang) -> Needed:
        """The members that the gang needs, cached likewise: a round asks for those of all gangs
        that wait."""
        members = self.members_of(gang)
        known = self._needed.get(gang.key)
        if known is not None and known[0] is members:
            return known[1]
        of_gang = needed(members)
        found = Needed(of_gang, requests_of(of_gang.open))
        self._needed[gang.key] = (members, found)
        return found


class GangBooks:
    """What the parts of the core share about nodes and gangs, made once in each term."""

    def __init__(
        self, cache: Cache, pending_writes: PendingWrites, agenda: Agenda, *, levels: Sequence[str]
    ) -> None:
        """*levels*: as of `GangSearch`."""
        self.cache, self.pending_writes, self.agenda = cache, pending_writes, agenda
        self.defects: list[Exception] = []  # that the work went on after
        self.node_filters = NodeFilters(cache)
        self.feedback = SchedulerFeedback(cache, agenda)
        self.gang_refusals = GangRefusals(cache, agenda)
        self.mix = PodMix()
        self.best_node = BestNode(cache, self.mix, self.defects)
        self.registry = GangRegistry(cache)
        self.search = GangSearch(
            cache,
            node_filters=self.node_filters,
            feedback=self.feedback,
            gang_refusals=self.gang_refusals,
            best_node=self.best_node,
            levels=levels,
        )


class GangPart:
    """A part of the core. What it keeps beside the books is its own."""

    def __init__(self, books: GangBooks) -> None:
        self._cache, self._pending_writes = books.cache, books.pending_writes
        self._registry, self._search = books.registry, books.search
        self._node_filters, self._best_node = books.node_filters, books.best_node
        self._feedback, self._gang_refusals = books.feedback, books.gang_refusals
