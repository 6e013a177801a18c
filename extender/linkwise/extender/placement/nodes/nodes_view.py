"""The nodes as one claimant may use them: free GPUs, and reserved GPUs that are open to it."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.node_table import NodeTable


@dataclass(frozen=True, slots=True)
class NodesView:
    """A view is a value: a search reads it, and the cache does not change meanwhile."""

    key: Hashable  # equal for views with the same GPUs, as long as the cache is the same
    table: Callable[[], NodeTable]  # the nodes as they are now; the caller must not change it
    changed: tuple[int, ...] = ()  # rows that may differ from the cache's own table


def as_it_is(cache: Cache) -> NodesView:
    """The view with free GPUs only."""
    return NodesView(None, lambda: cache.rows)


def as_if(table: NodeTable, changed: tuple[int, ...]) -> NodesView:
    """A supposition: *table* is a copy that differs in the rows *changed*."""
    return NodesView(object(), lambda: table, changed)
