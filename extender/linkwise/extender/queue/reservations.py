"""What is kept for gangs that wait, and who may have it all the same.

A hold is a concrete set of GPUs: those that are free and the others as they come free. `turns` says
which gangs get one. Later requests are not shown them, be they gangs or single pods. Others may
take them:

- a more urgent gang or pod;
- a gang that runs and has lost a member, or it might wait for the very gang that waits for it;
- a gang or pod that says that it ends before the gang can start;
- one that says nothing, if nine of ten pods like it have ended in that time (`run_times`).

What comes free is kept in the same way until those who wait for longest have had their turn.
docs/decisions/0013-order-and-holds.md has why.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Protocol

import numpy as np

from linkwise.extender.api.records import GangKey, PodRecord, Template
from linkwise.extender.cache.cache import Books
from linkwise.extender.cache.machine_kind import Wish
from linkwise.extender.cache.node_table import Bools, Rows
from linkwise.extender.gangs.allocate import View
from linkwise.extender.gangs.failed_searches import wishes_of
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.members import Muster
from linkwise.extender.placement.nodes.node_filters import Feasible
from linkwise.extender.placement.result import Spot
from linkwise.extender.queue.earliest_start import Gpus, Reservation, reservation
from linkwise.extender.queue.run_times import NineOfTen, RunTimes, run_time
from linkwise.extender.queue.running_pods import Tenants
from linkwise.extender.queue.scheduling_queue import Line, Urgency, urgency_of_single

# Of the wait for those whose ends are estimated, others may use so much.
_PASSING_SHARE = 0.5
FIRST: Urgency = (-(2**63), 0.0, GangKey("", ""))  # before everybody


class Kept(Protocol):
    """GPUs that are shown to some, and not to all."""

    @property
    def gpus(self) -> Gpus: ...

    @property
    def number(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Fresh:
    """GPUs that came free, and that those who wait for longest have not had their turn with."""

    gpus: Gpus
    number: int


@dataclass(frozen=True, slots=True)
class Hold:
    key: GangKey
    urgency: Urgency
    reservation: Reservation
    wishes: object  # of the members that it is for
    places: frozenset[tuple[Template, str]]  # which kind of member goes on which node
    pool: Bools  # [rows] the nodes that its gang could use when it last had its turn
    number: int
    passable_until: float  # who says that he ends by then may pass
    evicts: bool = False  # somebody was evicted for it: nobody but a more urgent one gets it

    @property
    def title(self) -> str:
        return self.key.title

    @property
    def gpus(self) -> Gpus:
        return self.reservation.gpus

    @property
    def start(self) -> float:
        return self.reservation.start


@dataclass(frozen=True, slots=True)
class Asker:
    """Who wants GPUs, as far as it matters to holds."""

    urgency: Urgency
    seconds: float | None  # how long it runs; None: nobody knows
    runs: bool = False  # a gang that has started, and has lost members that it needs


def may_pass(asker: Asker, hold: Hold, now: float) -> bool:
    """Whether what the hold keeps is shown to this one."""
    return (
        asker.urgency <= hold.urgency
        or (asker.runs and not hold.evicts)
        or (asker.seconds is not None and now + asker.seconds <= hold.passable_until)
    )


class Holds:
    def __init__(
        self,
        books: Books,
        line: Line,
        feasible: Feasible,
        tenants: Tenants,
        run_times: RunTimes,
    ) -> None:
        self._books, self._line, self._feasible, self._tenants = books, line, feasible, tenants
        self._run_times = run_times
        self._holds: dict[GangKey, Hold] = {}
        self._numbers = count()
        # All who are as urgent as this have had their turn with what came free.
        self.served = FIRST
        self._fresh = Fresh({}, -1)
        self._changed: set[GangKey] = set()  # since `take_changed`

    # Questions.

    def all(self) -> list[Hold]:
        """The most urgent first."""
        return sorted(self._holds.values(), key=lambda hold: hold.urgency)

    @property
    def by_key(self) -> Mapping[GangKey, Hold]:
        return self._holds

    def of(self, key: GangKey) -> Hold | None:
        return self._holds.get(key)

    def evicts(self, key: GangKey) -> bool:
        """Whether others are evicted for what is kept for it."""
        hold = self._holds.get(key)
        return hold is not None and hold.evicts

    def on(self, node: str) -> list[Hold]:
        return [hold for hold in self.all() if node in hold.gpus]

    # Who may take what is held.

    def asker(self, gang: Gang, found: Muster) -> Asker:
        lacks = found.started and not found.enough_placed
        seconds = _longest(found.open, self._run_times.nine_of_ten)
        return Asker(self._line.urgency(gang.key), seconds, runs=lacks)

    def asker_of_single(self, record: PodRecord) -> Asker:
        return asker_of_single(record, self._run_times.nine_of_ten)

    def open_to(self, asker: Asker) -> list[Hold]:
        """Its own, and those that do not bind it, however long it runs."""
        ever = replace(asker, seconds=None)
        return [hold for hold in self._holds.values() if may_pass(ever, hold, 0.0)]

    def ways(self, asker: Asker, now: float) -> list[list[Kept]]:
        """What to show it besides all that is free: first what it may have anyhow; and where it
        says that it ends in time, what others wait for until then."""
        surely: list[Kept] = [*self.open_to(asker)]
        if self._books.fresh and (asker.urgency <= self.served or asker.runs):
            surely.append(self._fresh_now())
        until_then = [
            hold
            for hold in self._holds.values()
            if hold not in surely and may_pass(asker, hold, now)
        ]
        return [surely, [*surely, *until_then]] if until_then else [surely]

    @contextmanager
    def shown(self, holds: Sequence[Kept]) -> Iterator[None]:
        """Let every search find what these keep as if it were free."""
        rows = self.rows_with(holds) if holds else None
        if rows is None:
            yield
            return
        what = frozenset(hold.number for hold in holds)
        with self._books.supposing(rows, what, self._rows_of(holds)):
            yield

    def view(self, holds: Sequence[Kept]) -> View | None:
        """The same for one search; None: there is nothing to show."""
        if not holds:
            return None
        what = frozenset(hold.number for hold in holds)
        return View(what, partial(self.rows_with, holds))

    def kept_on(self, node: str, holds: Iterable[Kept]) -> int:
        """The GPUs of a node that nobody has, and that are kept by these."""
        book = self._books.nodes.get(node)
        mask = 0
        for hold in holds:
            mask |= hold.gpus.get(node, 0)
        return book.held & mask if book is not None else 0

    def rows_with(self, holds: Sequence[Kept]) -> Rows:
        """The rows with what these keep, and nobody has, as if it were free."""
        rows = self._books.rows.copy()
        for hold in holds:
            for node, mask in hold.gpus.items():
                row = rows.row_of.get(node)
                if row is not None:
                    rows.free[row] |= rows.held[row] & mask
        return rows

    def _rows_of(self, holds: Iterable[Kept]) -> list[int]:
        row_of = self._books.rows.row_of
        nodes = {node for hold in holds for node in hold.gpus}
        return sorted(row_of[node] for node in nodes if node in row_of)

    def _fresh_now(self) -> Fresh:
        if self._fresh.gpus != self._books.fresh:
            self._fresh = Fresh(dict(self._books.fresh), next(self._numbers))
        return self._fresh

    def forget_fresh(self) -> None:
        """What was shown of it to those who had their turns."""
        self._fresh = Fresh({}, -1)

    # What happens to holds.

    def give_up(self, key: GangKey) -> None:
        if self._holds.pop(key, None) is not None:
            self._books.reserve(key, {})
            self._changed.add(key)

    def hold_for(
        self, gang: Gang, found: Muster, spots: Sequence[Spot], now: float, *, evicts: bool = False
    ) -> Hold:
        """Keep these places for the open members of a gang."""
        new = reservation(self._books, self._tenants, spots, now)
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
            self.pool_of(found),
            next(self._numbers),
            _passable_until(new, now),
            evicts,
        )
        for other in list(self._holds.values()):
            if other.key != gang.key and _overlap(other.gpus, new.gpus):
                self.give_up(other.key)
        self._holds[gang.key] = hold
        self._books.reserve(gang.key, new.gpus)
        self._changed.add(gang.key)
        return hold

    def take_changed(self) -> set[GangKey]:
        """For whom something else is kept than when this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

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

    def is_good(self, hold: Hold, found: Muster) -> bool:
        """Whether its members could still be placed where it keeps GPUs for them, once they are
        free."""
        if hold.wishes != wishes_of(found.open) or hold.start == math.inf:
            return False
        for node, mask in hold.gpus.items():
            book = self._books.nodes.get(node)
            if book is None or book.machine is None or book.closed:
                return False
            if mask & ~book.machine.healthy_gpus:
                return False
        return all(self._feasible.on(template, node) for template, node in hold.places)

    def bring_up_to_date(self, hold: Hold, pool: Bools, now: float) -> Hold:
        """When it can start changes with those who have its GPUs, and *pool* with the nodes."""
        fresh = reservation(self._books, self._tenants, hold.reservation.spots, now)
        urgency = self._line.urgency(hold.key)
        same_pool = np.array_equal(pool, hold.pool)
        if fresh == hold.reservation and urgency == hold.urgency and same_pool:
            return hold
        new = replace(
            hold,
            urgency=urgency,
            reservation=fresh,
            pool=pool,
            passable_until=_passable_until(fresh, now),
        )
        self._holds[hold.key] = new
        return new


def asker_of_single(record: PodRecord, nine_of_ten: NineOfTen) -> Asker:
    return Asker(urgency_of_single(record), run_time(record, nine_of_ten))


def _longest(pods: Sequence[PodRecord], nine_of_ten: NineOfTen) -> float | None:
    """For how many seconds all of them run; None: nobody knows."""
    seconds = [run_time(pod, nine_of_ten) for pod in pods]
    known = [each for each in seconds if each is not None]
    return max(known) if known and len(known) == len(seconds) else None


def _passable_until(reservation: Reservation, now: float) -> float:
    """Where the start is an estimate, it may come sooner; then only half of the wait is lent."""
    if reservation.sure:
        return reservation.start
    return now + _PASSING_SHARE * (reservation.start - now)


def _overlap(one: Gpus, other: Gpus) -> bool:
    return any(mask & other.get(node, 0) for node, mask in one.items())
