"""What happens while a search for room lets others in."""

from collections.abc import Callable
from typing import TypeVar

from tests.extender.cluster import Cluster

T = TypeVar("T")


class Meanwhile:
    """Lets something happen each time that others are let in, once the search has its copy."""

    def __init__(self, at: Cluster, *happens: Callable[[], object] | None) -> None:
        self.times, self._happens = 0, list(happens)
        at.core.set_unlocker(self)

    def __call__(self, work: Callable[[], T], /) -> T:
        self.times += 1
        happens = self._happens.pop(0) if self._happens else None
        if happens is not None:
            happens()
        return work()
