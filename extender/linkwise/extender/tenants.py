"""Who has the GPUs of a node, and when they come free: what a hold for a gang that waits goes by.

A pod says with `linkwise.dev/expected-duration` how long it runs; what it has said counts from its
plan. One that runs for longer has broken its word, and nobody knows its end any more.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class OnNode:
    """The tenants of one node, as they go: those who said when, and all others together."""

    all: tuple[Tenant, ...]
    known: tuple[tuple[float, Tenant], ...]  # when each ends
    rest: Tenant | None  # all those of whom nobody knows, as if they were one
    until: float  # when somebody breaks his word, and this has to be worked out anew

    def without(self, uids: Container[str], now: float) -> "OnNode":
        return _as_they_go([tenant for tenant in self.all if tenant.uid not in uids], now)


class Tenants:
    """Worked out anew only where something has changed."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._known: dict[str, tuple[object, OnNode]] = {}

    def on(self, book: NodeBook, now: float) -> OnNode:
        state = (book.settled, book.version)
        known = self._known.get(book.name)
        if known is not None and known[0] == state and now < known[1].until:
            return known[1]
        found = _on_node(self._books, book, now)
        self._known[book.name] = (state, found)
        return found

    def forget_all_but(self, names: Container[str]) -> None:
        for name in [name for name in self._known if name not in names]:
            del self._known[name]


def _on_node(books: Books, book: NodeBook, now: float) -> OnNode:
    return _as_they_go([_tenant(books, book, uid, gpus) for uid, gpus in book.owned.items()], now)


def _as_they_go(tenants: Sequence[Tenant], now: float) -> OnNode:
    ends = [(tenant.known_end(now), tenant) for tenant in tenants]
    known = tuple((end, tenant) for end, tenant in ends if end is not None)
    rest = [tenant for end, tenant in ends if end is None]
    until = min((end for end, tenant in known if not tenant.leaving), default=math.inf)
    return OnNode(tuple(tenants), known, _as_one(rest) if rest else None, until)


def _as_one(tenants: Sequence[Tenant]) -> Tenant:
    gpus = 0
    for tenant in tenants:
        gpus |= tenant.gpus
    needs = Resources(
        sum(tenant.needs.milli_cpu for tenant in tenants),
        sum(tenant.needs.memory for tenant in tenants),
        sum(tenant.needs.gpus for tenant in tenants),
    )
    pods = sum(tenant.pods for tenant in tenants)
    return Tenant("", gpus, needs, pods, None, endless=any(each.endless for each in tenants))


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
