"""All known gangs, and the state of their members."""

from collections.abc import Hashable
from typing import NamedTuple

from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.gangs.failed_searches import Requests, requests_of
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.members import GangMembers, members_of
from linkwise.extender.gangs.partial_admission import needed


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
