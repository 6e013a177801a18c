"""What a caller is answered, free of the protocol that carries it."""

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
    parting: bool = False  # the connection is to end, so that the next call goes to who can answer


class Calls(Protocol):
    """Safe for threads."""

    def refusal(self, method: str, path: str, length: int) -> Reply | None:
        """Of a call whose body need not be read, as of an unknown path."""

    def waits_long(self, path: str) -> bool:
        """Whether an answer takes its time, so that others of the connection go on beside it."""

    def reply(self, path: str, body: bytes, waits: Waits) -> Reply | None:
        """None where the caller has gone: then nothing was done."""


def plain(status: int, text: str) -> Reply:
    return Reply(status, f"linkwise: {text}\n".encode(), "text/plain; charset=utf-8")
