"""The input of a search: every node at one moment, and the domains above the nodes.

A ClusterView copies a few arrays, in well under a millisecond. A long search works on the copy
while the cache changes, and a what-if ("what if these GPUs were free?") searches a changed copy.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.extender.state.cache.node_table import NO_DOMAIN, Ints, NodeTable
from linkwise.pods.spans import NODE


@dataclass(frozen=True, slots=True)
class NodesView:
    """The nodes as one claimant may use them: free GPUs, and reserved GPUs that are open to it.

    A view is a value: a search reads it, and the cache does not change meanwhile.
    """

    key: Hashable  # equal for views with the same GPUs, as long as the cache is the same
    table: Callable[[], NodeTable]  # the nodes as they are now; the caller must not change it
    changed: tuple[int, ...] = ()  # rows that may differ from the cache's own table
    first: Sequence[str] = ()  # these nodes come first where nothing but the name decides


def as_it_is(cache: Cache) -> NodesView:
    """The view with free GPUs only."""
    return NodesView(None, lambda: cache.rows)


def as_if(table: NodeTable, changed: tuple[int, ...]) -> NodesView:
    """A supposition: *table* is a copy that differs in the rows *changed*."""
    return NodesView(object(), lambda: table, changed)


@dataclass(frozen=True, slots=True)
class Level:
    key: str
    numbers: Ints  # [rows] the number of each node's domain; NO_DOMAIN: the node is in none
    values: Sequence[str | None]  # number -> the domain's name

    @property
    def apart(self) -> Ints:
        """`numbers`, where each node without a domain gets one of its own."""
        own = len(self.values) + np.arange(len(self.numbers))
        return np.where(self.numbers == NO_DOMAIN, own, self.numbers)


Counts = tuple[int, ...]
"""Domains of each level, the widest first."""


def domain_counts(levels: Sequence[Level], rows: Sequence[int]) -> Counts:
    """How many domains of each of these *levels*, nearest first, have one of *rows*. A node without
    a domain counts as one of its own."""
    places = np.array(rows, dtype=np.int64)
    return tuple(len(np.unique(level.apart[places])) for level in reversed(levels))


@dataclass(slots=True)
class Effort:
    """How many looks at one pod set on one node searches took, at some 0.4 µs each."""

    looks: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    rows: NodeTable
    kinds: Sequence[MachineKind]
    levels: tuple[Level, ...]  # above the node, nearest first; only those with a node in a domain
    effort: Effort = field(default_factory=Effort, compare=False)

    def level(self, key: str) -> Level:
        """The level of *key*. At the level `node`, each node is its own domain; an unknown level
        has no domains."""
        if key == NODE:
            return Level(NODE, np.arange(len(self.rows)), self.rows.names)
        nowhere = Level(key, np.full(len(self.rows), NO_DOMAIN), ())
        return next((level for level in self.levels if level.key == key), nowhere)


def cluster_view(
    cache: Cache, rows: NodeTable, levels: Iterable[str], effort: Effort | None = None
) -> ClusterView:
    """A view of *cache* as it is now; *rows* is a copy of its rows, maybe with more GPUs free.
    Searches add to *effort*."""
    kinds = tuple(cache.kinds)
    return ClusterView(rows, kinds, cluster_levels(cache, levels), effort or Effort())


def cluster_levels(cache: Cache, keys: Iterable[str]) -> tuple[Level, ...]:
    """Those of *keys* of which any node is in a domain."""
    numbers = ((key, cache.domains.numbers(key)) for key in keys)
    return tuple(
        Level(key, of_rows.copy(), cache.domains.values(key))
        for key, of_rows in numbers
        if (of_rows != NO_DOMAIN).any()
    )
