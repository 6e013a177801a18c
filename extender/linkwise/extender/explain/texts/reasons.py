"""Why a gang or pod waits, in words for users."""

from linkwise.extender.api.records import PodRecord
from linkwise.extender.api.spans import NODE, SEPARATOR, domain_in_words
from linkwise.extender.api.views import SearchView
from linkwise.extender.explain.levels import NEVER
from linkwise.extender.explain.snapshot import GangState
from linkwise.extender.placement.result import NoRoom


def why_member_waits(gang: GangState | None, record: PodRecord) -> str:
    if gang is None:
        return " waits for its members"
    if any(member.uid == record.uid for member in gang.found.extra):
        return " has all its members without this one"
    return gang.why or ": its plan is being made"


def why_alone_waits(gang: GangState | None, search: SearchView, in_vain: str) -> str:
    if gang is not None and gang.refused:
        return f"Its plans came to nothing: {gang.reason}."
    if not search.room:
        return f"No node has a GPU set for the pod{f', {in_vain}' if in_vain else ' now'}."
    fitting = search.levels[-1].have
    nodes, them = ("1 node has", "it") if fitting == 1 else (f"{fitting} nodes have", "them")
    return (
        f"{nodes} GPUs for the pod; kube-scheduler has not tried {them} yet, "
        f"or refuses {them} for other reasons (see the pod's events)."
    )


def why_broken_off(record: PodRecord) -> str:
    return f"{record.scheduler} cannot try pod {record.ref.name}: {record.broken_off}"


def is_never(search: SearchView) -> bool:
    """Whether no node is large enough for such a pod, of its model and linked as it wants."""
    if search.room or not search.levels or search.levels[0].missing:
        return False  # some nodes are not known
    return next((level.level for level in search.levels if not level.have), "") in NEVER


def gang_reason(gang: GangState) -> str:
    found = gang.found
    if found.clash:
        return found.clash
    broken_off = next((each for each in found.all if each.live and each.broken_off), None)
    if broken_off is not None:
        return why_broken_off(broken_off)
    if found.open and gang.no_room is not None:
        never = f"; not for enough of them, {gang.in_vain}" if gang.in_vain else ""
        return _no_room(gang.no_room) + never
    if not found.complete:
        return f"{len(found.seats) + found.done} of {found.size} members exist"
    if gang.refused:
        return f"{gang.reason}; it is tried again after a pause, or once a node or a member changes"
    return gang.reason


def _no_room(room: NoRoom) -> str:
    text = f"room for {room.had} of {room.wanted} members"
    if not room.nearest_had:
        return f"{text} in one domain of {and_one_of(room.level)}" if room.level else text
    if room.level in ("", NODE):
        return f"{text}; most on one node: {room.nearest}, {room.nearest_had}"
    place = domain_in_words(room.level, room.nearest)
    return f"{text}; most in one domain: {place}, {room.nearest_had}"


def and_one_of(levels: str) -> str:
    return levels.replace(SEPARATOR, " and one of ")
