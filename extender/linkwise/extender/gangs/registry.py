"""All gangs that are known, and how far the members of each are."""

from collections.abc import Hashable

from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.cache.cache import Books
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.members import Muster, muster


class Roll:
    def __init__(self, books: Books) -> None:
        self.gangs: dict[GangKey, Gang] = {}
        self._books = books
        self._looks: dict[GangKey, tuple[object, Muster]] = {}

    def of(self, record: PodRecord) -> Gang | None:
        return self.gangs.get(record.gang) if record.gang is not None else None

    def forget(self, key: GangKey) -> None:
        self.gangs.pop(key, None)
        self._looks.pop(key, None)

    def wishes_alone(self, gang: Gang) -> Hashable:
        """What a single pod wants, the same for all that are alike; None: this is a gang."""
        record = self._books.pods.get(gang.key.uid) if gang.alone else None
        if record is None:
            return None
        return record.template, record.demand, record.ask, record.owner_kind

    def muster(self, gang: Gang) -> Muster:
        """The same as long as nothing happens to the gang's pods: it is looked at many times."""
        state = (self._books.gang_changes.get(gang.key, 0), gang.plan_id, gang.marked)
        known = self._looks.get(gang.key)
        if known is not None and known[0] == state:
            return known[1]
        found = muster(self._books, gang)
        self._looks[gang.key] = (state, found)
        return found
