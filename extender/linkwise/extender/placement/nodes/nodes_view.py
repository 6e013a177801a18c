"""The nodes as one claimant may use them: what is free, and what is reserved and open to it."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.node_table import NodeTable


@dataclass(frozen=True, slots=True)
class NodesView:
    """A view is a value: a search reads it, and nothing in the cache changes meanwhile."""

    key: Hashable  # equal for views that show the same as long as the cache is the same
    table: Callable[[], NodeTable]  # the nodes as they are now; the caller must not change it
    changed: tuple[int, ...] = ()  # rows that may differ from the cache's own table


def as_it_is(cache: Cache) -> NodesView:
    """Only what is free."""
    return NodesView(None, lambda: cache.rows)


def as_if(table: NodeTable, changed: tuple[int, ...]) -> NodesView:
    """A supposition: *table* is a copy that differs in the rows *changed*."""
    return NodesView(object(), lambda: table, changed)
