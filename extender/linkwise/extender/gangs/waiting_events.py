"""Tells why a gang waits: one Event on its first member, once for each reason.

What `filter` said may be out of date for good: kube-scheduler can ask about the last member before
our watch has shown the others, hears "waits for its members", writes that into the pod's condition
and does not ask again, while the truth is "no room for the whole gang". An Event is the truth that
needs no question. It comes only when a reason has lasted for a moment, since most gangs are planned
at once; the texts hold no numbers that change, so a gang that goes back and forth between two
reasons is told each of them once.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.api.timers import Timers
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.pending_writes import EVENT_SECONDS, PendingWrites
from linkwise.extender.gangs.gang import Gang, Phase
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.gangs.registry import GangRegistry
from linkwise.extender.gangs.scheduling_gates import why_gang_waits

REASON = "GangWaiting"
MOMENT_SECONDS = 1.0
# Thousands of gangs may have waited for the same moment, and calls of kube-scheduler come first.
AT_ONCE = 256


@dataclass(slots=True)
class _Wait:
    reason: object = None  # and who the members were: one that comes is a new beginning
    told: dict[str, tuple[str, float]] = field(default_factory=dict)  # text -> pod's uid, when


class WaitingEvents:
    def __init__(self, cache: Cache, pending_writes: PendingWrites, registry: GangRegistry) -> None:
        self._cache, self._pending_writes, self._registry = cache, pending_writes, registry
        self._waits: dict[GangKey, _Wait] = {}
        self._alarms: Timers[GangKey] = Timers()

    def note(self, key: GangKey, now: float) -> None:
        """Something happened to this gang; call it after the gang's phase is known."""
        gang = self._registry.gangs.get(key)
        members = self._registry.muster(gang) if gang is not None else None
        if gang is None or members is None or not _waits(gang, members):
            self._waits.pop(key, None)
            self._alarms.drop(key)
            return
        wait = self._waits.setdefault(key, _Wait())
        why = why_waiting(gang, members)
        reason = (why, len(members.seats), len(members.extra), [m.uid for m in members.seats[:1]])
        if reason == wait.reason:
            return
        wait.reason = reason
        if not (why or members.extra):
            self._alarms.drop(key)
            return
        # That it was refused, or was too late, has its own Event at once (`lifecycle`).
        told_at_once = gang.refused or gang.expired
        self._alarms[key] = now + (EVENT_SECONDS if told_at_once else MOMENT_SECONDS)

    def look(self, now: float, surviving: Callable[[object], AbstractContextManager[None]]) -> None:
        """Tell what has lasted for a moment, and again what the API server is about to forget.
        *surviving* keeps one mistake of ours from all others."""
        for number, key in enumerate(self._alarms.take(now)):
            if number >= AT_ONCE:
                self._alarms[key] = now
                continue
            with surviving(key.title):
                self._tell(self._registry.gangs[key], self._waits[key], now)

    def next_due(self) -> float | None:
        return self._alarms.next()

    def _tell(self, gang: Gang, wait: _Wait, now: float) -> None:
        members = self._registry.muster(gang)
        why = why_waiting(gang, members)
        if why and members.seats:
            first = members.open[0] if gang.phase is Phase.RUNNING else members.seats[0]
            self._say(wait, first, f"{gang.key.title}{why}", now)
        for member in members.extra:
            if not member.node:
                text = f"{gang.key.title}{why_gang_waits(gang, members, member)}"
                self._pending_writes.say(member.ref, REASON, text, now)
        if why or members.extra:
            self._alarms[gang.key] = now + EVENT_SECONDS

    def _say(self, wait: _Wait, member: PodRecord, text: str, now: float) -> None:
        """Also where the first member is another now: the Event on the one before is still read."""
        uid, at = wait.told.get(text, ("", 0.0))
        if uid not in self._cache.pods or now >= at + EVENT_SECONDS:
            wait.told[text] = (member.uid, now)
            self._pending_writes.say(member.ref, REASON, text, now)


def _waits(gang: Gang, members: GangMembers) -> bool:
    if gang.alone or gang.unasked:
        return False  # `gates` tells of the one, and the other is somebody else's
    return gang.phase not in (Phase.RUNNING, Phase.RELEASED) or bool(members.extra)


def why_waiting(gang: Gang, members: GangMembers) -> str:
    """Why a gang waits; empty: it does not, or what was decided is on its way."""
    if gang.phase is Phase.RUNNING:  # of those beyond its minimum
        waits = members.open and gang.no_room is not None
        return why_gang_waits(gang, members, members.open[0]) if waits else ""
    if not members.seats:
        return ""
    if gang.refused:  # maybe without kube-scheduler, as where no gate can be lifted
        return f": its plans came to nothing ({gang.reason})"
    decided = not members.open and (members.complete or members.started)
    if decided and not (members.clash or gang.expired):
        return ""
    return why_gang_waits(gang, members, members.seats[0])
