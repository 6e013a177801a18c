"""Timers for thousands of keys: the next moment comes from a heap, without a search."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Timers(Generic[Key]):
    """At most one moment for each key; setting a key again moves its moment."""

    def __init__(self) -> None:
        self._at: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []  # may contain moments that were moved
        self._number = 0  # breaks ties, so that keys need no order

    def __setitem__(self, key: Key, at: float) -> None:
        if self._at.get(key) != at:
            self._at[key] = at
            self._number += 1
            heappush(self._heap, (at, self._number, key))
            if len(self._heap) > 2 * len(self._at) + 64:
                self._tidy()

    def get(self, key: Key) -> float | None:
        return self._at.get(key)

    def drop(self, key: Key) -> None:
        self._at.pop(key, None)

    def take(self, now: float) -> list[Key]:
        """Remove and return the keys whose moment has come, the earliest first."""
        taken = []
        while self._heap and self._heap[0][0] <= now:
            at, _, key = heappop(self._heap)
            if self._at.get(key) == at:
                del self._at[key]
                taken.append(key)
        return taken

    def next(self) -> float | None:
        """The earliest moment; None if no key is set."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._at.get(key) == at:
                return at
            heappop(self._heap)
        return None

    def _tidy(self) -> None:
        self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
        heapify(self._heap)
