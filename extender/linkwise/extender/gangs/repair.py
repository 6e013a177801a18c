"""Repairs a running gang that has lost a member.

1. If the GPUs of the lost member are free or about to be, the recreated member gets the same GPUs
   of the same node: its neighbours in rank and the data on the disk are there.
2. Else it is planned next to the others, like any late member.
3. If that is impossible, an Event reports the gang. The gang is evicted as a whole only if all its
   members declare themselves preemptible, and only after it has held its GPUs for as long as a
   partial gang may.
"""

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.pending_writes import PendingWrites
from linkwise.extender.gangs.gang import Gang, Seat
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.placement.nodes.gang_refusals import GangRefusals
from linkwise.extender.placement.nodes.node_filters import NodeFilters
from linkwise.extender.placement.nodes.scheduler_feedback import SchedulerFeedback
from linkwise.extender.placement.result import Spot

REASON = "GangCannotBeRepaired"
# Most repairs take less, and need no Event: the operator creates the pod, the kubelet cleans up.
PATIENCE_SECONDS = 10.0
# How long a recreated member waits for the GPUs that its predecessor is leaving.
LEAVING_SECONDS = 3.0
_MOST_NAMES = 5  # in one sentence


class Repair:
    def __init__(
        self,
        cache: Cache,
        pending_writes: PendingWrites,
        node_filters: NodeFilters,
        feedback: SchedulerFeedback,
        gang_refusals: GangRefusals,
    ) -> None:
        self._cache, self._pending_writes = cache, pending_writes
        self._node_filters, self._feedback = node_filters, feedback
        self._gang_refusals = gang_refusals

    def note_spots(self, gang: Gang, members: GangMembers) -> None:
        """Remember the places of the members, for their replacements."""
        for member in members.bound:
            info = self._cache.nodes.get(member.node)
            gpus = info.owned.get(member.uid, 0) if info is not None else 0
            if gpus:
                gang.spots.pop(seat_of(member), None)  # the latest are last
                gang.spots[seat_of(member)] = Spot(member.node, gpus)
        while len(gang.spots) > 2 * max(members.size, len(members.seats)):
            del gang.spots[next(iter(gang.spots))]  # names that were never reused

    def next_return(self, gang: Gang, members: GangMembers) -> tuple[PodRecord, Spot] | None:
        """A member that can have the place of its predecessor."""
        if not members.started:
            return None
        for member in members.open:
            spot = gang.spots.get(seat_of(member))
            if spot is not None and self._is_free(member, spot):
                return member, spot
        return None

    def awaited(self, gang: Gang, members: GangMembers, now: float) -> frozenset[str]:
        """The uids of those `open` members whose predecessors are leaving their places now."""
        if not members.started or now >= self.leaving_ends(gang):
            return frozenset()
        return frozenset(
            member.uid
            for member in members.open
            if (spot := gang.spots.get(seat_of(member))) is not None and self._is_left(spot)
        )

    def leaving_ends(self, gang: Gang) -> float:
        return gang.came + LEAVING_SECONDS

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

    def _is_free(self, member: PodRecord, spot: Spot) -> bool:
        info = self._cache.nodes.get(spot.node)
        if info is None or info.kind is None or info.closed:
            return False
        request = GpuRequest(member.demand, member.ask.requirement)
        around = self._node_filters.beside(member)
        return (
            not spot.gpus & ~info.free
            and info.kind.take(request, spot.gpus) == spot.gpus
            and self._node_filters.on(member.template, spot.node)
            and (around is None or bool(around[info.row]))
            and not self._was_refused(member, spot.node)
            and self._cache.rows.left.fits_on(info.row, member.needs)
        )

    def _was_refused(self, member: PodRecord, node: str) -> bool:
        if member.template is None or member.gang is None:
            return False
        takes = self._gang_refusals.takes(member.gang).get(node)
        members = (self._cache.pods[uid] for uid in self._cache.gangs.get(member.gang, ()))
        there = sum(other.live and other.node == node for other in members)
        refuses_more = takes is not None and there >= takes
        return refuses_more or node in self._feedback.refused(member.template)

    def _is_left(self, spot: Spot) -> bool:
        """Whether all pods that still have these GPUs are terminating or gone."""
        info = self._cache.nodes.get(spot.node)
        if info is None or info.problem:
            return False
        holders = [holder for holder, gpus in info.owned.items() if gpus & spot.gpus]
        records = [self._cache.pods.get(holder) for holder in holders]
        return bool(holders) and not any(record is not None and record.live for record in records)


def seat_of(member: PodRecord) -> Seat:
    return member.ref.name if member.ask.rank is None else member.ask.rank
