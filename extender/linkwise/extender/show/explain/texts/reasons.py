"""Why a pod is where it is, and why it or a gang waits, in words for users."""

from linkwise.extender.next.cycle.reserve import InVain
from linkwise.extender.place.request import NoRoom
from linkwise.extender.show.explain.levels import NEVER, SHARES
from linkwise.extender.show.explain.snapshot import GangState, NodeState
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.views import PodState, SearchView
from linkwise.pods.spans import NODE, SEPARATOR, domain_in_words


def pod_summary(
    record: PodRecord,
    state: PodState,
    gang: GangState | None,
    search: SearchView | None,
    in_vain: InVain | None,
    on: NodeState | None,
) -> str:
    """*on*: the node that it is bound to; *search*: of a pod that waits."""
    match state:
        case PodState.ENDED:
            return f"The pod has ended.{_still_held(record, on)}"
        case PodState.BOUND | PodState.LEAVING:
            if record.leaving:
                return f"The pod is ending on node {record.node}.{_still_held(record, on)}"
            counted = " It was placed by count: the node publishes no topology."
            return f"The pod is bound to node {record.node}.{counted * is_by_count(record, on)}"
        case PodState.INVALID:
            return f"The pod cannot be placed: {record.invalid}"
        case _ if record.broken_off:
            return f"{why_broken_off(record)}."
        case PodState.NOT_OURS:
            return _why_not_ours(record)
        case PodState.LEFT_ALONE:
            return "Its namespace is not in the canary: kube-scheduler alone places it."
        case PodState.PLANNED:
            return "The pod has a plan and waits for kube-scheduler to bind it."
        case _:
            assert search is not None, "it waits"
            return _why_pod_waits(record, gang, search, in_vain)


def _why_not_ours(record: PodRecord) -> str:
    if record.has_claims:
        return (
            "The pod has resource claims and asks no device plugin for GPUs: kube-scheduler alone "
            "places it."
        )
    return "The pod takes no GPU, so Linkwise does not place it."


def is_by_count(record: PodRecord, on: NodeState | None) -> bool:
    return on is not None and on.by_count is not None and record.demand.gpus > 0


def _still_held(record: PodRecord, on: NodeState | None) -> str:
    held = on.owned.get(record.uid, 0).bit_count() if on is not None else 0
    return f" Its node still reports {held} of its GPUs in use." if held else ""


def _why_pod_waits(
    record: PodRecord, gang: GangState | None, search: SearchView, in_vain: InVain | None
) -> str:
    if record.awaits:
        return f"The pod waits until its gang is known: {record.awaits.removeprefix('gang: ')}."
    if record.held_back:
        return (
            "The pod has another scheduling gate than linkwise.dev/plan. Linkwise plans it "
            "once that gate is removed."
        )
    if record.ask.gang is not None:
        return f"Gang {record.ask.gang.name}{_why_member_waits(gang, record)}."
    return _why_alone_waits(gang, search, in_vain)


def in_vain_in_words(why: InVain | None) -> str:
    match why:
        case None:
            return ""
        case InVain.SERVERS:
            return "until pods that run forever are deleted (restartPolicy Always)"
        case InVain.NEVER_FITS:
            return "even without other pods"


def no_room_now(why: InVain | None) -> str:
    return " now" if why is None else f", {in_vain_in_words(why)}"


def why_gang_waits(gang: GangState) -> str:
    """To follow its name; empty: it does not wait."""
    if gang.why is None:
        return ""
    is_vain = gang.why.lacks_room and gang.in_vain is not None
    return f"{gang.why.words}{no_room_now(gang.in_vain)}" if is_vain else gang.why.words


def _why_member_waits(gang: GangState | None, record: PodRecord) -> str:
    if gang is None:
        return " waits for its members"
    if any(member.uid == record.uid for member in gang.found.extra):
        return " has all its members without this one"
    return why_gang_waits(gang) or ": its plan is being made"


def _why_alone_waits(gang: GangState | None, search: SearchView, in_vain: InVain | None) -> str:
    if gang is not None and gang.refused:
        return f"Its plans came to nothing: {gang.reason}."
    if not search.room:
        return f"No node has a GPU set for the pod{no_room_now(in_vain)}."
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
    if any(level.level == SHARES and level.of for level in search.levels):
        return False  # shares may come free
    return next((level.level for level in search.levels if not level.have), "") in NEVER


def gang_reason(gang: GangState) -> str:
    found = gang.found
    if found.clash:
        return found.clash
    broken_off = next((each for each in found.all if each.live and each.broken_off), None)
    if broken_off is not None:
        return why_broken_off(broken_off)
    if found.open and gang.no_room is not None:
        never = in_vain_in_words(gang.in_vain)
        return _no_room(gang.no_room) + (f"; not for enough of them, {never}" if never else "")
    uncreated = f": {gang.uncreated}" if gang.uncreated else ""
    if not found.complete:
        return f"{len(found.exist) + found.done} of {found.size} members exist{uncreated}"
    if gang.refused:
        return f"{gang.reason}; it is tried again after a pause, or once a node or a member changes"
    kept = sum(member.coming for member in found.planned)
    if kept and not gang.reason:
        members = "a member" if kept == 1 else f"{kept} members"
        again = "that was lost" if found.started else "that its owner creates later"
        return f"keeps the place{'s' * (kept > 1)} of {members} {again}{uncreated}"
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
