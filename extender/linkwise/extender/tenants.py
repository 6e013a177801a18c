"""Who has the GPUs of a node, and when they come free: what a hold for a gang that waits goes by.

A pod says with `linkwise.dev/expected-duration` how long it runs; what it has said counts from its
plan. One that runs for longer has broken its word, and nobody knows its end any more.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from linkwise.extender.books import Books
from linkwise.extender.node_book import NodeBook, plan_on
from linkwise.extender.records import PodRecord, Resources

_NOTHING = Resources()


@dataclass(frozen=True, slots=True)
class Tenant:
    uid: str
    gpus: int  # bitmask
    needs: Resources  # what comes free with them
    pods: int  # 1; of one that has ended and only has its GPUs yet: 0
    end: float | None  # as it said; None: nobody knows
    leaving: bool = False  # is ending already: the next to be gone
    endless: bool = False  # starts anew whenever it ends: a server, mostly

    def known_end(self, now: float) -> float | None:
        if self.leaving:
            return now
        return self.end if self.end is not None and self.end > now else None


@dataclass(slots=True)
class Tenants:
    """The tenants of each node, worked out anew only where something has changed."""

    books: Books
    _known: dict[str, tuple[object, tuple[Tenant, ...]]] = field(default_factory=dict)

    def of(self, book: NodeBook) -> tuple[Tenant, ...]:
        state = (book.settled, book.version)
        known = self._known.get(book.name)
        if known is not None and known[0] == state:
            return known[1]
        found = tuple(_tenant(self.books, book, uid, gpus) for uid, gpus in book.owned.items())
        self._known[book.name] = (state, found)
        return found

    def forget_all_but(self, names: Iterable[str]) -> None:
        for name in self._known.keys() - set(names):
            del self._known[name]


def _tenant(books: Books, book: NodeBook, uid: str, gpus: int) -> Tenant:
    record = books.pods.get(uid)
    if record is None or record.ended:
        return Tenant(uid, gpus, _NOTHING, 0, None, leaving=True)
    if record.leaving:
        return Tenant(uid, gpus, record.needs, 1, None, leaving=True)
    return Tenant(uid, gpus, record.needs, 1, _end(books, book, record), endless=record.endless)


def _end(books: Books, book: NodeBook, record: PodRecord) -> float | None:
    seconds = record.ask.expected_seconds
    if seconds is None:
        return None
    written = plan_on(record, book.name) if record.node else books.plans.get(record.uid)
    return None if written is None else written.plan.made + seconds
