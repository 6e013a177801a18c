"""What each node is worth to one pod, and the best node.

Pods come by the thousand and are equal, and each plan changes one node. So the values of all nodes
are cached per request, and updated for the nodes that changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.api.records import ResourceList
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import Floats, GpuRequest, MachineKind
from linkwise.extender.cache.node_table import NOT_USABLE, Bools, Ints, NodeTable, popcount
from linkwise.extender.cache.row_log import LONGEST
from linkwise.extender.placement.nodes.nodes_view import NodesView
from linkwise.extender.placement.result import NoRoom, Spot
from linkwise.topology.machine.model import MAX_GPUS

_MOST_WISHES = 64
_NONE = (-np.inf, 0.0, 1.0)  # for a node without a suitable set
_FEW = 64  # rows: so many are judged one by one, more by kind


@dataclass(slots=True)
class NodeWorth:
    """[rows] the quality of the best suitable set (-inf: there is none), the damage of taking it
    (0: there is none), and the share of the node's GPUs that is free. `of` caches them by kind and
    free GPUs."""

    quality: Floats
    damage: Floats
    free_share: Floats
    of: dict[int, tuple[float, float, float]]
    seen: int = -1  # how many entries of the log are included


class BestNode:
    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._known: dict[GpuRequest, NodeWorth] = {}

    def find(
        self, request: GpuRequest, needs: ResourceList, nodes: Bools, view: NodesView
    ) -> Spot | NoRoom:
        """The best of *nodes* [rows] with room for *needs*."""
        worth, rows = self.worth_in(view, request), view.table()
        count = len(rows)
        fits = nodes & (rows.pods[:count] > 0) & (worth.quality[:count] > -np.inf)
        for left, need in (
            (rows.milli_cpu, needs.milli_cpu),
            (rows.memory, needs.memory),
            (rows.gpus, needs.gpus),
        ):
            if need:
                fits &= left[:count] >= need
        places = np.flatnonzero(fits)
        if not len(places):
            return NoRoom(1, 0, "", 0)
        row = self._first(worth, places)
        name = rows.names[row] or ""
        gpus = self._cache.nodes[name].take(request, int(rows.free[row]))
        assert gpus is not None, "its quality says that there is a set"
        return Spot(name, gpus)

    def among(self, request: GpuRequest, names: Sequence[str], view: NodesView) -> str | None:
        """The best of the named nodes, on which everything but the GPUs is known to fit."""
        worth, cache = self.worth_in(view, request), self._cache
        places = cache.rows.rows_of(names)
        places = places[places >= 0]
        places = places[worth.quality[places] > -np.inf]
        return cache.rows.names[self._first(worth, places)] if len(places) else None

    def _first(self, worth: NodeWorth, places: Ints) -> int:
        """The best of the rows *places*, which are not empty."""
        ranks = self._cache.rows.name_ranks()
        return first_of(places, -worth.quality, worth.damage, worth.free_share, ranks)

    def worth_in(self, view: NodesView, request: GpuRequest) -> NodeWorth:
        """The values of the nodes of *view*; the caller must not change them."""
        worth = self._worth(request)
        if not view.changed:
            return worth
        shown = NodeWorth(
            worth.quality.copy(), worth.damage.copy(), worth.free_share.copy(), worth.of
        )
        self._judge(request, shown, view.changed, view.table())
        return shown

    def _worth(self, request: GpuRequest) -> NodeWorth:
        cache = self._cache
        worth = self._known.get(request)
        if worth is None or len(worth.quality) != len(cache.rows.kinds):
            if len(self._known) >= _MOST_WISHES:
                self._known.clear()
            size = len(cache.rows.kinds)
            worth = NodeWorth(np.full(size, -np.inf), np.zeros(size), np.ones(size), {})
            self._known[request] = worth
        log = cache.settled_rows
        count = len(cache.rows)
        changed = range(count) if worth.seen < 0 else [*set(log.since(worth.seen, count))]
        worth.seen = log.generation
        if len(worth.of) > LONGEST:
            worth.of.clear()
        self._judge(request, worth, changed, cache.rows)
        return worth

    def _judge(
        self, request: GpuRequest, worth: NodeWorth, rows: Sequence[int], table: NodeTable
    ) -> None:
        if len(rows) > _FEW:
            self._judge_by_kind(request, worth, np.array(rows), table)
            return
        for row in rows:
            worth.quality[row], worth.damage[row], worth.free_share[row] = self._of(
                request, worth, int(table.kinds[row]), int(table.free[row])
            )

    def _judge_by_kind(
        self, request: GpuRequest, worth: NodeWorth, rows: Ints, table: NodeTable
    ) -> None:
        worth.quality[rows], worth.damage[rows], worth.free_share[rows] = _NONE
        for kind, places, free in by_kind(self._cache, table, rows):
            of_kind = rows[places]
            worth.quality[of_kind] = kind.qualities(request, free)
            worth.damage[of_kind] = kind.damages_within(request, free)
            worth.free_share[of_kind] = popcount(free) / kind.all_gpus.bit_count()

    def _of(
        self, request: GpuRequest, worth: NodeWorth, number: int, free: int
    ) -> tuple[float, float, float]:
        if number == NOT_USABLE:
            return _NONE
        key = number << MAX_GPUS | free
        known = worth.of.get(key)
        if known is None:
            kind, masks = self._cache.kinds[number], np.array([free])
            quality = float(kind.qualities(request, masks)[0])
            damage = float(kind.damages_within(request, masks)[0])
            share = free.bit_count() / kind.all_gpus.bit_count()
            known = worth.of[key] = (quality, damage, share)
        return known


def by_kind(cache: Cache, table: NodeTable, rows: Ints) -> Iterator[tuple[MachineKind, Ints, Ints]]:
    """The kinds among these rows (-1: unknown): kind, places in *rows*, masks of free GPUs."""
    kinds = np.where(rows >= 0, table.kinds[rows], NOT_USABLE)
    for number in np.flatnonzero(np.bincount(kinds[kinds != NOT_USABLE])):
        places = np.flatnonzero(kinds == number)
        yield cache.kinds[number], places, table.free[rows[places]]


def first_of(places: Ints, *keys: NDArray[np.generic]) -> int:
    """The one of *places*, which are not empty, that is first by these keys, one after the other;
    the rest is not sorted."""
    for key in keys:
        if len(places) > 1:
            of_places = key[places]
            places = places[of_places == of_places.min()]
    return int(places[0])
