"""How the core lets others use it while it does what takes long and needs no cache."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")

Pause = Callable[[], None]
"""Lets those who wait for the core use it, and returns once it is free again."""


class RunUnlocked(Protocol):
    """Does a piece of work, and may let others use the core meanwhile."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


def run_inline(work: Callable[[], T]) -> T:
    """Does the work at once and lets nobody in: for a core with one user."""
    return work()
