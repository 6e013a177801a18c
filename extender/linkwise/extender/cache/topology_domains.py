"""Which domain every node is in, at every level that somebody asks for: label values as numbers.

Asked of arrays by row, as everything about 5,000 nodes. A level that nobody has asked for before is
read for all rows, which takes a millisecond at 5,000, and kept up to date from then on.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
NO_DOMAIN = -1
_MOST_LEVELS = 64  # kept; pods may ask for any label
_NO_LABELS: Mapping[str, str] = {}


class _Level:
    def __init__(self, key: str, labels: Sequence[Mapping[str, str]]) -> None:
        self.key = key
        self.values: list[str] = []
        self.number_of: dict[str, int] = {}
        self.numbers: Ints = np.full(max(len(labels), 64), NO_DOMAIN)
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
        self._levels: dict[str, _Level] = {}
        self._kept: frozenset[str] = frozenset()

    def keep(self, levels: Iterable[str]) -> None:
        """These are asked for again and again; others are forgotten when there are too many."""
        self._kept |= frozenset(levels)
        for key in self._kept:
            self._level(key)

    def put(self, row: int, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """The node of this row has these labels now."""
        while row >= len(self._labels):
            self._labels.append(_NO_LABELS)
        if self._labels[row] != labels:
            self._labels[row] = labels
            for level in self._levels.values():
                level.put(row, labels)

    def numbers(self, key: str) -> Ints:
        """[rows] the domain of each node, NO_DOMAIN without the label. Not to be written to."""
        return self._level(key).numbers[: len(self._labels)]

    def values(self, key: str) -> Sequence[str]:
        """The names of the domains by number; more may be added to it."""
        return self._level(key).values

    def known(self, levels: Iterable[str]) -> tuple[str, ...]:
        """Those of these levels that some node is in."""
        return tuple(key for key in levels if (self.numbers(key) != NO_DOMAIN).any())

    def nearest(self, levels: Sequence[str], rows: Ints) -> int:
        """The first of these levels that one of these rows is in; their number, where none is."""
        in_it = (n for n, key in enumerate(levels) if (self.numbers(key)[rows] != NO_DOMAIN).any())
        return next(in_it, len(levels))

    def shared(self, levels: Iterable[str], rows: Sequence[int]) -> tuple[str, str]:
        """The first of these levels at which all rows are in one domain, and that domain's name;
        both empty where there is none."""
        places = np.array(rows)
        for key in levels:
            numbers = self.numbers(key)[places]
            if numbers[0] != NO_DOMAIN and (numbers == numbers[0]).all():
                return key, self.values(key)[int(numbers[0])]
        return "", ""

    def _level(self, key: str) -> _Level:
        found = self._levels.get(key)
        if found is None:
            if len(self._levels) >= _MOST_LEVELS:
                self._levels = {k: v for k, v in self._levels.items() if k in self._kept}
            found = self._levels[key] = _Level(key, self._labels)
        return found
