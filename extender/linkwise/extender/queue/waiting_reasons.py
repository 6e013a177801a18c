"""Why a gang waits, in the words of kube-scheduler's events and of the extender's own Events."""

from typing import NamedTuple

from linkwise.extender.api.records import PodRecord
from linkwise.extender.gangs.gang import Gang, Phase
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.placement.result import NoRoom
from linkwise.pods.spans import in_words


class WaitReason(NamedTuple):
    """Why a gang or a member waits."""

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
        return WaitReason(": its plan is being made")
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
