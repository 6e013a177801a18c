"""The idle pods that may be evicted for others: those that consent, or whose namespace does.

The plugins say on their Nodes which pods are idle, and since when. A pod goes in two steps:

1. It has been idle for as long as its annotation or its namespace says: an Event announces
   what will happen.
2. The notice has passed, and it is still idle. Now it may be evicted, but only if a waiting gang or
   pod then starts (`preemption.gang_preemption`), and if the plugin has said so since the Event.

A gang goes as a whole: all its members consent and are idle. What is unknown counts as work. A
leader that takes over announces again, and waits for the notice again.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from linkwise.drawing.words import minute
from linkwise.extender.next.preemption.eviction_candidates import EvictionCandidates
from linkwise.extender.next.preemption.victim_selection import Unit
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.timers import RunUnlocked, run_inline
from linkwise.topology import names
from linkwise.topology.annotations.activity import STALE_SECONDS, Activity, read_activity
from linkwise.topology.errors import AnnotationError

LOOK_SECONDS = 10.0
"""How often the extender looks which pods are idle. A plugin looks as often by default."""
ON_THE_WAY_SECONDS = 30.0
"""So long after a pod began to work, the extender may not know: probe, write and watch."""
ANNOUNCED = "WillBeReclaimed"
_AT_ONCE = 512  # pods; each takes some microseconds, while kube-scheduler's calls wait
_ANY_PRIORITY = 2**63


@dataclass(frozen=True, slots=True)
class _Announced:
    at: float
    words: Mapping[str, float]  # uid -> of when the plugin's word was that it was announced by


class IdlePods(Part):
    """*activity*: node -> the annotation, which changes meanwhile. *namespaces*: namespace -> for
    how many seconds its pods have to be idle."""

    def __init__(
        self,
        books: Books,
        *,
        candidates: EvictionCandidates,
        activity: Mapping[str, str],
        namespaces: Mapping[str, float],
        notice_seconds: float,
    ) -> None:
        super().__init__(books)
        books.agenda.ask(self._times)
        self._candidates, self._activity, self._namespaces = candidates, activity, namespaces
        self._notice_seconds = notice_seconds
        # uid -> seconds, of the pods that consent
        self._limits: dict[str, float] = books.cache.memory.dict()
        self._read: dict[str, tuple[str, Activity]] = {}  # node -> the annotation, and as read
        self._announced: dict[frozenset[str], _Announced] = {}  # by the uids that go together
        self._ripe: frozenset[frozenset[str]] = frozenset()  # those that may go, at the last look
        self._look_at = -math.inf
        self.times: Mapping[str, float] = {}
        """uid -> from when on it may be evicted, of the pods that are idle and consent."""
        self.changes = 0  # of the pods that may go

    @property
    def any_consent(self) -> bool:
        return bool(self._limits)

    def _times(self) -> Iterable[float]:
        return [self._look_at] if self._limits else ()

    def pod_changed(self, record: PodRecord) -> None:
        limit = record.ask.reclaim_seconds
        if limit is None:
            limit = self._namespaces.get(record.ref.namespace, math.inf)
        runs = bool(record.node) and record.live and record.demand.gpus > 0
        if runs and limit < math.inf and not (record.left_alone or record.invalid):
            self._limits[record.uid] = limit
        else:
            self._limits.pop(record.uid, None)

    def look(self, now: float, aside: RunUnlocked = run_inline) -> None:
        """Announce what has been idle for long enough. With *aside*, others use the cache
        meanwhile."""
        if now < self._look_at or not (self._limits or self._announced):
            return
        self._look_at = now + LOOK_SECONDS
        self._read = {node: its for node, its in self._read.items() if node in self._activity}
        due_at: dict[str, float] = {}
        for number, uid in enumerate([*self._limits], 1):
            if (at := self._due_at(uid, now)) is not None:
                due_at[uid] = at
            if number % _AT_ONCE == 0:
                aside(lambda: None)
        announced: dict[frozenset[str], _Announced] = {}
        times: dict[str, float] = {}
        for unit in self._units(due_at, _ANY_PRIORITY, now):
            uids = _uids(unit)
            due = max(due_at[uid] for uid in uids)
            if due <= now:
                words = {uid: self._said_about(uid).at for uid in uids}
                announced[uids] = self._announced.get(uids) or _Announced(now, words)
                if uids not in self._announced:
                    self._announce(unit, now)
            begins = (announced[uids].at if uids in announced else due) + self._notice_seconds
            times |= dict.fromkeys(uids, begins)
        self._announced, self.times = announced, times
        ripe = frozenset(uids for uids in announced if self._may_go(uids, now))
        self.changes += ripe != self._ripe
        self._ripe = ripe

    def units(self, priority: int, now: float) -> list[Unit]:
        """Those that may be evicted now for a claimant of this *priority*."""
        ripe = [uids for uids in self._ripe if self._may_go(uids, now)]
        pods = sorted(uid for uids in ripe for uid in uids)
        return [unit for unit in self._units(pods, priority + 1, now) if _uids(unit) in ripe]

    def is_still_idle(self, unit: Unit, now: float) -> bool:
        """Whether those of the unit's pods that are not evicted yet may still go."""
        pods = (self._cache.pods.get(pod.uid) for pod in unit.pods)
        return all(
            self._is_certainly_due(pod.uid, now) for pod in pods if pod is not None and pod.live
        )

    def _may_go(self, uids: frozenset[str], now: float) -> bool:
        """While a pod is idle, its plugin says so every HEARTBEAT_SECONDS. If it has said nothing
        since the Event, it may have died, and the pod may work."""
        announced = self._announced.get(uids)
        if announced is None or now < announced.at + self._notice_seconds:
            return False
        return all(
            self._is_certainly_due(uid, now) and self._said_about(uid).at > announced.words[uid]
            for uid in uids
        )

    def _said_about(self, uid: str) -> Activity:
        return self._said_on(self._cache.pods[uid].node)

    def _said_on(self, node: str) -> Activity:
        """What its plugin says; read once, until it says something else."""
        text = self._activity.get(node, "")
        known = self._read.get(node)
        if known is None or known[0] != text:
            known = self._read[node] = text, _read(text)
        return known[1]

    def _units(self, uids: Collection[str], priority: int, now: float) -> Iterator[Unit]:
        """The pods *uids* of less than this *priority*, as they go together. Of a gang, all members
        have to be among them."""
        among = frozenset(uids)
        pods = [self._cache.pods[uid] for uid in uids if uid in self._cache.pods]
        for unit in self._candidates.units(pods, priority, lambda pod: pod.uid in among):
            if unit.spare is None:
                since = max(self._idle_since(pod, now) or now for pod in unit.pods)
                yield replace(unit, idle_since=since)

    def _due_at(self, uid: str, now: float) -> float | None:
        """When this pod has been idle for as long as it has to be; None: it is not idle."""
        record, limit = self._cache.pods.get(uid), self._limits.get(uid)
        since = None if record is None else self._idle_since(record, now)
        return None if since is None or limit is None else since + limit

    def _is_certainly_due(self, uid: str, now: float) -> bool:
        """Whether it is due, and the plugin of its node keeps back no news."""
        due_at = self._due_at(uid, now)
        if due_at is None or now < due_at:
            return False
        said = self._said_about(uid)
        return not ON_THE_WAY_SECONDS < now - said.at < said.hold + ON_THE_WAY_SECONDS

    def _idle_since(self, record: PodRecord, now: float) -> float | None:
        """None: the pod works, or nothing is known of it."""
        said = self._said_on(record.node)
        pod = said.pods.get(record.key)
        if pod is None or pod.idle is None or now - said.at > STALE_SECONDS:
            return None
        # A pod that was created again under its name cannot have been idle before.
        return max(pod.idle, record.created)

    def _announce(self, unit: Unit, now: float) -> None:
        first = unit.pods[0]
        what = "this pod" if first.gang is None else first.gang.title
        text = (
            f"no GPU of {what} has worked since {minute(unit.idle_since or now)}: from "
            f"{minute(now + self._notice_seconds)} on, it is evicted if a waiting gang or pod of "
            "the same or a higher priority can start in its place. Work on a GPU prevents that, "
            f'and so does the annotation {names.RECLAIM}: "never"'
        )
        self._pending_writes.say(first.ref, ANNOUNCED, text, now)


def _uids(unit: Unit) -> frozenset[str]:
    return frozenset(pod.uid for pod in unit.pods)


def _read(text: str) -> Activity:
    try:
        return read_activity(text)
    except AnnotationError:
        return Activity(at=0)
