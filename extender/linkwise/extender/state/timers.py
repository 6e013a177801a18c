"""When the core has to decide even if nothing changes until then.

And how it gives up its lock during long work that does not need the cache.
"""

from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush
from itertools import chain
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Agenda:
    """Knows every time that a part of the core waits for: each takes it in its constructor."""

    def __init__(self) -> None:
        self._parts: list[Callable[[], Iterable[float]]] = []

    def ask(self, times: Callable[[], Iterable[float]]) -> None:
        """*times* returns what the part waits for at present; a time may be in the past."""
        self._parts.append(times)

    def times(self) -> Iterable[float]:
        return chain.from_iterable(times() for times in self._parts)


class Timers(Generic[Key]):
    """At most one moment for each of thousands of keys; setting a key again moves its moment. The
    next one comes from a heap, without a search."""

    def __init__(self, agenda: Agenda) -> None:
        agenda.ask(self._earliest)
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

    def _earliest(self) -> Iterable[float]:
        while self._heap:
            at, _, key = self._heap[0]
            if self._at.get(key) == at:
                return (at,)
            heappop(self._heap)
        return ()

    def _tidy(self) -> None:
        self._heap = [entry for entry in self._heap if self._at.get(entry[2]) == entry[0]]
        heapify(self._heap)


T = TypeVar("T")

Pause = Callable[[], None]
"""Releases the core to the callers that wait for it, and returns once it is free again."""


class RunUnlocked(Protocol):
    """Runs *work*; other callers may use the core meanwhile."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


def nothing() -> None:
    """The work of a pause: others use the core meanwhile."""


def run_inline(work: Callable[[], T]) -> T:
    """Runs *work* without releasing the core: for a core with one user."""
    return work()
