"""Lets gangs whose pods fill a ResourceQuota together become whole one after the other.

Each of several gangs may have some of its pods when the quota is full. None of them ever has all,
so none starts, and its pods hold the quota. Then those that are last in the scheduling queue give
way: their pods, of which none was bound, are evicted, until the quota has room for what the first
gang lacks.

Only pods of Jobs give way. The Job controller creates such a pod again after 10 seconds or more;
other controllers do it at once, and would take the room again. It counts an eviction as a failure,
unless the Job's podFailurePolicy ignores it, so no Job gives way that would have failed for good.
The first gang is noted on its pod, by which its controller sees a change and tries again at once.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.pending_writes import PendingWrites
from linkwise.extender.gangs.gang import Gang, Phase
from linkwise.extender.gangs.growing_pauses import GrowingPauses
from linkwise.extender.gangs.registry import GangRegistry
from linkwise.extender.gangs.uncreated import UncreatedMembers
from linkwise.extender.queue.scheduling_queue import SchedulingQueue

EVENT = "GaveWay"
PAUSE_SECONDS = 20.0  # longer than the Job controller waits; it doubles
_EXCEEDED = "exceeded quota: "  # kubernetes pkg/plugin resourcequota/controller.go
_LIMITED = re.compile(r"limited: .*?\brequests\.([^=,\s]+)=(\d+)")


@dataclass(frozen=True, slots=True)
class _Turn:
    first: GangKey
    leaving: frozenset[str]  # uids of the pods that give way


class QuotaTurns:
    def __init__(
        self,
        cache: Cache,
        pending_writes: PendingWrites,
        registry: GangRegistry,
        queue: SchedulingQueue,
        uncreated: UncreatedMembers,
        resource: str,
    ) -> None:
        self._cache, self._pending_writes, self._registry = cache, pending_writes, registry
        self._queue, self._uncreated, self._resource = queue, uncreated, resource
        self._pauses = GrowingPauses()
        self._turns: dict[str, _Turn] = {}  # by namespace
        self._news: set[str] = set()

    def said(self, namespace: str) -> None:
        """Why pods of the namespace do not exist was read."""
        self._news.add(namespace)

    def look(self, now: float) -> None:
        for namespace, turn in [*self._turns.items()]:
            if not turn.leaving & self._cache.pods.keys():
                del self._turns[namespace]
                if turn.first in self._registry.gangs:
                    self._queue.keep_age(turn.first, now)
        news, self._news = self._news, set()
        for namespace in sorted(news - self._turns.keys()):
            if self._pauses.until(namespace, now) is None:
                self._untie(namespace, now)

    def _untie(self, namespace: str, now: float) -> None:
        tied = sorted(self._tied(namespace), key=lambda gang: self._queue.urgency(gang.key))
        limit = self._limit(tied)
        first = next((gang for gang in tied if self._needs(gang) <= limit), None)
        if first is None:
            return
        lacks = self._needs(first) - _gpus_of(self._registry.members_of(first).seats)
        freed: list[PodRecord] = []
        for gang in reversed(tied):
            pods = self._registry.members_of(gang).seats
            if gang is not first and _gpus_of(freed) < lacks and _may_give_way(pods):
                freed += pods
        if not freed or _gpus_of(freed) < lacks:
            return
        self._pauses.pause(namespace, PAUSE_SECONDS, now)
        self._turns[namespace] = _Turn(first.key, frozenset(pod.uid for pod in freed))
        why = f"so that {first.key.title} has all its pods, as the quota lets neither have all"
        for pod in freed:
            assert pod.gang is not None
            self._queue.keep_age(pod.gang, now)
            self._pending_writes.evict(pod, why, now, event=EVENT)

    def _tied(self, namespace: str) -> Iterator[Gang]:
        """The gangs that a quota keeps from having enough members, and of which none was bound."""
        for gang in self._uncreated.lacking(namespace):
            members = self._registry.members_of(gang)
            lacks = gang.phase is Phase.FORMING and members.seats and not members.complete
            has_begun = members.bound or members.flying or members.done or members.coming
            if lacks and not (has_begun or members.extra) and _EXCEEDED in gang.uncreated:
                yield gang

    def _limit(self, tied: Sequence[Gang]) -> float:
        """The GPUs that the quota allows; infinite: it is about something else. Of a quota that was
        raised, older words have the old limit."""
        said = (_LIMITED.findall(gang.uncreated) for gang in tied)
        gpus = (int(most) for each in said for name, most in each if name == self._resource)
        return max(gpus, default=math.inf)

    def _needs(self, gang: Gang) -> int:
        """How many GPUs all its pods have."""
        members = self._registry.members_of(gang)
        return _gpus_of(members.seats[:1]) * members.minimum


def _gpus_of(pods: Sequence[PodRecord]) -> int:
    return sum(pod.needs.gpus for pod in pods)


def _may_give_way(pods: Sequence[PodRecord]) -> bool:
    of_owner = Counter(pod.owner_uid for pod in pods)
    return all(
        pod.owner_kind == "Job"
        and not pod.leaving
        and (pod.ask.evictions_left is None or pod.ask.evictions_left >= of_owner[pod.owner_uid])
        for pod in pods
    )
