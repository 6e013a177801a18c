"""How the core gives up its lock during long work that does not need the cache."""

from collections.abc import Callable
from typing import Protocol, TypeVar

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
