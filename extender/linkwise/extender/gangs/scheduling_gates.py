"""Why pods without a plan wait, and how those behind our gate are let go.

Order is everything here: a plan and its nomination are on the API server first, then the gate is
lifted, and of a gang all gates after all nominations (docs/decisions/0008-the-gate.md).
kube-scheduler never tries a pod behind a gate, so what keeps it there is told by Events: of a
single pod here, of a gang by `telling`.
"""

from collections.abc import Sequence

from linkwise.extender.api.records import PodRecord
from linkwise.extender.api.spans import in_words
from linkwise.extender.cache.cache import Books
from linkwise.extender.cache.machine_kind import Wish
from linkwise.extender.cache.pending_writes import EVENT_SECONDS, Outbox
from linkwise.extender.gangs.gang import Gang, Phase
from linkwise.extender.gangs.members import Muster
from linkwise.extender.placement.nodes.reasons import rooms

# Most plans take milliseconds, and need no words.
PATIENCE_SECONDS = 5.0


class Gates:
    def __init__(self, books: Books, outbox: Outbox) -> None:
        self._books, self._outbox = books, outbox
        self._strays: set[str] = set()  # behind our gate, and nothing is planned for them
        self._no_room: dict[Wish, str] = {}  # this round: thousands wait, and few are unlike

    def pod_changed(self, record: PodRecord) -> None:
        if _is_stray(record):
            self._strays.add(record.uid)

    def forget(self, uid: str) -> None:
        self._strays.discard(uid)

    def look_at_strays(self, now: float) -> None:
        """Nobody plans for a pod that takes no GPU, or one that cannot be read. Ends a round."""
        self._no_room.clear()
        strays, self._strays = self._strays, set()
        for uid in sorted(strays):
            record = self._books.pods.get(uid)
            if record is None or not _is_stray(record):
                continue
            if record.invalid:
                self._tell(record, f"pod {record.key}: {record.invalid}", now)
            else:
                self._outbox.lift_gate(record, now)

    def look_at(self, gang: Gang, found: Muster, now: float) -> None:
        """Let members go that have what they need, or tell why they have not."""
        gated = [m for m in (*found.seats, *found.extra) if m.gated and not m.node]
        kept = gated
        if found.started or (found.enough_placed and self._all_brought(found)):
            ready = {m.uid for m in (*found.planned, *found.idle) if self._brought(m)}
            for member in gated:
                if member.uid in ready:
                    self._outbox.lift_gate(member, now)
            kept = [member for member in gated if member.uid not in ready]
        if gang.alone:  # of others `telling` says it
            self._tell_in_time(gang, found, kept, now)

    def _tell_in_time(
        self, gang: Gang, found: Muster, kept: Sequence[PodRecord], now: float
    ) -> None:
        if not found.open and found.complete:  # what is decided is on its way to the API server
            kept = []
        if not kept:
            gang.gated_since = None
            return
        gang.gated_since = now if gang.gated_since is None else gang.gated_since
        if now < gang.gated_since + PATIENCE_SECONDS:
            self._outbox.look_again(kept[0].uid, gang.gated_since + PATIENCE_SECONDS)
            return
        for member in kept:
            self._tell(member, f"{gang.key.title}{self._why(gang, member)}", now)

    def _why(self, gang: Gang, member: PodRecord) -> str:
        if member.awaits:
            return f": {member.awaits}"
        if member.held_back:
            return ": waits behind another scheduling gate"
        if gang.refused:  # maybe without kube-scheduler, as where no gate can be lifted
            return f": its plans came to nothing ({gang.reason})"
        wish = Wish(member.demand, member.ask.requirement)
        if wish not in self._no_room:
            self._no_room[wish] = why_no_node(self._books, wish)
        return self._no_room[wish]

    def _all_brought(self, found: Muster) -> bool:
        return all(self._brought(member) for member in found.planned)

    def _brought(self, member: PodRecord) -> bool:
        """Whether what was decided for it is on the API server."""
        plan = self._books.plans.get(member.uid)
        return plan is None or self._outbox.has_brought(member, plan)

    def _tell(self, record: PodRecord, message: str, now: float) -> None:
        self._outbox.say(record.ref, "WaitsForPlan", message, now)
        self._outbox.look_again(record.uid, now + EVENT_SECONDS)


def _is_stray(record: PodRecord) -> bool:
    """Behind our gate, and in no gang; one whose gang is not known yet may still be."""
    return record.gated and record.gang is None and record.live and not record.awaits


def why_no_node(books: Books, wish: Wish) -> str:
    """Why there is no plan for a single pod: each distinct reason once, no numbers."""
    nodes = [book.name for book in books.nodes.values() if book.record is not None]
    answer = rooms(books, wish, nodes)
    reasons = {*answer.failed.values(), *answer.unresolvable.values()}
    if answer.node_names:
        reasons.add("linkwise: nodes with GPUs for it do not take it for other reasons")
    told = "; ".join(sorted(reason.removeprefix("linkwise: ") for reason in reasons))
    return f": no node has room for it ({told or 'there are no nodes'})"


def _why_set_aside(gang: Gang) -> str:
    if gang.phase is Phase.EXPIRED:
        return " gives back its GPUs after its timeout"
    if gang.refused:
        return ": kube-scheduler did not take its plans"
    return " is of a scheduler that does not ask Linkwise" if gang.unasked else ""


def why_gang_waits(gang: Gang | None, found: Muster | None, record: PodRecord) -> str:
    if gang is None or found is None:
        return " waits for its members"
    if found.clash and gang.phase is not Phase.EXPIRED:
        return f": {found.clash}"
    if set_aside := _why_set_aside(gang):
        return set_aside
    if any(member.uid == record.uid for member in found.extra):
        return " has all its members without this one"
    if found.held_back and not found.complete:
        return " waits for members behind another scheduling gate"
    if not (found.complete or found.together()):
        return " waits for its members"
    if gang.no_room is None:
        return ": its plan is being made"
    if found.started or found.enough_placed:
        return ": no room for the members that are missing"
    level = gang.no_room.level
    return f": no room for the whole gang{f' within {in_words(level)}' if level else ''}"
