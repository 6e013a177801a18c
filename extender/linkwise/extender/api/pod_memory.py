"""Everything that parts of the core remember of a pod by its uid, forgotten by one call."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class PodMemory:
    """A part takes its dicts and sets from here in its constructor, and never replaces them."""

    def __init__(self) -> None:
        self._forget: list[Callable[[str], object]] = []

    def dict(self) -> dict[str, T]:
        made: dict[str, T] = {}
        self.ask(lambda uid: made.pop(uid, None))
        return made

    def set(self) -> set[str]:
        made: set[str] = set()
        self.ask(made.discard)
        return made

    def ask(self, forget: Callable[[str], object]) -> None:
        """*forget* is called with the uid of each pod that is gone, known or not."""
        self._forget.append(forget)

    def gone(self, uid: str) -> None:
        for forget in self._forget:
            forget(uid)
