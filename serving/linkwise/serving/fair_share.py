"""Runs requests one at a time, sources in turn, within a share of a processor's time.

Views cost processor time that kube-scheduler's calls need, and any client may request them. So a
client that sends many requests waits longer, and delays each other client by at most one answer.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition

from linkwise.serving.gone import GoneError
from linkwise.serving.turns import Turns

_LOOK_SECONDS = 0.1  # between two checks whether the caller still waits


class FairShare:
    """Thread-safe. *share* is a share of one processor's time, more than 0 and at most 1."""

    def __init__(
        self,
        share: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
    ) -> None:
        self._pause_for = 1 / share - 1  # seconds, for each second of work
        self._clock, self._cost = clock, cost
        self._waiting: Turns[object] = Turns()
        self._busy, self._free_at = False, 0.0
        self._changed = Condition()

    @contextmanager
    def of(self, source: str, waits: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """A context in which only *source* runs. Raises GoneError if *waits* says that the caller
        no longer waits."""
        self._begin(source, waits)
        began = self._cost()
        try:
            yield
        finally:
            self._end(self._cost() - began)

    def _begin(self, source: str, waits: Callable[[], bool]) -> None:
        ticket = object()
        with self._changed:
            self._waiting.add(source, ticket)
            while not self._is_next(ticket):
                self._changed.wait(_LOOK_SECONDS)
                if not waits():
                    self._waiting.drop(ticket)
                    self._changed.notify_all()
                    raise GoneError
            self._waiting.take()
            self._busy = True

    def _is_next(self, ticket: object) -> bool:
        free = not self._busy and self._clock() >= self._free_at
        return free and next(iter(self._waiting)) is ticket

    def _end(self, cost: float) -> None:
        with self._changed:
            self._busy = False
            self._free_at = self._clock() + cost * self._pause_for
            self._changed.notify_all()
