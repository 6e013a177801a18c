"""Who waits for GPUs, and whose turn it is: by priority, then age.

A gang that found no room stands aside until there is more, or until it changes itself. One that was
evicted keeps the age that it had: its new pods are younger than those it made room for.
"""

import math
from collections import Counter

from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.gangs.registry import GangRegistry
from linkwise.extender.placement.result import Refusal

Urgency = tuple[int, float, GangKey]
"""Less is more urgent: minus the priority, when it was made, and its name to tell equals apart."""

# A controller may take some minutes to make evicted pods anew; much later it is another job.
_AGE_KEPT_SECONDS = 3600.0
_MOST_AGES = 4096


class Ages:
    """Of gangs that were evicted: how old they are, which their new pods do not say. Each replica
    hears of them by what is noted on their pods, so it knows them when it comes to lead."""

    def __init__(self) -> None:
        self._ages: dict[GangKey, tuple[float, float]] = {}  # created, heard of when

    def __contains__(self, key: GangKey) -> bool:
        return key in self._ages

    def keep(self, key: GangKey, created: float, now: float) -> None:
        before = self._ages.pop(key, None)
        if len(self._ages) >= _MOST_AGES:
            del self._ages[next(iter(self._ages))]
        self._ages[key] = (created if before is None else min(before[0], created), now)

    def of(self, key: GangKey, created: float) -> float | None:
        """When it was created, of one whose pods were *created* then; None: it is as old as they
        are, as far as is known."""
        kept, heard_at = self._ages.get(key, (created, -math.inf))
        return min(kept, created) if created < heard_at + _AGE_KEPT_SECONDS else None


# A gang may be told why it waits as it was so long ago; one of them is looked at anew every second.
_STALE_SECONDS, _FRESHEN_SECONDS = 30.0, 1.0


class SchedulingQueue:
    def __init__(self, cache: Cache, registry: GangRegistry, ages: Ages) -> None:
        self._cache, self._registry, self._ages = cache, registry, ages
        self._waiting: set[GangKey] = set()
        self._most_room, self._most = -1, dict[int, int]()
        self._urgencies: dict[GangKey, tuple[int, Urgency]] = {}
        self._evicted: set[GangKey] = set()  # since `take_evicted`
        self._freshened = 0.0
        self.changes = 0  # of who waits

    def join(self, key: GangKey) -> None:
        if key not in self._waiting:
            self._waiting.add(key)
            self.changes += 1

    def leave(self, key: GangKey) -> None:
        if key in self._waiting:
            self._waiting.discard(key)
            self.changes += 1

    def take_up(self, key: GangKey | None) -> None:
        """A gang that was left to wait may be tried again."""
        gang = self._registry.gangs.get(key) if key is not None else None
        if gang is not None:
            gang.take_up()

    def in_order(self) -> list[Gang]:
        """All who wait, the most urgent first."""
        return self._by_urgency([*self._waiting])

    def has_no_room(self, gang: Gang) -> bool:
        return gang.no_room is not None and gang.key in self._waiting

    def any_untried(self) -> bool:
        """Whether somebody who waits may find room."""
        gangs = self._registry.gangs
        return any(self.is_untried(gangs[key]) for key in self._waiting)

    def is_untried(self, gang: Gang) -> bool:
        if gang.tried_room == self._cache.room:
            return False
        if any(count > self._most_of_size(size) for size, count in gang.lacking.items()):
            gang.tried_room = self._cache.room  # sure, without a look at every member
            return False
        return True

    def stand_aside(self, gang: Gang, members: GangMembers, why: Refusal, now: float) -> None:
        """There was no room for it."""
        gang.no_room, gang.tried_room = why, self._cache.room
        gang.lacking = Counter(member.needs.gpus for member in members.open)
        gang.sought_at, gang.sought_in = now, self._state()

    def stays_aside(self, gang: Gang, first: Gang | None, now: float) -> bool:
        """Whether this one, which had no room before, has none now. *first* is more urgent, wants
        the same and has just been tried; None: none has."""
        if not self.has_no_room(gang):
            return False
        if not self.is_untried(gang):
            return True
        if first is None:
            return False
        gang.no_room, gang.tried_room, gang.lacking = first.no_room, first.tried_room, first.lacking
        gang.sought_at, gang.sought_in = now, self._state()
        return True

    def freshen(self, now: float) -> bool:
        """Where it is sure that there is no room for a gang nobody looks how much there is; people
        are told that, so the one whose answer is oldest is tried all the same. Whether there is
        such a one; what others like it were told is then no answer."""
        if now < self._freshened + _FRESHEN_SECONDS:
            return False
        self._freshened = now
        gangs = self._registry.gangs
        stale = [
            gang
            for gang in map(gangs.__getitem__, self._waiting)
            if gang.no_room is not None
            and gang.sought_in != self._state()
            and now >= gang.sought_at + _STALE_SECONDS
        ]
        if stale:
            gang = min(stale, key=lambda gang: gang.sought_at)
            gang.tried_room, gang.lacking, gang.sought_at = -1, {}, now
        return bool(stale)

    def _state(self) -> tuple[int, int, int]:
        """Another one after each change of what is free."""
        cache = self._cache
        return cache.room, cache.settled_rows.generation, cache.changed_rows.generation

    def got_room(self, gang: Gang) -> None:
        gang.no_room, gang.tried_room, gang.lacking, gang.reason = None, -1, {}, ""
        self.leave(gang.key)

    def without_room(self) -> list[Gang]:
        """All that found no room, the most urgent first."""
        gangs = self._registry.gangs
        return self._by_urgency([k for k in self._waiting if gangs[k].no_room is not None])

    def urgency(self, key: GangKey) -> Urgency:
        change = self._cache.gang_changes.get(key, -1)
        known = self._urgencies.get(key)
        if known is not None and known[0] == change:
            return known[1]
        live = self._live(key)
        priority = max((member.priority for member in live), default=0)
        created = min((member.created for member in live), default=0.0)
        age = self._ages.of(key, created)
        created = created if age is None else age
        if key not in self._cache.gangs:
            return -priority, created, key  # nothing would tell us when it changes
        self._urgencies[key] = (change, (-priority, created, key))
        return -priority, created, key

    def keep_age(self, key: GangKey, now: float) -> None:
        """Its pods are being evicted: those made in their place queue as if they were as old."""
        self._ages.keep(key, self.urgency(key)[1], now)
        self._urgencies.pop(key, None)
        self._evicted.add(key)

    def take_evicted(self) -> set[GangKey]:
        """The gangs whose age was kept since this was last asked."""
        evicted, self._evicted = self._evicted, set()
        return evicted

    def evicted_age(self, key: GangKey) -> float | None:
        """Of a gang that was evicted, or is being; None: it is as old as its pods."""
        if key not in self._ages:
            return None
        return self._ages.of(key, min((member.created for member in self._live(key)), default=0.0))

    def _live(self, key: GangKey) -> list[PodRecord]:
        pods = self._cache.pods
        members = (pods[uid] for uid in self._cache.gangs.get(key, ()))
        return [member for member in members if member.live]

    def forget(self, key: GangKey) -> None:
        self._urgencies.pop(key, None)

    def _most_of_size(self, size: int) -> int:
        """As `Rows.most_of_size`, counted once for all who wait: what is free only gets less
        while `Cache.room` stays."""
        if self._most_room != self._cache.room:
            self._most_room, self._most = self._cache.room, {}
        if size not in self._most:
            self._most[size] = self._cache.rows.most_of_size(size)
        return self._most[size]

    def _by_urgency(self, keys: list[GangKey]) -> list[Gang]:
        return [self._registry.gangs[key] for key in sorted(keys, key=self.urgency)]


def urgency_of_single(record: PodRecord) -> Urgency:
    """Of a pod that is in no gang, and not in the line: kube-scheduler has it."""
    name = record.ref
    return -record.priority, record.created, GangKey(name.namespace, name.name, name.uid)
