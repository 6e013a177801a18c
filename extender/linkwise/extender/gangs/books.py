"""What the parts of the core share about nodes and gangs, made once in each term."""

from collections.abc import Sequence

from linkwise.extender.api.timers import Agenda
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.pending_writes import PendingWrites
from linkwise.extender.gangs.gang_search import GangSearch
from linkwise.extender.gangs.registry import GangRegistry
from linkwise.extender.placement.nodes.best_node import BestNode
from linkwise.extender.placement.nodes.gang_refusals import GangRefusals
from linkwise.extender.placement.nodes.node_filters import NodeFilters
from linkwise.extender.placement.nodes.scheduler_feedback import SchedulerFeedback
from linkwise.extender.placement.room.pod_mix import PodMix


class GangBooks:
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
