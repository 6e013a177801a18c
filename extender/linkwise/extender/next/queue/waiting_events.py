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
from typing import NamedTuple

from linkwise.extender.next.gangs.gang import Gang, Phase
from linkwise.extender.next.gangs.lifecycle import PAUSES
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.place.request import NoRoom
from linkwise.extender.state.cache.pending_writes import EVENT_SECONDS
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.timers import Timers
from linkwise.pods.spans import in_words


class WaitReason(NamedTuple):
    """Why a gang or a member waits, in the words of kube-scheduler's events and of the extender's
    own Events."""

    words: str  # to follow its name
    lacks_room: bool = False


def why_gang_waits(gang: Gang, members: GangMembers, no_room: NoRoom | None) -> WaitReason | None:
    """Why a gang waits; None: it does not, or the writes of its plan are in flight. *no_room*:
    what the last search found; None: it found room, or there was none."""
    if gang.phase is Phase.RUNNING:  # about members beyond its minimum
        waits = members.open and no_room is not None
        return why_member_waits(gang, members, members.open[0], no_room) if waits else None
    if not members.seats:
        return None
    if gang.refused:  # maybe without kube-scheduler, as when no gate can be lifted
        return WaitReason(f": its plans came to nothing ({gang.reason})")
    decided = not members.open and (members.complete or members.started)
    if decided and not (members.clash or gang.expired):
        return None
    return why_member_waits(gang, members, members.first or members.seats[0], no_room)


def why_member_waits(
    gang: Gang | None, members: GangMembers | None, record: PodRecord, no_room: NoRoom | None
) -> WaitReason:
    """Why a member without a plan waits. *gang* and *members* are None if the extender's watch has
    not shown the gang yet."""
    if gang is None or members is None:
        return WaitReason(" waits for its members")
    if members.clash and gang.phase is not Phase.EXPIRED:
        return WaitReason(f": {members.clash}")
    if set_aside := _why_set_aside(gang):
        return WaitReason(set_aside)
    if any(member.uid == record.uid for member in members.extra):
        return WaitReason(" has all its members without this one")
    if members.held_back and not members.complete:
        return WaitReason(" waits for members behind another scheduling gate")
    if not (members.complete or members.together()):
        uncreated = f": {gang.uncreated}" if gang.uncreated else ""
        return WaitReason(f" waits for its members{uncreated}")
    if no_room is None:
        why = gang.reason if gang.reason in PAUSES else "its plan is being made"
        return WaitReason(f": {why}")
    if members.started or members.enough_placed:
        return WaitReason(": no room for the members that are missing", lacks_room=True)
    within = f" within {in_words(no_room.level)}" if no_room.level else ""
    return WaitReason(f": no room for the whole gang{within}", lacks_room=True)


def _why_set_aside(gang: Gang) -> str:
    if gang.phase is Phase.EXPIRED:
        return " gives back its GPUs after its timeout"
    if gang.refused:
        return ": kube-scheduler did not take its plans"
    if gang.unasked:
        return f" is of the scheduler {gang.unasked}, which has not asked Linkwise yet"
    return ""


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
