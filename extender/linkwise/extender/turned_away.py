"""Single pods that were told "no room" too early: once our books show some, they are nominated.

kube-scheduler tries a pod again when a node or a pod changes. It may ask before our own watch has
shown us that change; then it hears what was true before, and nothing makes it ask again for up to
five minutes. So whoever still waits a moment after room appeared is nominated for a node that has
it, which wakes the pod and makes kube-scheduler try that node first. No GPU is held for it: what it
finds there is decided when it is bound, as for every single pod.
"""

from collections.abc import Callable

from linkwise.extender.books import Books
from linkwise.extender.holds import Holds, asker_of_single
from linkwise.extender.kinds import Wish
from linkwise.extender.outbox import SETTLE_SECONDS, Outbox
from linkwise.extender.place import Refusal, Spot
from linkwise.extender.records import PodRecord

# kube-scheduler mostly asks again by itself within milliseconds, and comes in time.
MOMENT_SECONDS = 1.0
# kube-scheduler may ask about a pod before our own watch has shown it; one that takes longer than
# this was gone before we could see it.
UNSEEN_SECONDS = 60.0
_AT_ONCE = 32  # nominations: a free GPU wakes a few of the many who may want it, not all

Find = Callable[[PodRecord], Spot | Refusal]
"""The best node for a pod."""


class TurnedAway:
    def __init__(self, books: Books, outbox: Outbox, holds: Holds, find: Find) -> None:
        self._books, self._outbox, self._holds, self._find = books, outbox, holds, find
        # By uid, who waits longest first: when each was first told.
        self._waiting: dict[str, float] = {}
        self._room = books.room  # as it was when somebody was last turned away, or looked at
        self._look_at: float | None = None

    @property
    def next_due(self) -> float | None:
        return self._look_at

    def answered(self, record: PodRecord, now: float, *, has_room: bool) -> None:
        """What kube-scheduler was just told about the nodes that it asked for."""
        if has_room:
            self._waiting.pop(record.uid, None)
        else:
            self._waiting.setdefault(record.uid, now)

    def look_now(self, now: float) -> None:
        """They may have been told that something has to be read first, and it was."""
        self._look_at = now

    def forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)

    def look(self, now: float) -> None:
        if not self._is_time(now):
            return
        self._look_at = None
        hopeless: set[object] = set()
        woken = 0
        for uid, since in list(self._waiting.items()):
            record = self._books.pods.get(uid)
            if record is None and now - since < UNSEEN_SECONDS:
                self._look_at = now + MOMENT_SECONDS
                continue
            if record is None or not _waits(record):
                self.forget(uid)
                continue
            if record.awaits or record.nominated:
                # Its gang is not known yet; or kube-scheduler makes room there, or will try it.
                continue
            ways = self._holds.ways(asker_of_single(record), now)
            shown = tuple(hold.number for hold in ways[-1])
            wish = Wish(record.demand, record.ask.requirement)
            alike = (wish, record.template, record.needs, shown)
            if alike in hopeless:
                continue
            with self._holds.shown(ways[-1]):
                spot = self._find(record)
            if isinstance(spot, Refusal):
                hopeless.add(alike)
                continue
            if woken == _AT_ONCE:
                self._look_at = now + MOMENT_SECONDS
                return
            if self._outbox.nominate(record, spot.node, now):
                woken += 1
                self.forget(uid)  # it is asked for again, and then turned away again or not
            else:
                self._look_at = now + SETTLE_SECONDS

    def _is_time(self, now: float) -> bool:
        if self._waiting and self._books.room != self._room:
            self._room = self._books.room
            if self._look_at is None:
                self._look_at = now + MOMENT_SECONDS
        return self._look_at is not None and now >= self._look_at


def _waits(record: PodRecord) -> bool:
    """A plan that is still written on it, but that it is no more nominated for, is none."""
    return record.live and not record.node and record.gang is None
