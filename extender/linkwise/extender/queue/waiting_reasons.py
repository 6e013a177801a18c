"""Why a gang waits, in the words of kube-scheduler's events and of the extender's own Events."""

from linkwise.extender.api.records import PodRecord
from linkwise.extender.api.spans import in_words
from linkwise.extender.gangs.gang import Gang, Phase
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.placement.result import NoRoom

NO_ROOM = ": no room"  # how some of the reasons begin


def why_gang_waits(gang: Gang, members: GangMembers, no_room: NoRoom | None) -> str:
    """Why a gang waits; empty: it does not, or the writes of its plan are in flight. *no_room*:
    what the last search found; None: it found room, or there was none."""
    if gang.phase is Phase.RUNNING:  # about members beyond its minimum
        waits = members.open and no_room is not None
        return why_member_waits(gang, members, members.open[0], no_room) if waits else ""
    if not members.seats:
        return ""
    if gang.refused:  # maybe without kube-scheduler, as when no gate can be lifted
        return f": its plans came to nothing ({gang.reason})"
    decided = not members.open and (members.complete or members.started)
    if decided and not (members.clash or gang.expired):
        return ""
    return why_member_waits(gang, members, members.seats[0], no_room)


def why_member_waits(
    gang: Gang | None, members: GangMembers | None, record: PodRecord, no_room: NoRoom | None
) -> str:
    """Why a member without a plan waits. *gang* and *members* are None if the extender's watch has
    not shown the gang yet."""
    if gang is None or members is None:
        return " waits for its members"
    if members.clash and gang.phase is not Phase.EXPIRED:
        return f": {members.clash}"
    if set_aside := _why_set_aside(gang):
        return set_aside
    if any(member.uid == record.uid for member in members.extra):
        return " has all its members without this one"
    if members.held_back and not members.complete:
        return " waits for members behind another scheduling gate"
    if not (members.complete or members.together()):
        return " waits for its members"
    if no_room is None:
        return ": its plan is being made"
    if members.started or members.enough_placed:
        return f"{NO_ROOM} for the members that are missing"
    level = no_room.level
    return f"{NO_ROOM} for the whole gang{f' within {in_words(level)}' if level else ''}"


def _why_set_aside(gang: Gang) -> str:
    if gang.phase is Phase.EXPIRED:
        return " gives back its GPUs after its timeout"
    if gang.refused:
        return ": kube-scheduler did not take its plans"
    if gang.unasked:
        return f" is of the scheduler {gang.unasked}, which has not asked Linkwise yet"
    return ""
