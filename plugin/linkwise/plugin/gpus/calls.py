"""Bounds calls to the driver: a call may hang forever, its caller must not.

A thread of its own makes the calls, one after the other. If a call does not return in time, `Calls`
leaves it behind with its thread, its caller goes on, and the next call gets another thread. `Calls`
never makes a call a second time while it is still running, so there are never more threads than
kinds of calls.
"""

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

T = TypeVar("T")


class NoAnswerError(Exception):
    """The call has not returned; it has been running for `seconds`."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what}: no answer for {seconds:.0f} s")
        self.seconds = seconds


class _Call:
    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.began, self.done = make, time.monotonic(), Event()
        self.left_behind = False
        self.answer: Any = None
        self.error: BaseException | None = None


class _Worker:
    def __init__(self) -> None:
        self.queue: SimpleQueue[_Call | None] = SimpleQueue()
        Thread(target=self._run, name="driver", daemon=True).start()

    def _run(self) -> None:
        while (call := self.queue.get()) is not None:
            try:
                call.answer = call.make()
            except BaseException as error:  # the caller handles it
                call.error = error
            call.done.set()
            if call.left_behind:
                return


class Calls:
    """For one calling thread."""

    def __init__(self) -> None:
        self._worker: _Worker | None = None
        self._running: dict[str, _Call] = {}  # left behind, by name

    @property
    def stuck(self) -> bool:
        """Whether some call has been left behind and has not returned."""
        return any(not call.done.is_set() for call in self._running.values())

    def run(self, what: str, make: Callable[[], T], *, seconds: float) -> T:
        """What *make* returns or raises, within *seconds*.

        Raises NoAnswerError if it does not return in time. If an earlier call of the same name is
        still running, raises it without calling *make*.
        """
        earlier = self._running.get(what)
        if earlier is not None:
            if not earlier.done.is_set():
                raise NoAnswerError(what, time.monotonic() - earlier.began)
            del self._running[what]  # its answer is out of date
        if self._worker is None:
            self._worker = _Worker()
        call = _Call(make)
        self._worker.queue.put(call)
        if not call.done.wait(seconds):
            self._leave(what, call)
            raise NoAnswerError(what, time.monotonic() - call.began)
        if call.error is not None:
            raise call.error
        answer: T = call.answer
        return answer

    def _leave(self, what: str, call: _Call) -> None:
        call.left_behind = True
        self._running[what] = call
        if self._worker is not None:
            self._worker.queue.put(None)  # if it has just returned, its thread still ends
        self._worker = None

    def close(self) -> None:
        """End the thread, if it is idle."""
        if self._worker is not None:
            self._worker.queue.put(None)
            self._worker = None
