"""Things of several sources, such as clients or namespaces: one of each source in turn.

A source with thousands of things delays each other source by one of them.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


@dataclass(slots=True)
class _Waiting(Generic[Item]):
    """Those of one source, each in the order in which it came."""

    urgent: dict[Item, None] = field(default_factory=dict)
    others: dict[Item, None] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Item]:
        return chain(self.urgent, self.others)

    def __bool__(self) -> bool:
        return bool(self.urgent or self.others)

    def remove(self, item: Item) -> None:
        del (self.urgent if item in self.urgent else self.others)[item]


class Turns(Generic[Item]):
    """Each item is there once, and always of the same source."""

    def __init__(self) -> None:
        self._source: dict[Item, str] = {}
        self._waiting: dict[str, _Waiting[Item]] = {}  # by source; the next source comes first

    def __len__(self) -> int:
        return len(self._source)

    def __iter__(self) -> Iterator[Item]:
        """In the order in which `take` returns them."""
        sources = deque(iter(waiting) for waiting in self._waiting.values())
        while sources:
            items = sources.popleft()
            for item in items:
                yield item
                sources.append(items)
                break

    def add(self, source: str, item: Item, *, urgent: bool = False) -> None:
        """*urgent*: before those of the same source that are not. An item that is there keeps its
        place, unless it becomes urgent."""
        waiting = self._waiting.setdefault(source, _Waiting())
        if item in waiting.urgent or (item in waiting.others and not urgent):
            return
        waiting.others.pop(item, None)
        (waiting.urgent if urgent else waiting.others)[item] = None
        self._source[item] = source

    def take(self) -> Item:
        """Remove and return the next item; its source goes behind all others. Not of an empty
        one."""
        source, waiting = next(iter(self._waiting.items()))
        item = next(iter(waiting))
        self.drop(item)
        if waiting:
            self._waiting[source] = self._waiting.pop(source)
        return item

    def drop(self, item: Item) -> None:
        source = self._source.pop(item, None)
        if source is not None:
            self._waiting[source].remove(item)
            if not self._waiting[source]:
                del self._waiting[source]
