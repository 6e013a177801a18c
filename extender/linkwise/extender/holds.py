"""What is kept for gangs that wait, so that none of them waits for ever.

The first in the line that finds no room gets a hold: the GPUs on which it can start first (see
`reserve`), those that are free and the others as they come free. Later requests are not shown them,
be they gangs or single pods. Who is more urgent takes them all the same; so does a gang that runs
and has lost a member, or it might wait for the very gang that waits for it; and so does one that
says that it ends before they could all be free. Members beyond a gang's minimum get no hold.
docs/decisions/0013-order-and-holds.md has why.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import numpy as np

from linkwise.extender.books import Books
from linkwise.extender.feasible import Feasible
from linkwise.extender.gang import Gang
from linkwise.extender.growth import needed
from linkwise.extender.hopeless import wishes_of
from linkwise.extender.kinds import Wish
from linkwise.extender.line import Line, Urgency, urgency_of_single
from linkwise.extender.muster import Muster
from linkwise.extender.place import Refusal, Spot
from linkwise.extender.records import GangKey, PodRecord, Template
from linkwise.extender.reserve import (
    Gpus,
    NodesChangedError,
    Pause,
    Reservation,
    Want,
    reservation,
    reserve,
)
from linkwise.extender.roll import Roll
from linkwise.extender.rows import Bools, Rows
from linkwise.extender.search import Search
from linkwise.extender.tenants import Tenants

# A better place is looked for this often, and so is one for a gang for which there was none.
LOOK_SECONDS = 30.0
_AGAIN_SECONDS = 1.0  # where it was interrupted
_MOST = 16  # holds: each costs searches, and those behind come to the front soon enough


def _no_pause() -> None:
    """There is nobody else."""


@dataclass(frozen=True, slots=True)
class Hold:
    key: GangKey
    urgency: Urgency
    reservation: Reservation
    wishes: object  # of the members that it is for
    places: frozenset[tuple[Template, str]]  # which kind of member goes on which node
    number: int
    evicts: bool = False  # somebody was evicted for it: nobody but a more urgent one gets it

    @property
    def title(self) -> str:
        return self.key.title

    @property
    def gpus(self) -> Gpus:
        return self.reservation.gpus

    @property
    def start(self) -> float | None:
        return self.reservation.start


@dataclass(frozen=True, slots=True)
class Asker:
    """Who wants GPUs, as far as it matters to holds."""

    urgency: Urgency
    seconds: float | None  # how long it runs, as it says
    runs: bool = False  # a gang that has started, and has lost members that it needs


class Holds:
    def __init__(
        self,
        books: Books,
        roll: Roll,
        line: Line,
        search: Search,
        feasible: Feasible,
        *,
        share: float,
    ) -> None:
        """*share* of the GPUs that a gang could use may be held; what the first of those who wait
        for them needs is held in any case. 0: no holds at all."""
        self._books, self._roll, self._line = books, roll, line
        self._search, self._feasible = search, feasible
        self._share = share
        self.tenants = Tenants(books)
        self._holds: dict[GangKey, Hold] = {}
        self._look_at: dict[GangKey, float] = {}  # when to look for a place anew
        self._in_vain: dict[GangKey, tuple[object, int]] = {}  # for which wishes, on which nodes
        self._numbers = count()
        self._seen: object = None

    # Questions.

    def all(self) -> list[Hold]:
        """The most urgent first."""
        return sorted(self._holds.values(), key=lambda hold: hold.urgency)

    def of(self, key: GangKey) -> Hold | None:
        return self._holds.get(key)

    def on(self, node: str) -> list[Hold]:
        return [hold for hold in self.all() if node in hold.gpus]

    def next_due(self) -> float | None:
        return min(self._look_at.values(), default=None)

    def in_vain(self, key: GangKey, found: Muster) -> bool:
        """Whether it was seen that it finds no room on these nodes even once nobody else runs."""
        seen = self._in_vain.get(key)
        if seen is None:
            return False
        return seen == (wishes_of(needed(found).open), len(self._books.changed_rows))

    # Who may take what is held.

    def asker(self, gang: Gang, found: Muster) -> Asker:
        seconds = [member.ask.expected_seconds for member in found.open]
        longest = max((each or 0.0 for each in seconds), default=0.0)
        known = bool(seconds) and None not in seconds
        lacks = found.started and not found.enough_placed
        return Asker(self._line.urgency(gang.key), longest if known else None, runs=lacks)

    def open_to(self, asker: Asker) -> list[Hold]:
        """Its own, and those that do not bind it, however long it runs."""
        return [
            hold
            for hold in self._holds.values()
            if asker.urgency <= hold.urgency or (asker.runs and not hold.evicts)
        ]

    def ways(self, asker: Asker, now: float) -> list[list[Hold]]:
        """What to show it besides all that is free: first what it may have anyhow; and where it
        says that it ends in time, what others wait for until then."""
        surely = self.open_to(asker)
        until_then = [
            hold
            for hold in self._holds.values()
            if hold not in surely
            and asker.seconds is not None
            and hold.start is not None
            and now + asker.seconds <= hold.start
        ]
        return [surely, [*surely, *until_then]] if until_then else [surely]

    @contextmanager
    def shown(self, holds: Sequence[Hold]) -> Iterator[None]:
        """Let every search find what these keep as if it were free."""
        rows = self.rows_with(holds) if holds else None
        if rows is None:
            yield
            return
        what = frozenset(hold.number for hold in holds)
        with self._books.supposing(rows, what, self._rows_of(holds)):
            yield

    def kept_on(self, node: str, holds: Iterable[Hold]) -> int:
        """The GPUs of a node that nobody has, and that are kept by these."""
        book = self._books.nodes.get(node)
        mask = 0
        for hold in holds:
            mask |= hold.gpus.get(node, 0)
        return book.held & mask if book is not None else 0

    # What happens to holds.

    def give_up(self, key: GangKey) -> None:
        self._look_at.pop(key, None)
        self._in_vain.pop(key, None)
        if self._holds.pop(key, None) is not None:
            self._books.reserve(key, {})

    def hold_for(
        self, gang: Gang, found: Muster, spots: Sequence[Spot], now: float, *, evicts: bool = False
    ) -> Hold:
        """Keep these places for the open members of a gang."""
        new = reservation(self._books, self.tenants, spots, now)
        hold = Hold(
            gang.key,
            self._line.urgency(gang.key),
            new,
            wishes_of(found.open),
            frozenset(
                (member.template, spot.node)
                for member, spot in zip(found.open, spots, strict=True)
                if member.template is not None
            ),
            next(self._numbers),
            evicts,
        )
        for other in list(self._holds.values()):
            if other.key != gang.key and _overlap(other.gpus, new.gpus):
                self.give_up(other.key)
        self._holds[gang.key] = hold
        self._books.reserve(gang.key, new.gpus)
        self._look_at[gang.key] = now + LOOK_SECONDS
        return hold

    def look(self, now: float, pause: Pause = _no_pause) -> bool:
        """Give holds up whose time is over, and choose new ones; whether somebody may now find room
        who did not before. Call it when all who wait have been tried."""
        waiting = self._line.without_room() if self._share > 0 or self._holds else []
        if not waiting and not self._holds:
            self._look_at.clear()
            self._in_vain.clear()
            return False
        state = (
            len(self._books.settled_rows),
            len(self._books.changed_rows),
            self._books.room,
            tuple(gang.key for gang in waiting),
        )
        if state == self._seen and now < (self.next_due() or now + 1):
            return False
        room = self._books.room
        heads = self._heads(waiting)
        stay = {gang.key for gang in heads}
        for key in [*self._holds, *self._look_at]:
            if key not in stay:
                self.give_up(key)
        for gang in heads:
            self._look_at_head(gang, now, pause)
        self.tenants.forget_all_but(self._books.nodes)
        self._seen = (len(self._books.settled_rows), *state[1:])
        return self._books.room != room

    def _look_at_head(self, gang: Gang, now: float, pause: Pause) -> None:
        found = needed(self._roll.muster(gang))
        hold = self._holds.get(gang.key)
        if hold is not None and not self._is_good(hold, found):
            self.give_up(gang.key)
            hold = None
        if hold is not None:
            hold = self._brought_up_to_date(hold, now)
        if now < self._look_at.get(gang.key, 0.0) or (hold is not None and hold.evicts):
            return
        self._look_at[gang.key] = now + LOOK_SECONDS
        wishes = wishes_of(found.open)
        try:
            best = self._choose(gang, found, now, pause)
        except NodesChangedError:
            self._look_at[gang.key] = now + _AGAIN_SECONDS
            return
        found = needed(self._roll.muster(gang))
        if best is None or wishes_of(found.open) != wishes:
            return
        if hold is None or best.worth < hold.reservation.worth or not hold.reservation.to_free:
            self.hold_for(gang, found, best.spots, now)

    def _choose(self, gang: Gang, found: Muster, now: float, pause: Pause) -> Reservation | None:
        pool = self.pool_of(found)
        surely = self.open_to(self.asker(gang, found))
        wanted = sum(member.demand.gpus for member in found.open)
        if not self._may_hold(gang.key, wanted, pool):
            return None
        open_to = frozenset(hold.key for hold in surely)
        own = frozenset(member.uid for member in (*found.bound, *found.flying, *found.planned))
        want = Want(wanted, pool, self.rows_with(surely), open_to, own)

        def seek(rows: Rows, changed: Sequence[int]) -> list[Spot] | Refusal:
            with self._books.supposing(rows, object(), changed if gang.alone else ()):
                return self._search.seek(found, now)

        self._in_vain.pop(gang.key, None)
        chosen = reserve(self._books, self.tenants, want, seek, now, pause)
        if chosen is None and self._holds.keys() <= want.open_to | {gang.key}:
            self._in_vain[gang.key] = wishes_of(found.open), len(self._books.changed_rows)
        return chosen

    def _may_hold(self, key: GangKey, wanted: int, pool: Bools) -> bool:
        """Whether so much may be kept idle of what it could use; the first may in any case."""
        if not self._share:
            return False
        rows = self._books.rows
        held = 0
        for hold in self._holds.values():
            if hold.key != key:
                for node, mask in hold.gpus.items():
                    row = rows.row_of.get(node)
                    held += mask.bit_count() if row is not None and pool[row] else 0
        sizes = np.array([*(kind.all_gpus.bit_count() for kind in self._books.kinds), 0])
        there = int(sizes[rows.kinds[: len(rows)]][pool].sum())
        return not held or held + wanted <= self._share * there

    def _heads(self, waiting: Sequence[Gang]) -> list[Gang]:
        """Of each namespace the first; and of those behind it the first that wants other nodes."""
        pools: dict[str, list[Bools]] = {}
        known: dict[object, Bools] = {}
        heads: list[Gang] = []
        for gang in waiting:
            if len(heads) == _MOST:
                break
            found = needed(self._roll.muster(gang))
            if not found.open:
                continue
            wishes = wishes_of(found.open)
            if wishes not in known:
                known[wishes] = self.pool_of(found)
            pool, before = known[wishes], pools.setdefault(gang.key.namespace, [])
            hold = self._holds.get(gang.key)
            evicts = hold is not None and hold.evicts
            if evicts or not any((pool & other).any() for other in before):
                before.append(pool)
                heads.append(gang)
        return heads

    def pool_of(self, found: Muster) -> Bools:
        """[rows] the nodes that could ever take one of the open members."""
        rows, kinds = self._books.rows, self._books.kinds
        pool: Bools = np.zeros(len(rows), dtype=np.bool_)
        for template, wish in {
            (member.template, Wish(member.demand, member.ask.requirement)) for member in found.open
        }:
            if template is None:
                continue
            able = [kind.take(wish, kind.all_gpus) is not None for kind in kinds]
            of_kind = np.array([*able, False])[rows.kinds[: len(rows)]]  # NOT_USABLE: the last
            pool |= of_kind & self._feasible.rows(template)
        return pool

    def _is_good(self, hold: Hold, found: Muster) -> bool:
        """Whether its members could still be placed where it keeps GPUs for them, once they are
        free."""
        if hold.wishes != wishes_of(found.open):
            return False
        for node, mask in hold.gpus.items():
            book = self._books.nodes.get(node)
            if book is None or book.machine is None or book.problem:
                return False
            if mask & ~book.machine.healthy_gpus:
                return False
        return all(self._feasible.on(template, node) for template, node in hold.places)

    def _brought_up_to_date(self, hold: Hold, now: float) -> Hold:
        """When it can start changes with those who have its GPUs."""
        fresh = reservation(self._books, self.tenants, hold.reservation.spots, now)
        urgency = self._line.urgency(hold.key)
        if fresh == hold.reservation and urgency == hold.urgency:
            return hold
        new = Hold(hold.key, urgency, fresh, hold.wishes, hold.places, hold.number, hold.evicts)
        self._holds[hold.key] = new
        return new

    def rows_with(self, holds: Sequence[Hold]) -> Rows:
        """The rows with what these keep, and nobody has, as if it were free."""
        rows = self._books.rows.copy()
        for hold in holds:
            for node, mask in hold.gpus.items():
                row = rows.row_of.get(node)
                if row is not None:
                    rows.free[row] |= rows.held[row] & mask
        return rows

    def _rows_of(self, holds: Iterable[Hold]) -> list[int]:
        row_of = self._books.rows.row_of
        nodes = {node for hold in holds for node in hold.gpus}
        return sorted(row_of[node] for node in nodes if node in row_of)


def asker_of_single(record: PodRecord) -> Asker:
    return Asker(urgency_of_single(record), record.ask.expected_seconds)


def _overlap(one: Gpus, other: Gpus) -> bool:
    return any(mask & other.get(node, 0) for node, mask in one.items())
