"""What becomes of a gang that runs and has lost a member.

One that is made anew takes the place of the one before, the same GPUs of the same node, where they
are free or about to be: its neighbours in rank are there, and what it had on the disk. Else it is
planned next to the others, as any member that comes late. Where that cannot be, the gang is
reported; it is evicted, whole, only where all its members say that they are preemptible, and not
before it has held its GPUs for as long as a partial gang may.
"""

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.cache import Books
from linkwise.extender.cache.machine_kind import Wish
from linkwise.extender.cache.pending_writes import Outbox
from linkwise.extender.gangs.gang import Gang, Seat
from linkwise.extender.gangs.members import Muster
from linkwise.extender.placement.nodes.node_filters import Feasible
from linkwise.extender.placement.nodes.scheduler_feedback import Learned
from linkwise.extender.placement.result import Spot

REASON = "GangCannotBeRepaired"
# Most repairs take less, and need no words: the operator makes the pod, the kubelet cleans up.
PATIENCE_SECONDS = 10.0
# So long a member made anew waits for GPUs that the one before is leaving.
LEAVING_SECONDS = 3.0
_MOST_NAMES = 5  # in one sentence


class Repair:
    def __init__(self, books: Books, outbox: Outbox, feasible: Feasible, learned: Learned) -> None:
        self._books, self._outbox = books, outbox
        self._feasible, self._learned = feasible, learned

    def note_spots(self, gang: Gang, found: Muster) -> None:
        """Remember where the members are, for those who come after them."""
        for member in found.bound:
            book = self._books.nodes.get(member.node)
            gpus = book.owned.get(member.uid, 0) if book is not None else 0
            if gpus:
                gang.spots.pop(_seat(member), None)  # the latest are last
                gang.spots[_seat(member)] = Spot(member.node, gpus)
        while len(gang.spots) > 2 * max(found.size, len(found.seats)):
            del gang.spots[next(iter(gang.spots))]  # of names that were never used again

    def next_return(self, gang: Gang, found: Muster) -> tuple[PodRecord, Spot] | None:
        """A member that can have the place of the one before it."""
        if not found.started:
            return None
        for member in found.open:
            spot = gang.spots.get(_seat(member))
            if spot is not None and self._is_free(member, spot):
                return member, spot
        return None

    def awaited(self, gang: Gang, found: Muster, now: float) -> frozenset[str]:
        """Those of `open`, by uid, whose places are just being left by the ones before."""
        if not found.started or now >= self.leaving_ends(gang):
            return frozenset()
        return frozenset(
            member.uid
            for member in found.open
            if (spot := gang.spots.get(_seat(member))) is not None and self._is_left(spot)
        )

    def leaving_ends(self, gang: Gang) -> float:
        return gang.came + LEAVING_SECONDS

    def judge(self, gang: Gang, found: Muster, now: float, timeout_seconds: float) -> float | None:
        """Report a gang that lacks members it needs, or give it up; when to look again."""
        why = self._why(gang, found)
        if not why:
            gang.stuck_since = None
            return None
        gang.stuck_since = now if gang.stuck_since is None else gang.stuck_since
        patience_ends = gang.stuck_since + PATIENCE_SECONDS
        if now < patience_ends:
            return patience_ends
        gang.reason = why
        self._outbox.say(found.bound[0].ref, REASON, f"{gang.key.title}: {why}", now)
        if not (found.open and all(member.ask.preemptible for member in found.seats)):
            return None
        gives_up = gang.stuck_since + timeout_seconds
        if now < gives_up:
            return gives_up
        if found.flying:
            return now + PATIENCE_SECONDS
        gang.expired, gang.stuck_since = True, None
        return None

    def _why(self, gang: Gang, found: Muster) -> str:
        """Empty: it lacks nobody, or is being repaired."""
        if not found.started or gang.expired or found.enough_placed or not found.bound:
            return ""
        if found.open and gang.refused:
            return "kube-scheduler did not take the plans of the members it lacks"
        if found.open and gang.no_room is not None:
            names = ", ".join(member.ref.name for member in found.open[:_MOST_NAMES])
            return f"there is no room for the members it lacks ({names})"
        if found.complete or found.held_back:
            return ""
        dead = [member.ref.name for member in found.members if member.failed][:_MOST_NAMES]
        gone = f" ({', '.join(dead)} failed)" if dead else ""
        return f"it lacks members, and nobody has made others{gone}"

    def _is_free(self, member: PodRecord, spot: Spot) -> bool:
        book = self._books.nodes.get(spot.node)
        if book is None or book.kind is None or book.closed:
            return False
        wish = Wish(member.demand, member.ask.requirement)
        return (
            not spot.gpus & ~book.free
            and book.kind.take(wish, spot.gpus) == spot.gpus
            and self._feasible.on(member.template, spot.node)
            and not self._was_refused(member, spot.node)
            and self._books.rows.pods_that_fit_beside(book.row, (), member.needs) > 0
        )

    def _was_refused(self, member: PodRecord, node: str) -> bool:
        return member.template is not None and node in self._learned.refused(member.template)

    def _is_left(self, spot: Spot) -> bool:
        """Whether all who still have these GPUs are leaving, or are gone."""
        book = self._books.nodes.get(spot.node)
        if book is None or book.problem:
            return False
        holders = [holder for holder, gpus in book.owned.items() if gpus & spot.gpus]
        records = [self._books.pods.get(holder) for holder in holders]
        return bool(holders) and not any(record is not None and record.live for record in records)


def _seat(member: PodRecord) -> Seat:
    return member.ref.name if member.ask.rank is None else member.ask.rank
