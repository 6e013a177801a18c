"""Which GPUs to keep for a gang that waits: those on which it can start first.

The tenants of the nodes are let go in thought, one after the other, until the gang fits; where it
is placed then is kept for it. First go those who said when they end, in that order; then, of whom
nobody knows, node by node, those nodes first where fewest GPUs are still to be freed, and last the
nodes with servers, which do not end by themselves. So nobody's end is waited for in vain.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from linkwise.extender.books import Books
from linkwise.extender.place import Refusal, Spot
from linkwise.extender.records import GangKey, Resources
from linkwise.extender.rows import NOT_USABLE, Bools, Ints, Rows, popcount
from linkwise.extender.tenants import Tenants

Gpus = Mapping[str, int]
"""Node -> bitmask."""
Seek = Callable[[Rows, Sequence[int]], list[Spot] | Refusal]
"""A place for the gang on these rows; they differ from the true ones in those named."""


Pause = Callable[[], None]
"""Lets others use the books; then these may have changed."""

_AT_ONCE = 256  # nodes


class NodesChangedError(Exception):
    """Nodes came, went or changed during a pause: what was found out counts no more."""


@dataclass(frozen=True, slots=True)
class Reservation:
    spots: tuple[Spot, ...]
    gpus: Gpus
    to_free: int  # of them: those that somebody has yet
    start: float | None  # when all will be free, as far as everybody said; None: somebody did not

    @property
    def worth(self) -> tuple[bool, float, int]:
        """Less is better."""
        return self.start is None, self.start or 0.0, self.to_free


class _Step(NamedTuple):
    """Tenants of one node that go together."""

    row: int
    gpus: int
    needs: Resources
    pods: int


@dataclass(frozen=True, slots=True)
class Want:
    """What a gang that waits wants, and where it may be."""

    gpus: int  # in all
    pool: Bools  # [rows] the nodes that could ever take one of its members
    base: Rows  # what it may have now
    open_to: frozenset[GangKey]  # who else waits, and cannot keep GPUs from it
    own: frozenset[str]  # its members that have GPUs: they end when it does, so never for it


def reserve(
    books: Books, tenants: Tenants, want: Want, seek: Seek, now: float, pause: Pause
) -> Reservation | None:
    """Where *seek* finds a place first; None: not even if everybody went. Raises
    NodesChangedError."""
    steps = _steps(books, tenants, want, now, pause)
    letting_go = _LettingGo(want.base, steps)

    nodes = len(books.changed_rows)

    @cache
    def after(count: int) -> list[Spot] | Refusal:
        pause()
        if len(books.changed_rows) != nodes:
            raise NodesChangedError
        return seek(letting_go.rows(count), letting_go.changed(count))

    if isinstance(after(len(steps)), Refusal):
        return None
    spots = after(_fewest(after, letting_go.fewest_for(want), len(steps)))
    assert not isinstance(spots, Refusal), "it was found with so many gone"
    return reservation(books, tenants, spots, now)


def reservation(books: Books, tenants: Tenants, spots: Sequence[Spot], now: float) -> Reservation:
    gpus: dict[str, int] = {}
    for spot in spots:
        gpus[spot.node] = gpus.get(spot.node, 0) | spot.gpus
    to_free, start = 0, now
    known = True
    for node, mask in gpus.items():
        book = books.nodes.get(node)
        if book is None:
            continue
        there = tenants.on(book, now)
        to_free += sum((tenant.gpus & mask).bit_count() for tenant in there.all)
        known &= there.rest is None or not there.rest.gpus & mask
        start = max([start, *(end for end, tenant in there.known if tenant.gpus & mask)])
    return Reservation(tuple(spots), gpus, to_free, start if known else None)


def _steps(books: Books, tenants: Tenants, want: Want, now: float, pause: Pause) -> list[_Step]:
    known: list[tuple[float, int, str, _Step]] = []
    unknown: list[tuple[bool, int, int, _Step]] = []
    rows = want.base
    ranks = rows.name_ranks().tolist()
    usable = np.flatnonzero(want.pool & (rows.kinds[: len(rows)] != NOT_USABLE)).tolist()
    for number, row in enumerate(usable):
        if number % _AT_ONCE == _AT_ONCE - 1:
            pause()
        book = books.nodes.get(rows.names[row] or "")
        if book is None or book.machine is None or not book.owned:
            continue
        there = tenants.on(book, now)
        if not want.own.isdisjoint(book.owned):
            there = there.without(want.own, now)
        may_have = book.machine.healthy_gpus
        for who, kept in book.reserved.items():
            if who not in want.open_to:
                may_have &= ~kept
        for end, tenant in there.known:
            step = _Step(row, tenant.gpus & may_have, tenant.needs, tenant.pods)
            known.append((end, ranks[row], tenant.uid, step))
        if there.rest is not None:
            step = _Step(row, there.rest.gpus & may_have, there.rest.needs, there.rest.pods)
            unknown.append((there.rest.endless, step.gpus.bit_count(), ranks[row], step))
    known.sort(key=lambda each: each[:3])
    unknown.sort(key=lambda each: each[:3])
    return [*(step for *_, step in known), *(step for *_, step in unknown)]


class _LettingGo:
    """The rows as they are once the first so many steps are done."""

    def __init__(self, base: Rows, steps: Sequence[_Step]) -> None:
        self._base = base
        self._rows = _column([step.row for step in steps])
        self._gpus = _column([step.gpus for step in steps])
        self._columns = {
            "milli_cpu": _column([step.needs.milli_cpu for step in steps]),
            "memory": _column([step.needs.memory for step in steps]),
            "gpus": _column([step.needs.gpus for step in steps]),
            "pods": _column([step.pods for step in steps]),
        }

    def changed(self, count: int) -> list[int]:
        changed: list[int] = np.unique(self._rows[:count]).tolist()
        return changed

    def rows(self, count: int) -> Rows:
        rows = copy(self._base)
        at = self._rows[:count]
        rows.free = rows.free.copy()
        np.bitwise_or.at(rows.free, at, self._gpus[:count])
        for name, column in self._columns.items():
            left = getattr(rows, name).copy()
            np.add.at(left, at, column[:count])
            setattr(rows, name, left)
        return rows

    def fewest_for(self, want: Want) -> int:
        """No fewer steps than this free so many GPUs, however they are joined."""
        free = int(popcount(self._base.free[: len(want.pool)][want.pool]).sum())
        freed = np.concatenate([[0], np.cumsum(popcount(self._gpus))])
        return min(int(np.searchsorted(freed, want.gpus - free)), len(self._gpus))


def _fewest(after: Callable[[int], list[Spot] | Refusal], least: int, most: int) -> int:
    """The fewest steps after which there is room, where there is after *most* of them.

    The answer is mostly near *least*, so the way there is in steps that double.
    """
    none, enough, stride = least - 1, most, 1
    while none + stride < enough:
        if isinstance(after(none + stride), Refusal):
            none += stride
            stride *= 2
        else:
            enough = none + stride
    while enough - none > 1:
        middle = (none + enough) // 2
        if isinstance(after(middle), Refusal):
            none = middle
        else:
            enough = middle
    return enough


def _column(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)
