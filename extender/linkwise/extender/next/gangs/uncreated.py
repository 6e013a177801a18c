"""Why members of gangs do not exist, in the words of who refuses them.

A quota, a LimitRange, Pod Security, a policy or a webhook may refuse the pods that a controller
creates. No pod says so: the controller writes an Event about the owner. So while gangs of a
namespace have too few members, its Events are read now and then, and only the last one about each
of these gangs is kept.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from linkwise.extender.next.gangs.gang import Gang, Phase
from linkwise.extender.next.gangs.registry import GangBooks, GangPart
from linkwise.extender.state.records import GangKey
from linkwise.extender.state.timers import Timers
from linkwise.kube.quoted import one_line
from linkwise.pods.podgrouper.workloads.kinds import JOB

# Most gangs have all their members sooner.
FIRST_SECONDS = 3.0
AGAIN_SECONDS = 10.0
_MOST_A_SECOND = 2


class FetchRefusals(NamedTuple):
    """Read why pods of this namespace could not be created."""

    namespace: str

    def __str__(self) -> str:
        return f"the Events of namespace {self.namespace}"


class RefusedPod(NamedTuple):
    """The last try of an owner's controller to create a pod."""

    kind: str  # of the owner
    name: str
    uid: str
    at: float  # seconds since 1970
    why: str


class UncreatedMembers(GangPart):
    def __init__(self, books: GangBooks) -> None:
        super().__init__(books)
        self._lacking: dict[str, set[GangKey]] = {}  # by namespace
        self._alarms: Timers[str] = Timers(books.agenda)

    def note(self, key: GangKey, now: float) -> None:
        """The gang changed; call this once its phase is known."""
        if self._lacks_members(key):
            gangs = self._lacking.setdefault(key.namespace, set())
            if not gangs:
                self._alarms[key.namespace] = now + FIRST_SECONDS
            gangs.add(key)
        elif key in (gangs := self._lacking.get(key.namespace, set())):
            gangs.discard(key)
            if not gangs:
                del self._lacking[key.namespace]
                self._alarms.drop(key.namespace)
            if (gang := self._registry.gangs.get(key)) is not None:
                gang.uncreated = ""

    def _lacks_members(self, key: GangKey) -> bool:
        gang = self._registry.gangs.get(key)
        if gang is None or gang.alone or gang.phase in (Phase.RUNNING, Phase.RELEASED):
            return False
        members = self._registry.members_of(gang)
        return bool(members.coming) or not members.all_there

    def lacking(self, namespace: str) -> list[Gang]:
        """The gangs that had too few members, and some, at the last look."""
        gangs = self._registry.gangs
        return [gangs[key] for key in sorted(self._lacking.get(namespace, ())) if key in gangs]

    def take_reads(self, now: float) -> tuple[FetchRefusals, ...]:
        """What to read now. The caller reports each outcome to `read`."""
        return tuple(map(FetchRefusals, self._alarms.take(now)))

    def read(
        self, asked: FetchRefusals, found: Iterable[RefusedPod] | None, now: float
    ) -> set[GangKey]:
        """Record how the read ended (None: it failed). Return the gangs of which it says news."""
        if asked.namespace not in self._lacking:
            return set()
        pause = max(AGAIN_SECONDS, len(self._lacking) / _MOST_A_SECOND)
        self._alarms[asked.namespace] = now + pause
        if found is None:
            return set()
        refused, news = sorted(found, key=lambda each: each.at), set()
        for gang in self.lacking(asked.namespace):
            last = self._last_of(gang.key, refused)
            said = "" if last is None else _in_words(last)
            if said != gang.uncreated:
                gang.uncreated = said
                news.add(gang.key)
        return news

    def _last_of(self, key: GangKey, refused: Sequence[RefusedPod]) -> RefusedPod | None:
        """The last of them that is of the gang, and after which its owner has created no pod."""
        created: dict[str, float] = {}
        pods = [pod for pod in self._cache.members(key) if not pod.coming]
        for pod in pods:
            created[pod.owner_uid] = max(created.get(pod.owner_uid, 0.0), pod.created)
        oldest = min((pod.created for pod in pods), default=math.inf)
        root = key.name.rpartition("/")[2]
        # Those of a Job belong to it itself; else an owner may have no pod yet.
        has_others = not key.name.startswith(f"{JOB.qualified}/")
        for each in reversed(refused):
            if each.uid in created:
                if each.at >= created[each.uid]:  # both are whole seconds
                    return each
            elif has_others and each.at >= oldest and f"{each.name}-".startswith(f"{root}-"):
                return each
        return None


def _in_words(refused: RefusedPod) -> str:
    return one_line(f"{refused.kind} {refused.name} cannot create its pods: {refused.why}")
