"""Where pods could go; one search for all pods that are alike."""

from collections.abc import Sequence

from linkwise.extender.api.annotations import link_word
from linkwise.extender.api.records import PodRecord
from linkwise.extender.api.views import RequestView, SearchView
from linkwise.extender.explain.levels import Levels
from linkwise.extender.explain.node_arrays import Field
from linkwise.extender.explain.snapshot import Snapshot
from linkwise.extender.queue.reservations import Claimant


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
        found = Levels(self.field, record, mine)
        levels = found.all()
        room = found.room()
        total = min(int(room.sum()), pods)
        nearest = None if total >= pods else found.nearest(room)
        return SearchView(pods, wanted_of(record), tuple(levels), total, nearest)


def alike(record: PodRecord) -> object:
    """Equal for pods that may go to the same nodes."""
    return record.demand, record.ask.requirement, record.needs, record.template


def wanted_of(record: PodRecord) -> RequestView:
    requirement = record.ask.requirement
    return RequestView(
        gpus=record.demand.gpus,
        containers={c.name: c.gpus for c in record.demand.containers},
        require_link=link_word(requirement.require),
        prefer_link=link_word(requirement.prefer),
        models=tuple(" ".join(words) for words in requirement.models),
        memory_mib=requirement.memory_mib,
        milli_cpu=record.needs.milli_cpu,
        memory=record.needs.memory,
    )
