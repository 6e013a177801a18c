"""The gangs that wait for GPUs, and which of them is the most urgent.

A gang that found no room stands aside until there is more room, or until the gang changes. An
evicted gang keeps its age: its new pods are younger than the pods that it made room for. So does a
gang that waits, and whose owner deletes its pods and creates them again.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.members import GangMembers, minimum_of
from linkwise.extender.next.gangs.registry import GangRegistry
from linkwise.extender.next.queue.run_times import PodKind, RunTimes, expected_run_time
from linkwise.extender.place.request import NoRoom
from linkwise.extender.state.actions import Beneficiary
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.records import GangKey, PodRecord

Urgency = tuple[int, float, GangKey]
"""Less is more urgent: minus the priority, the seniority, and the name as the tie-break."""

# docs/decisions/gangs-and-queue.md#26-the-multifactor-order says how these were chosen.
RUN_TIME_WEIGHT = 10.0
MOST_RUN_SECONDS = 4 * 3600.0  # longer pods and servers count as this
SIZE_SECONDS = 48 * 3600.0  # for each doubling of the GPUs; more than all that run times can do


class QueueOrder(StrEnum):
    """What orders gangs and pods of equal priority, as the operator configures it."""

    AGE = "age"
    MULTIFACTOR = "multifactor"  # age, expected run time and number of GPUs

    @property
    def ahead_from(self) -> int:
        """A single pod of so many GPUs or more that finds no room joins the extender's queue. By
        age, kube-scheduler's own queue does for one GPU: several seldom come free together."""
        return 2 if self is QueueOrder.AGE else 1


@dataclass(frozen=True, slots=True)
class Ordering:
    """The order by the run times that are known at one moment.

    Priority comes first. Among equals, it compares seniorities: the times at which they count as
    created. By age, that is when they were created. By `multifactor`, a gang or pod counts as
    younger the longer it is expected to run, and as older the more GPUs it requests.

    Both shifts are bounded, so the order starves nothing: no gang or pod of G GPUs passes another
    of the same priority that was created `most_passed(G)` seconds earlier.
    """

    order: QueueOrder = QueueOrder.AGE
    means: Mapping[PodKind, float] = field(default_factory=dict)  # of run times, in seconds
    broken: frozenset[str] = frozenset()  # namespaces whose declared run times do not count

    def urgency(
        self, priority: int, created: float, key: GangKey, pods: Iterable[PodRecord]
    ) -> Urgency:
        """*pods* request GPUs together; *created* is in seconds since 1970, as is the seniority."""
        return -priority, created + self.shift(pods), key

    def of_single(self, record: PodRecord) -> Urgency:
        """Of a pod without a gang, which is in kube-scheduler's queue and not in the extender's."""
        name = record.ref
        key = GangKey(name.namespace, name.name, name.uid)
        return self.urgency(record.priority, record.created, key, (record,))

    def shift(self, pods: Iterable[PodRecord]) -> float:
        """How many seconds later than they were created *pods* count as created; below 0: earlier.
        Less than two GPUs, also parts of them, count as one."""
        if self.order is QueueOrder.AGE:
            return 0.0
        gpus, expected = self.size_and_run_time(pods)
        return RUN_TIME_WEIGHT * min(expected, MOST_RUN_SECONDS) - _head_start(gpus)

    def size_and_run_time(self, pods: Iterable[PodRecord]) -> tuple[int, float]:
        """The GPUs of all *pods*, and the longest of their `expected_run_time`s in seconds."""
        gpus, longest = 0, 0.0
        for pod in pods:
            gpus += pod.needs.gpus
            longest = max(longest, expected_run_time(pod, self.means, self.broken))
        return gpus, longest


def most_passed(gpus: int) -> float:
    """For how many seconds a gang or pod has to exist so that no new one of *gpus* GPUs and the
    same priority passes it."""
    return RUN_TIME_WEIGHT * MOST_RUN_SECONDS + _head_start(gpus)


def _head_start(gpus: int) -> float:
    return SIZE_SECONDS * math.log2(max(gpus, 1))


@dataclass(slots=True)
class QueuedGang:
    """What the scheduling queue knows about a gang that waits, as kube-scheduler's QueuedPodInfo.

    The last search that found no room for the gang, and the state of the cache then.
    """

    no_room: NoRoom | None = None
    tried_room: int = -1  # `Cache.room` when it last found no room
    lacking: Mapping[int, int] = field(default_factory=dict)  # then: GPUs of a pod -> how many pods
    sought_at: float = 0.0  # when `no_room` was found out
    sought_in: object = None  # the state of the cache then

    def try_again(self) -> None:
        """Allow another search: there may be room now."""
        self.tried_room, self.lacking = -1, {}


# A controller may take some minutes to recreate evicted pods; much later it is another job.
_AGE_KEPT_SECONDS = 3600.0
_MOST_AGES = 4096


class _Age(NamedTuple):
    created: float
    heard_at: float
    maker: str  # what has to recreate the pods; empty: whatever does


class Ages:
    """The ages of gangs whose pods were evicted, or deleted before they were bound: their new pods
    do not show them.

    Each replica reads the former from annotations of the pods, and sees the latter go, so a new
    leader knows them.
    """

    def __init__(self) -> None:
        self._ages: dict[GangKey, _Age] = {}

    def __contains__(self, key: GangKey) -> bool:
        return key in self._ages

    def keep(self, key: GangKey, created: float, now: float, maker: str = "") -> None:
        before = self._ages.pop(key, None)
        while self._ages:
            oldest = next(iter(self._ages))
            if now < self._ages[oldest].heard_at + _AGE_KEPT_SECONDS:
                break
            del self._ages[oldest]
        if len(self._ages) >= _MOST_AGES:  # the namespace that has most pays
            ((most, _),) = Counter(each.namespace for each in self._ages).most_common(1)
            del self._ages[next(each for each in self._ages if each.namespace == most)]
        if before is not None and created >= before.created:
            created, maker = before.created, before.maker or maker
        self._ages[key] = _Age(created, now, maker)

    def comes(self, key: GangKey, maker: str) -> None:
        """A pod of *maker* comes. Another object of the same name does not inherit the age."""
        if key in self._ages and self._ages[key].maker not in ("", maker):
            self.drop(key)

    def drop(self, key: GangKey) -> None:
        """The gang has started: a later run of its name is as old as its own pods."""
        self._ages.pop(key, None)

    def of(self, key: GangKey, created: float) -> float | None:
        """The creation time of a gang whose present pods are from *created*; None: the gang is as
        old as its pods, as far as is known."""
        kept = self._ages.get(key)
        if kept is None or created >= kept.heard_at + _AGE_KEPT_SECONDS:
            return None
        return min(kept.created, created)


# The reason why a gang waits may be this old; each second, one gang with an older one is retried.
_STALE_SECONDS, _FRESHEN_SECONDS = 30.0, 1.0
# Between two looks at how long pods run: a gang keeps its place for a while.
_REORDER_SECONDS = 600.0


class SchedulingQueue:
    def __init__(
        self,
        cache: Cache,
        *,
        registry: GangRegistry,
        ages: Ages,
        order: QueueOrder,
        run_times: RunTimes,
    ) -> None:
        self._cache, self._registry, self._ages = cache, registry, ages
        self._run_times = run_times
        self.ordering = Ordering(order)
        self._ordered_at = -math.inf
        self._waiting: set[GangKey] = set()
        self._queued: dict[GangKey, QueuedGang] = {}
        self._most_room, self._most = -1, dict[int, int]()
        self._urgencies: dict[GangKey, tuple[int, Urgency]] = {}
        self._evicted: set[GangKey] = set()  # since `take_evicted`
        self._freshened = 0.0
        self.changes = 0  # of the set of waiting gangs
        self.news = 0  # rises whenever a gang may have another place, or another try
        self._all_tried: object = None  # the state in which no gang was untried
        self._in_order: tuple[Sequence[Gang], Sequence[Gang]] = (), ()
        self._ordered_at_news = -1

    def join(self, key: GangKey) -> None:
        if key not in self._waiting:
            self._waiting.add(key)
            self.changes += 1
            self.news += 1

    def leave(self, key: GangKey) -> None:
        if key in self._waiting:
            self._waiting.discard(key)
            self.changes += 1
            self.news += 1

    def waits(self, key: GangKey) -> bool:
        return key in self._waiting

    def no_room(self, key: GangKey) -> NoRoom | None:
        """What the last search found; None: there was none, or it found room for all members."""
        queued = self._queued.get(key)
        return None if queued is None else queued.no_room

    def try_again(self, key: GangKey) -> None:
        """Allow another search: there may be room now."""
        if key in self._queued:
            self._queued[key].try_again()
            self.news += 1

    def take_up(self, key: GangKey | None) -> None:
        """Allow another try, even if kube-scheduler has refused the gang's plans too often."""
        gang = self._registry.gangs.get(key) if key is not None else None
        if gang is not None:
            gang.forgive()
            self.try_again(gang.key)

    def note_try(self, key: GangKey) -> None:
        """The gang had its one try at this state of the room, whatever the result."""
        self._of(key).tried_room = self._cache.room

    def _of(self, key: GangKey) -> QueuedGang:
        return self._queued.setdefault(key, QueuedGang())

    def in_order(self) -> Sequence[Gang]:
        """All waiting gangs, the most urgent first."""
        return self._ordered()[0]

    def without_room(self) -> Sequence[Gang]:
        """All waiting gangs that found no room, the most urgent first."""
        return self._ordered()[1]

    def _ordered(self) -> tuple[Sequence[Gang], Sequence[Gang]]:
        if self.news != self._ordered_at_news:
            gangs = self._registry.gangs
            waiting = [gangs[key] for key in sorted(self._waiting, key=self.urgency)]
            without = [gang for gang in waiting if self.no_room(gang.key) is not None]
            self._in_order, self._ordered_at_news = (waiting, without), self.news
        return self._in_order

    def has_no_room(self, gang: Gang) -> bool:
        return gang.key in self._waiting and self.no_room(gang.key) is not None

    def any_untried(self) -> bool:
        """Whether any waiting gang may find room."""
        state = self._cache.room, self.news
        if state == self._all_tried:
            return False
        gangs = self._registry.gangs
        if any(self.is_untried(gangs[key]) for key in self._waiting):
            return True
        self._all_tried = state
        return False

    def is_untried(self, gang: Gang) -> bool:
        queued = self._queued.get(gang.key)
        if queued is None:
            return True
        if queued.tried_room == self._cache.room:
            return False
        if any(count > self._most_of_size(size) for size, count in queued.lacking.items()):
            queued.tried_room = self._cache.room  # certain without a look at each member
            return False
        return True

    def stand_aside(
        self, gang: Gang, members: GangMembers, why: NoRoom, now: float, room: int
    ) -> None:
        """Record that *gang* found no room. *room*: `Cache.room` when its search began."""
        lacking = Counter(member.needs.gpus for member in members.open)
        self._queued[gang.key] = QueuedGang(why, room, lacking, now, self._state())
        self.news += 1

    def stays_aside(self, gang: Gang, first: Gang | None, now: float) -> bool:
        """Whether *gang*, which had no room before, has none now. *first* is more urgent, requests
        the same and was just tried without success; None: there is no such gang."""
        if not self.has_no_room(gang):
            return False
        if not self.is_untried(gang):
            return True
        if first is None:
            return False
        known = replace(self._of(first.key), sought_at=now, sought_in=self._state())
        self._queued[gang.key] = known
        self.news += 1
        return True

    def freshen(self, now: float) -> bool:
        """Schedule a new search for the gang with the oldest stale reason.

        While it is certain that a gang has no room, no search counts how much room there is. Users
        read that number, so each second one gang is tried nevertheless. Returns whether there is
        such a gang; then results of gangs like it do not replace its search.
        """
        if now < self._freshened + _FRESHEN_SECONDS:
            return False
        self._freshened = now
        state = self._state()
        stale = [
            queued
            for key in self._waiting
            if (queued := self._queued.get(key)) is not None
            and queued.no_room is not None
            and queued.sought_in != state
            and now >= queued.sought_at + _STALE_SECONDS
        ]
        if stale:
            oldest = min(stale, key=lambda queued: queued.sought_at)
            oldest.try_again()
            oldest.sought_at = now
            self.news += 1
        return bool(stale)

    def _state(self) -> tuple[int, int, int]:
        """Another one after each change of what is free."""
        cache = self._cache
        return cache.room, cache.settled_rows.generation, cache.changed_rows.generation

    def got_room(self, gang: Gang) -> None:
        gang.reason = ""
        self._queued.pop(gang.key, None)
        self.news += 1
        self.leave(gang.key)

    def reorder(self, now: float) -> bool:
        """Order by the run times that are known by now; each waiting gang may find room in its new
        place. Return False if it is too soon, or no run time matters."""
        is_by_age = self.ordering.order is QueueOrder.AGE
        if is_by_age or now < self._ordered_at + _REORDER_SECONDS:
            return False
        self._ordered_at = now
        means, broken = self._run_times.means(MOST_RUN_SECONDS), self._run_times.broken()
        self.ordering = replace(self.ordering, means=means, broken=broken)
        self._urgencies.clear()
        self.news += 1
        for key in self._waiting:
            self.try_again(key)
        return True

    def urgency(self, key: GangKey) -> Urgency:
        change = self._cache.gang_changes.get(key, -1)
        known = self._urgencies.get(key)
        if known is not None and known[0] == change:
            return known[1]
        live = self._live(key)
        # A quota of one important pod is not worth a gang, so all members have to be as important.
        priority = min((member.priority for member in live), default=0)
        urgency = self.ordering.urgency(priority, self._created(key, live), key, live)
        if key in self._cache.gangs:  # else no counter shows when it changes
            self._urgencies[key] = (change, urgency)
        return urgency

    def created(self, key: GangKey) -> float:
        """When enough members of the gang existed for what it waits for, or of its earlier pods
        that count; 0 if it has no pod."""
        return self._created(key, self._live(key))

    def _created(self, key: GangKey, live: Sequence[PodRecord]) -> float:
        created = _asks_since(live)
        age = self._ages.of(key, created)
        return created if age is None else age

    def beneficiary(self, key: GangKey) -> Beneficiary | None:
        """The gang, as one for which others go; None: it does not wait any more."""
        members = self._cache.members(key)
        waiting = (m for m in members if m.live and not m.node and not m.coming)
        first = next(waiting, None)
        if first is None:
            return None
        return Beneficiary(key.title, -self.urgency(key)[0], first.ref)

    def keep_age(self, key: GangKey, now: float) -> None:
        """The pods of *key* are being evicted: their replacements queue with the gang's old age."""
        created = _complete_since(self._live(key))
        age = self._ages.of(key, created)
        self._ages.keep(key, created if age is None else age, now)
        self._urgencies.pop(key, None)
        self._evicted.add(key)
        self.news += 1

    def take_evicted(self) -> set[GangKey]:
        """The gangs whose age was recorded since the last call."""
        evicted, self._evicted = self._evicted, set()
        return evicted

    def evicted_age(self, key: GangKey) -> float | None:
        """The creation time of a gang that is older than its pods; None: as old as these."""
        if key not in self._ages:
            return None
        return self._ages.of(key, _asks_since(self._live(key)))

    def complete_since(self, key: GangKey) -> float | None:
        """When enough members of the gang existed by its present pods; None: they are too few."""
        live = self._live(key)
        needed = max(map(minimum_of, live), default=1)
        return _complete_since(live) if len(live) >= needed else None

    def _live(self, key: GangKey) -> list[PodRecord]:
        pods = self._cache.pods
        members = (pods[uid] for uid in self._cache.gangs.get(key, ()))
        return [member for member in members if member.live and not member.coming]

    def forget(self, key: GangKey) -> None:
        self._urgencies.pop(key, None)
        self._queued.pop(key, None)
        self.news += 1

    def _most_of_size(self, size: int) -> int:
        """`NodeTable.most_of_size`, counted once for all waiting gangs: while `Cache.room` stays,
        the free GPUs only become fewer."""
        if self._most_room != self._cache.room:
            self._most_room, self._most = self._cache.room, {}
        if size not in self._most:
            self._most[size] = self._cache.rows.most_of_size(size)
        return self._most[size]


def _asks_since(live: Sequence[PodRecord]) -> float:
    """When a gang of these pods began to wait for what it waits for now."""
    asking = [pod for pod in live if pod.needs.gpus and not pod.held_back]
    bound = [pod for pod in asking if pod.node]
    waiting = [pod for pod in asking if not pod.node]
    if bound and waiting:
        if len(bound) >= max(map(minimum_of, live)):  # the others come on top, and are new
            return max(_complete_since(live), min(pod.created for pod in waiting))
        if _gpus(bound) >= _gpus(waiting):  # a repair: what it has idles while it waits
            return max(pod.created for pod in bound)
    return _complete_since(live)


def _complete_since(live: Sequence[PodRecord]) -> float:
    """When enough of these pods existed. Those that take no GPU, or wait behind another gate, keep
    no place in the queue: one of them could make each later gang of its name the oldest."""
    asking = sorted(pod.created for pod in live if pod.needs.gpus and not pod.held_back)
    if not asking:
        return max((pod.created for pod in live), default=0.0)
    return asking[min(max(map(minimum_of, live)), len(asking)) - 1]


def _gpus(pods: Iterable[PodRecord]) -> int:
    return sum(pod.needs.gpus for pod in pods)
