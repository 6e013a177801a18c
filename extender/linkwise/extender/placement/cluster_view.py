"""What a search for a place goes by: every node as it was at one moment, and the domains above it.

Copies of a few arrays, made in well under a millisecond: the search takes its time on them while
the books go on, and a question "what if these GPUs were free?" is asked of a copy too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from linkwise.extender.api.spans import NODE
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import MachineKind
from linkwise.extender.cache.node_table import Ints, NodeTable
from linkwise.extender.cache.topology_domains import NO_DOMAIN


@dataclass(frozen=True, slots=True)
class Level:
    key: str
    numbers: Ints  # [rows] the domain of each node; NO_DOMAIN: the node is in none
    values: Sequence[str | None]  # by number

    @property
    def apart(self) -> Ints:
        """The same, with every node that is in no domain in one of its own."""
        own = len(self.values) + np.arange(len(self.numbers))
        return np.where(self.numbers == NO_DOMAIN, own, self.numbers)


@dataclass(frozen=True, slots=True)
class ClusterView:
    rows: NodeTable
    kinds: Sequence[MachineKind]
    levels: tuple[Level, ...]  # above the node, nearest first; those no node is in are left out

    def level(self, key: str) -> Level:
        """Every node is a domain for itself; a level that no node is in has none."""
        if key == NODE:
            return Level(NODE, np.arange(len(self.rows)), self.rows.names)
        nowhere = Level(key, np.full(len(self.rows), NO_DOMAIN), ())
        return next((level for level in self.levels if level.key == key), nowhere)


def cluster_view(cache: Cache, rows: NodeTable, levels: Iterable[str]) -> ClusterView:
    """All of *books* as it is now; *rows* is a copy of its rows, maybe with more that is free."""
    return ClusterView(rows, tuple(cache.kinds), tuple(_levels(cache, levels)))


def _levels(cache: Cache, keys: Iterable[str]) -> Iterable[Level]:
    for key in keys:
        numbers = cache.domains.numbers(key)
        if (numbers != NO_DOMAIN).any():
            yield Level(key, numbers.copy(), cache.domains.values(key))
