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
from collections.abc import Sequence
from dataclasses import dataclass

from linkwise.extender.next.gangs.gang import Gang, Phase
from linkwise.extender.next.gangs.growing_pauses import GrowingPauses
from linkwise.extender.next.gangs.uncreated import UncreatedMembers
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.kube.objects import whole

EVENT = "GaveWay"
PAUSE_SECONDS = 20.0  # longer than the Job controller waits; it doubles
_TURN_SECONDS = 60.0  # for which an eviction that was refused, or got no answer, is waited for
# kubernetes staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go
_EXCEEDED = re.compile(r"exceeded quota: ([^,]+), requested: (.*), used: .*, limited: (.*)")


@dataclass(frozen=True, slots=True)
class _Refused:
    """A gang that a quota keeps from having enough members, and of which none was bound."""

    gang: Gang
    pods: Sequence[PodRecord]
    missing: int  # pods
    quota: tuple[str, str]  # its name, and the resource of the pods
    requested: float  # GPUs of a missing pod
    limited: float  # GPUs; infinite: the quota is about something else

    @property
    def lacks(self) -> float:
        return self.missing * self.requested


@dataclass(frozen=True, slots=True)
class _Turn:
    first: GangKey
    leaving: frozenset[str]  # uids of the pods that give way
    until: float


class QuotaTurns(Part):
    def __init__(self, books: Books, uncreated: UncreatedMembers) -> None:
        super().__init__(books)
        self._uncreated = uncreated
        self._pauses = GrowingPauses()
        self._turns: dict[str, _Turn] = {}  # by namespace
        self._began: dict[GangKey, float] = {}  # when others had given way for the gang
        self._news: set[str] = set()

    def said(self, namespace: str) -> None:
        """Why pods of the namespace do not exist was read."""
        self._news.add(namespace)

    def began(self, key: GangKey) -> float | None:
        """When others had given way for this gang; None: it has no turn."""
        return self._began.get(key)

    def look(self, now: float) -> set[GangKey]:
        """Return the gangs whose turn began or ended."""
        changed = {key for key in self._began if not self._lacks_pods(key)}
        for key in changed:
            del self._began[key]
        for namespace, turn in [*self._turns.items()]:
            if now >= turn.until or not turn.leaving & self._cache.pods.keys():
                del self._turns[namespace]
                if self._lacks_pods(turn.first):
                    self._began[turn.first] = now
                    changed.add(turn.first)
        news, self._news = self._news, set()
        for namespace in sorted(news - self._turns.keys()):
            if self._pauses.until(namespace, now) is None:
                self._untie(namespace, now)
        return changed

    def _lacks_pods(self, key: GangKey) -> bool:
        gang = self._registry.gangs.get(key)
        return gang is not None and not self._registry.members_of(gang).complete

    def _untie(self, namespace: str, now: float) -> None:
        refused = [
            each for gang in self._uncreated.lacking(namespace) if (each := self._read(gang))
        ]
        refused.sort(key=lambda each: self._queue.urgency(each.gang.key))
        for first in refused:
            tied = [each for each in refused if each.quota == first.quota]
            # Of a quota that was raised, older words have the old limit.
            limit = max(each.limited for each in tied)
            freed: list[PodRecord] = []
            for other in reversed(tied):
                may = other is not first and _may_give_way(other.pods)
                if may and _gpus_of(freed) < first.lacks:
                    freed += other.pods
            fits = _gpus_of(first.pods) + first.lacks <= limit
            if fits and freed and _gpus_of(freed) >= first.lacks:
                self._begin(first.gang.key, freed, now)
                return

    def _begin(self, first: GangKey, freed: Sequence[PodRecord], now: float) -> None:
        self._pauses.pause(first.namespace, PAUSE_SECONDS, now)
        leaving = frozenset(pod.uid for pod in freed)
        self._turns[first.namespace] = _Turn(first, leaving, now + _TURN_SECONDS)
        why = f"so that {first.title} has all its pods, as the quota has no room for both"
        for pod in freed:
            assert pod.gang is not None
            self._queue.keep_age(pod.gang, now)
            self._pending_writes.evict(pod, why, now, event=EVENT)

    def _read(self, gang: Gang) -> _Refused | None:
        members, said = self._registry.members_of(gang), _EXCEEDED.search(gang.uncreated)
        lacks = gang.phase is Phase.FORMING and members.seats and not members.complete
        has_begun = members.bound or members.flying or members.done or members.coming
        if said is None or not lacks or has_begun or members.extra:
            return None
        largest = max(pod.needs.gpus for pod in members.seats)
        missing = members.minimum - members.done - len(members.seats)
        resource = members.seats[0].resource
        requested = _gpus_in(said[2], resource, default=largest)
        limited = _gpus_in(said[3], resource, default=math.inf)
        quota = said[1], resource
        return _Refused(gang, members.seats, missing, quota, requested, limited)


def _gpus_in(amounts: str, resource: str, *, default: float) -> float:
    """*amounts*: as in `requests.cpu=2,requests.nvidia.com/gpu=1k`."""
    said = dict(each.strip().partition("=")[::2] for each in amounts.split(","))
    try:
        return whole(said[f"requests.{resource}"])
    except (KeyError, ValueError):
        return default


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
