"""The domain of every node at every requested level: label values as numbers.

The numbers are arrays by row, as for everything about 5,000 nodes. At its first request a level is
read for all rows, which takes a millisecond at 5,000; from then on it is kept up to date.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

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
