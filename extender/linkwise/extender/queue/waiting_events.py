"""Reports why a gang waits: one Event on its first member for each reason.

The answer of `filter` may stay outdated: kube-scheduler can call about the last member before the
extender's watch has shown the others. Then it gets "waits for its members", writes that into the
pod's condition, and does not call again, while the true reason is "no room for the whole gang". An
Event needs no call. It is sent only once a reason has lasted for a moment, since most gangs are
planned at once. The texts contain no numbers that change, so a gang that alternates between two
reasons gets one Event for each.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.api.timers import Timers
from linkwise.extender.cache.pending_writes import EVENT_SECONDS
from linkwise.extender.gangs.gang import Gang, Phase
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.queue.books import Books, Part
from linkwise.extender.queue.waiting_reasons import why_gang_waits, why_member_waits

REASON = "GangWaiting"
MOMENT_SECONDS = 1.0
# Thousands of gangs may reach the same moment, and calls of kube-scheduler come first.
AT_ONCE = 256


@dataclass(slots=True)
class _Wait:
    reason: object = None  # with the members: a new member starts a new wait
    told: dict[str, tuple[str, float]] = field(default_factory=dict)  # text -> pod's uid, when


class WaitingEvents(Part):
    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._waits: dict[GangKey, _Wait] = {}
        self._alarms: Timers[GangKey] = Timers(books.agenda)

    def note(self, key: GangKey, now: float) -> None:
        """The gang changed; call this once the gang's phase is known."""
        gang = self._registry.gangs.get(key)
        members = self._registry.members_of(gang) if gang is not None else None
        if gang is None or members is None or not _waits(gang, members):
            self._waits.pop(key, None)
            self._alarms.drop(key)
            return
        wait = self._waits.setdefault(key, _Wait())
        why = why_gang_waits(gang, members, self._queue.no_room(key))
        reason = (why, len(members.seats), len(members.extra), members.first and members.first.uid)
        if reason == wait.reason:
            return
        wait.reason = reason
        if not (why or members.extra):
            self._alarms.drop(key)
            return
        # Refusals and timeouts have their own Events at once (`gangs.lifecycle`).
        told_at_once = gang.refused or gang.expired
        self._alarms[key] = now + (EVENT_SECONDS if told_at_once else MOMENT_SECONDS)

    def look(self, now: float, surviving: Callable[[object], AbstractContextManager[None]]) -> None:
        """Report reasons that have lasted for a moment, and repeat those that the API server is
        about to forget. *surviving* keeps one defect from affecting the other gangs."""
        for number, key in enumerate(self._alarms.take(now)):
            if number >= AT_ONCE:
                self._alarms[key] = now
                continue
            gang = self._registry.gangs.get(key)
            if gang is None:
                continue  # it went while this round ran; `note` is called in the next one
            with surviving(key.title):
                self._tell(gang, self._waits[key], now)

    def _tell(self, gang: Gang, wait: _Wait, now: float) -> None:
        members = self._registry.members_of(gang)
        no_room = self._queue.no_room(gang.key)
        why = why_gang_waits(gang, members, no_room)
        first = next((m for m in members.open if not m.coming), members.first)
        if gang.phase is not Phase.RUNNING:
            first = members.first
        if why and first is not None:
            self._say(wait, first, f"{gang.key.title}{why.words}", now)
        for member in members.extra:
            if not member.node:
                words = why_member_waits(gang, members, member, no_room).words
                self._pending_writes.say(member.ref, REASON, f"{gang.key.title}{words}", now)
        if why or members.extra:
            self._alarms[gang.key] = now + EVENT_SECONDS

    def _say(self, wait: _Wait, member: PodRecord, text: str, now: float) -> None:
        """An Event on an earlier first member counts while that pod exists."""
        uid, at = wait.told.get(text, ("", 0.0))
        if uid not in self._cache.pods or now >= at + EVENT_SECONDS:
            wait.told[text] = (member.uid, now)
            self._pending_writes.say(member.ref, REASON, text, now)


def _waits(gang: Gang, members: GangMembers) -> bool:
    if gang.alone or gang.unasked:
        return False  # `gangs.scheduling_gates` reports the former; another scheduler the latter
    return gang.phase not in (Phase.RUNNING, Phase.RELEASED) or bool(members.extra)
