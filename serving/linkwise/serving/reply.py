"""Replies to callers, independent of the protocol."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Waits = Callable[[], bool]  # whether the caller still waits for its answer


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes
    content_type: str = "application/json"
    timing: str = ""  # a Server-Timing header: the metric has buckets, a benchmark wants each call
    parting: bool = False  # end the connection, so that the next call reaches a ready replica


class Calls(Protocol):
    """The calls of a port. Thread-safe."""

    def refusal(self, method: str, path: str, length: int) -> Reply | None:
        """The reply to a call whose body need not be read, such as one to an unknown path."""

    def waits_long(self, path: str) -> bool:
        """Whether the answer takes long, so that other calls of the connection need a thread."""

    def reply(self, path: str, body: bytes, waits: Waits) -> Reply | None:
        """None if the caller has gone: then nothing was done."""


def plain(status: int, text: str) -> Reply:
    return Reply(status, f"linkwise: {text}\n".encode(), "text/plain; charset=utf-8")
