"""Repairs a running gang that has lost a member.

1. The recreated member gets the same GPUs of the same node, which `to_come` keeps for it: its
   neighbours in rank and the data on the disk are there.
2. If that is impossible, it is planned next to the others, like any late member.
3. If that is impossible, an Event reports the gang. The gang is evicted as a whole only if all its
   members declare themselves preemptible, and only after it has held its GPUs for as long as a
   partial gang may.
"""

from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.gangs.registry import GangBooks, GangPart
from linkwise.extender.place.request import Spot

REASON = "GangCannotBeRepaired"
# Most repairs take less, and need no Event: the operator creates the pod, the kubelet cleans up.
PATIENCE_SECONDS = 10.0
_MOST_NAMES = 5  # in one sentence


class Repair(GangPart):
    def __init__(self, books: GangBooks) -> None:
        super().__init__(books)

    def note_spots(self, gang: Gang, members: GangMembers) -> None:
        """Remember the places of the members, for their replacements."""
        for member in members.bound:
            info = self._cache.nodes.get(member.node)
            gpus = info.owned.get(member.uid, 0) if info is not None else 0
            if gpus:
                gang.spots.pop(member.seat, None)  # the latest are last
                gang.spots[member.seat] = Spot(member.node, gpus)
        while len(gang.spots) > 2 * max(members.size, len(members.seats)):
            del gang.spots[next(iter(gang.spots))]  # names that were never reused

    def judge(
        self,
        gang: Gang,
        members: GangMembers,
        now: float,
        timeout_seconds: float,
        *,
        has_no_room: bool,
    ) -> float | None:
        """Report a gang that misses members it needs, or give it up. Return when to look again.
        *has_no_room*: the last search found no GPUs for these members."""
        why = self._why(gang, members, has_no_room=has_no_room)
        if not why:
            gang.stuck_since = None
            return None
        gang.stuck_since = now if gang.stuck_since is None else gang.stuck_since
        patience_ends = gang.stuck_since + PATIENCE_SECONDS
        if now < patience_ends:
            return patience_ends
        gang.reason = why
        self._pending_writes.say(members.bound[0].ref, REASON, f"{gang.key.title}: {why}", now)
        if not (members.open and all(member.ask.preemptible for member in members.seats)):
            return None
        gives_up = gang.stuck_since + timeout_seconds
        if now < gives_up:
            return gives_up
        if members.flying:
            return now + PATIENCE_SECONDS
        gang.expired, gang.stuck_since = True, None
        return None

    def _why(self, gang: Gang, members: GangMembers, *, has_no_room: bool) -> str:
        """Why the gang is not whole; empty: no member is missing, or it is being repaired."""
        if not members.started or gang.expired or members.enough_placed or not members.bound:
            return ""
        if members.open and gang.refused:
            return "kube-scheduler did not take the plans of the missing members"
        if members.open and has_no_room:
            names = ", ".join(member.ref.name for member in members.open[:_MOST_NAMES])
            return f"there is no room for the missing members ({names})"
        if members.complete or members.held_back:
            return ""
        dead = [member.ref.name for member in members.all if member.failed][:_MOST_NAMES]
        gone = f" ({', '.join(dead)} failed)" if dead else ""
        return f"members are missing, and their controller has created no replacements{gone}"
