"""Every node as one row of a few arrays, so that one operation covers 5,000 nodes without a loop.

A row belongs to one node name as long as a node or a pod uses that name, then to another. The
domain of every node at a level is such an array too: label values as numbers (`TopologyDomains`).
At its first request a level is read for all rows, which takes a millisecond at 5,000; from then on
it is kept up to date.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice, repeat

import numpy as np
import numpy.ma  # np.unique imports it at its first call, which would be under the lock
from numpy.typing import NDArray

from linkwise.extender.state.cache.resources import ResourcesLeft
from linkwise.extender.state.records import ResourceList, SortKey, natural
from linkwise.topology.machine.model import MAX_GPUS
from linkwise.topology.sets import subsets

Ints = NDArray[np.int64]
NO_DOMAIN = -1
_MOST_LEVELS = 256  # remembered; pods may request any label
_NO_LABELS: Mapping[str, str] = {}


class _Level:
    def __init__(self, key: str, labels: Sequence[Mapping[str, str]], rows: int) -> None:
        self.key = key
        self.values: list[str] = []
        self.number_of: dict[str, int] = {}
        self.numbers: Ints = np.full(max(rows, 64), NO_DOMAIN)
        for row, each in enumerate(labels):
            self.put(row, each)

    def put(self, row: int, labels: Mapping[str, str]) -> None:
        if row >= len(self.numbers):
            self.numbers = np.concatenate([self.numbers, np.full_like(self.numbers, NO_DOMAIN)])
        value = labels.get(self.key)
        if value is None:
            self.numbers[row] = NO_DOMAIN
            return
        number = self.number_of.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        self.numbers[row] = number


class Domains:
    def __init__(self) -> None:
        self._labels: list[Mapping[str, str]] = []  # [rows]
        self._keys: Counter[str] = Counter()  # on how many rows each key is a label
        self._levels: dict[str, _Level] = {}
        self._kept: frozenset[str] = frozenset()

    def keep(self, levels: Iterable[str]) -> None:
        """Keep *levels*, which are requested often; others are dropped if there are too many."""
        self._kept |= frozenset(levels)
        for key in self._kept:
            self._level(key)

    def put(self, row: int, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """Set the labels of this row's node."""
        while row >= len(self._labels):
            self._labels.append(_NO_LABELS)
        if self._labels[row] != labels:
            self._keys.update(labels.keys())
            self._keys.subtract(self._labels[row].keys())
            for key in self._labels[row]:
                if not self._keys[key]:
                    del self._keys[key]
            self._labels[row] = labels
            for level in self._levels.values():
                level.put(row, labels)

    def numbers(self, key: str) -> Ints:
        """[rows] the domain of each node; NO_DOMAIN without the label. Read only."""
        return self._level(key).numbers[: len(self._labels)]

    def values(self, key: str) -> Sequence[str]:
        """number -> name of the domain; the sequence may grow."""
        return self._level(key).values

    def number_of(self, key: str) -> Mapping[str, int]:
        """value -> number, from 0 on; the mapping may grow."""
        return self._level(key).number_of

    def known(self, levels: Iterable[str]) -> tuple[str, ...]:
        """Those of *levels* with at least one node in a domain."""
        return tuple(key for key in levels if (self.numbers(key) != NO_DOMAIN).any())

    def nearest(self, levels: Sequence[str], rows: Ints) -> int:
        """The index of the first level at which one of *rows* is in a domain; if there is none, the
        number of levels."""
        in_it = (n for n, key in enumerate(levels) if (self.numbers(key)[rows] != NO_DOMAIN).any())
        return next(in_it, len(levels))

    def shared(self, levels: Iterable[str], rows: Sequence[int]) -> tuple[str, str]:
        """The first of *levels* at which all rows are in one domain, and that domain's name; both
        empty if there is none."""
        places = np.array(rows)
        for key in levels:
            numbers = self.numbers(key)[places]
            if numbers[0] != NO_DOMAIN and (numbers == numbers[0]).all():
                return key, self.values(key)[int(numbers[0])]
        return "", ""

    def _level(self, key: str) -> _Level:
        found = self._levels.get(key)
        if found is None and not (self._keys[key] or key in self._kept):
            # Pods may name thousands that no node has.
            return _Level(key, (), len(self._labels))
        if found is None:
            if len(self._levels) >= _MOST_LEVELS:
                self._levels = {k: v for k, v in self._levels.items() if k in self._kept}
            found = self._levels[key] = _Level(key, self._labels, len(self._labels))
        return found


LONGEST = 100_000


class RowLog:
    """A log that forgets its beginning; `generation` never repeats."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._forgotten = 0

    def __len__(self) -> int:
        """The rows that the log remembers."""
        return len(self._rows)

    @property
    def generation(self) -> int:
        """Rises with each change. A reader that remembers it can ask what came `since`."""
        return self._forgotten + len(self._rows)

    def append(self, row: int) -> None:
        self._rows.append(row)

    def since(self, generation: int, count: int) -> Iterable[int]:
        """The rows that changed since *generation*, some more than once; all of *count* rows if
        the log has forgotten them."""
        if generation < self._forgotten:
            return range(count)
        return self._from(generation - self._forgotten)

    def _from(self, place: int) -> Iterator[int]:
        return islice(self._rows, place, None)

    def trim(self) -> None:
        """Forget all rows once there are many."""
        if len(self._rows) > LONGEST:
            self._forgotten += len(self._rows)
            self._rows.clear()


Bools = NDArray[np.bool_]
_POPCOUNT = subsets.sizes(MAX_GPUS).astype(np.int64)
NOT_USABLE = -1
BY_KUBELET, BY_CLAIMS = 1, 2  # how a node offers GPUs
_ARRAYS = ("kinds", "free", "set_aside", "offering")
_ROWS = 64  # of an empty table
_KEPT = 2  # lists of names that were looked up: `filter` and `prioritize` alternate


def popcount(masks: Ints) -> Ints:
    """How many GPUs are in each mask."""
    return _POPCOUNT[masks]


class NodeTable:
    """`kinds` is NOT_USABLE if a node has no GPU to plan with. `free` and `set_aside` are bitmasks
    of unused GPUs: those available to all, and those reserved for waiting gangs and pods.
    `offering` is 1 for a node whose kubelet offers GPUs, used or
    not, and BY_CLAIMS for one of which a DRA driver gives them out."""

    def __init__(self) -> None:
        self.names: list[str | None] = []
        self.row_of: dict[str, int] = {}
        self._unused: list[int] = []
        self._by_name: list[tuple[SortKey, int]] = []  # ascending
        self._name_ranks: Ints | None = None
        self._looked_up: tuple[tuple[Sequence[str], Ints], ...] = ()  # the latest first
        self.kinds: Ints = np.full(_ROWS, NOT_USABLE)
        self.free: Ints = np.zeros(_ROWS, dtype=np.int64)
        self.set_aside: Ints = np.zeros(_ROWS, dtype=np.int64)
        self.offering: Ints = np.zeros(_ROWS, dtype=np.int64)
        self.left = ResourcesLeft(_ROWS)
        self.charged = RowLog()  # every row of which `left` was set, in order
        self.aside_changes = 0  # how often `set_aside` of a row changed

    def __len__(self) -> int:
        return len(self.names)

    def copy(self) -> "NodeTable":
        """A copy that may be read and changed while the original changes; it accepts no new row."""
        other = NodeTable()
        other.names, other.row_of = list(self.names), dict(self.row_of)
        other._name_ranks = self.name_ranks()
        for attribute in _ARRAYS:
            setattr(other, attribute, getattr(self, attribute)[: len(self)].copy())
        other.left = self.left.of_rows(slice(len(self)))
        return other

    def trial(self) -> "NodeTable":
        """A copy of a table that changes no more: `free` and `left` may be changed, the rest is
        shared."""
        other = copy(self)
        other.free, other.left = self.free.copy(), self.left.of_rows(slice(None))
        return other

    def with_first(self, names: Sequence[str]) -> "NodeTable":
        """The same table, in which these nodes come before all others by name."""
        rows = self.rows_of(names)
        behind = np.ones(len(self), dtype=np.bool_)
        behind[rows[rows >= 0]] = False
        other = copy(self)
        other._name_ranks = np.empty(len(self), dtype=np.int64)
        other._name_ranks[np.lexsort((self.name_ranks(), behind))] = np.arange(len(self))
        return other

    def with_columns(self, extra: Mapping[str, Ints]) -> "NodeTable":
        """A copy whose nodes have more resources, as `ResourcesLeft.with_columns`."""
        other = self.copy()
        other.left = other.left.with_columns(extra)
        return other

    def equals(self, other: "NodeTable", rows: Sequence[int]) -> bool:
        """Whether these rows are the same nodes in both tables, with the same resources left."""
        return (
            all(self.names[row] == other.names[row] for row in rows)
            and all(
                np.array_equal(getattr(self, attribute)[rows], getattr(other, attribute)[rows])
                for attribute in _ARRAYS
            )
            and self.left.equals(other.left, rows)
        )

    def add(self, name: str) -> int:
        if self._unused:
            row = self._unused.pop()
            self.names[row] = name
        else:
            row = len(self.names)
            self.names.append(name)
            if row == len(self.kinds):
                self._grow()
        self.row_of[name] = row
        insort(self._by_name, (natural(name), row))
        self._name_ranks, self._looked_up = None, ()
        return row

    def show(self, row: int, left: ResourceList, pods: int, *, offering: int) -> None:
        """Set what a node has left, and whether it offers GPUs at all."""
        self.left.show(row, left, pods)
        self.offering[row] = offering
        self.charged.append(row)

    def show_gpus(self, row: int, kind: int, free: int, set_aside: int) -> tuple[bool, bool]:
        """Set a node's kind and unused GPUs. Returns whether the kind or *free* changed, and
        whether any GPU is free that was not, or set aside that was in use."""
        before, aside = int(self.free[row]), int(self.set_aside[row])
        self.aside_changes += aside != set_aside
        more = bool(free & ~before or set_aside & ~(before | aside))
        changed = bool(self.kinds[row] != kind or before != free)
        self.kinds[row], self.free[row], self.set_aside[row] = kind, free, set_aside
        return changed, more

    def remove(self, name: str) -> None:
        row = self.row_of.pop(name)
        del self._by_name[bisect_left(self._by_name, (natural(name), row))]
        self.names[row] = None
        self.kinds[row] = NOT_USABLE
        self.free[row] = self.set_aside[row] = 0
        self._unused.append(row)
        self._name_ranks, self._looked_up = None, ()

    def rows_of(self, names: Sequence[str]) -> Ints:
        """The rows of these nodes, -1 for an unknown one. Read only."""
        # `prioritize` names the nodes that `filter` let through; and `filter` those of the last
        # call, if kube-scheduler looks at all nodes. To compare 15,000 names one after the other
        # takes a tenth of the time that it takes to look them up.
        for known, rows in self._looked_up:
            if names == known:
                self.note_rows(known, rows)
                return rows
        # No generator: its 5,000 steps would cost more than the rest of a filter call.
        rows = np.fromiter(map(self.row_of.get, names, repeat(-1)), np.int64, len(names))
        self.note_rows(names, rows)
        return rows

    def note_rows(self, names: Sequence[str], rows: Ints) -> None:
        """Remember the *rows* of these nodes, which are asked for again."""
        others = [each for each in self._looked_up if each[0] is not names]
        self._looked_up = ((names, rows), *others[: _KEPT - 1])

    def name_ranks(self) -> Ints:
        """[rows] the place of each node among all by its name, node-2 before node-10."""
        if self._name_ranks is None:
            ranks = np.zeros(len(self.names), dtype=np.int64)
            ranks[[row for _, row in self._by_name]] = np.arange(len(self._by_name))
            self._name_ranks = ranks
        return self._name_ranks

    def most_of_size(self, size: int) -> int:
        """An upper bound for the sets of *size* GPUs that are free at once, whatever their links,
        even for a claimant that sees all reserved GPUs."""
        idle = self.free[: len(self)] | self.set_aside[: len(self)]
        return int((popcount(idle) // size).sum())

    def pods_that_fit(self, needs: ResourceList) -> Ints:
        """[rows] as `ResourcesLeft.pods_that_fit`."""
        return self.left.pods_that_fit(needs, len(self))

    def fits(self, needs: ResourceList) -> Bools:
        """[rows] as `ResourcesLeft.fits`."""
        return self.left.fits(needs, len(self))

    def _grow(self) -> None:
        for attribute in _ARRAYS:
            old, filler = getattr(self, attribute), NOT_USABLE if attribute == "kinds" else 0
            setattr(self, attribute, np.concatenate([old, np.full_like(old, filler)]))
        self.left.grow()
