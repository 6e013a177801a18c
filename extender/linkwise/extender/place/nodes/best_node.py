"""What each node is worth to one pod, and the best node.

Pods come by the thousand and are equal, and each plan changes one node. So the values of all nodes
are cached per request, and updated for the nodes that changed.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.place.cluster_view import NodesView
from linkwise.extender.place.criteria import OF_NODES
from linkwise.extender.place.nodes.node_filters import puts_off
from linkwise.extender.place.request import NoRoom, Spot
from linkwise.extender.place.room import LatestRoom, Left, PodMix, Room
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import ENOUGH, Floats, GpuRequest, MachineKind
from linkwise.extender.state.cache.node_table import (
    BY_KUBELET,
    NOT_USABLE,
    Bools,
    Ints,
    NodeTable,
    popcount,
)
from linkwise.extender.state.records import PodRecord, ResourceList
from linkwise.topology.while_alive import while_alive

_MOST_WISHES = 64
OfSet = tuple[float, int, int, float, float]
"""Quality, set, closeness, damage, share of the node's GPUs that is free"""
_NONE: OfSet = (-np.inf, 0, 0, 0.0, 1.0)  # for a node without a suitable set
_FEW = 64  # rows: so many are judged one by one, more by kind


@dataclass(slots=True)
class NodeWorth:
    """[rows] the quality of the best suitable set (-inf: there is none), the set (0: none), how
    closely it is linked, the room that later pods lose by it in GPUs, its damage to them in GB/s
    (0: there is no set), and the share of the node's GPUs that is free."""

    quality: Floats
    taken: Ints
    closeness: Ints
    lost_room: Floats
    damage: Floats
    free_share: Floats
    room: Room | None = None  # by which the lost room was judged
    seen: tuple[int, int] | None = None  # how many entries of the logs are included

    @property
    def has_preferred(self) -> NDArray[np.int8]:
        return (self.quality >= ENOUGH).astype(np.int8)

    @classmethod
    def of_none(cls, rows: int) -> "NodeWorth":
        quality, taken = np.full(rows, -np.inf), np.zeros(rows, dtype=np.int64)
        close = taken.copy()
        return cls(quality, taken, close, np.zeros(rows), np.zeros(rows), np.ones(rows))

    def put(self, rows: Ints, kind: MachineKind, request: GpuRequest, free: Ints) -> None:
        """Everything but the lost room of *rows*, which are of this kind."""
        self.quality[rows] = kind.qualities(request, free)
        self.taken[rows] = taken = kind.taken_within(request, free)
        self.closeness[rows] = kind.closeness(request, taken)
        self.damage[rows] = kind.damages(free, taken)
        self.free_share[rows] = popcount(free) / kind.all_gpus.bit_count()

    def copy(self) -> "NodeWorth":
        return NodeWorth(
            self.quality.copy(),
            self.taken.copy(),
            self.closeness.copy(),
            self.lost_room.copy(),
            self.damage.copy(),
            self.free_share.copy(),
        )


class BestNode:
    def __init__(self, cache: Cache, mix: PodMix, defects: list[Exception]) -> None:
        self._cache, self._room, self._defects = cache, LatestRoom(mix), defects
        self._known: dict[tuple[GpuRequest, ResourceList], NodeWorth] = {}

    def find(
        self,
        request: GpuRequest,
        needs: ResourceList,
        nodes: Bools,
        view: NodesView,
    ) -> Spot | NoRoom:
        """The best of *nodes* [rows] with room for *needs*."""
        worth, rows = self.worth_in(view, request, needs), view.table()
        fits = nodes & rows.fits(needs) & (worth.quality[: len(rows)] > -np.inf)
        places = np.flatnonzero(fits)
        if not len(places):
            return NoRoom(1, 0, "", 0)
        row = self.first(worth, places)
        name = rows.names[row] or ""
        gpus = self._cache.nodes[name].take(request, int(rows.free[row]))
        assert gpus is not None, "its quality says that there is a set"
        return Spot(name, gpus)

    def among(
        self,
        request: GpuRequest,
        needs: ResourceList,
        names: Sequence[str],
        view: NodesView,
    ) -> str | None:
        """The best of the named nodes, on which everything but the GPUs is known to fit."""
        worth, cache = self.worth_in(view, request, needs), self._cache
        places = cache.rows.rows_of(names)
        places = places[places >= 0]
        places = places[
            (worth.quality[places] > -np.inf) & (cache.rows.offering[places] == BY_KUBELET)
        ]
        return cache.rows.names[self.first(worth, places)] if len(places) else None

    def first(self, worth: NodeWorth, places: Ints) -> int:
        """The best of the rows *places*, which are not empty."""
        return first_of(places, *order_of(worth, self._cache.rows.name_ranks()))

    def worth_in(self, view: NodesView, request: GpuRequest, needs: ResourceList) -> NodeWorth:
        """The values of the nodes of *view*; the caller must not change them."""
        room = self.room()
        worth = self._worth(room, request, needs)
        if not view.changed:
            return worth
        shown, changed = worth.copy(), np.array(view.changed)
        self._judge(request, needs, shown, changed, view.table())
        self._judge_room(room, needs, shown, changed, view.table())
        return shown

    def room(self) -> Room:
        """By what lost room is judged now."""
        cache = self._cache
        changes = cache.settled_rows.generation + cache.rows.charged.generation
        try:
            return self._room.at(changes, cache.kinds, self._left)
        except Exception as defect:  # lost room only orders nodes
            self._defects.append(defect)
            return self._room.at(changes, cache.kinds, self._left)

    def _left(self, resources: Collection[str]) -> Left:
        cache = self._cache
        rows = np.flatnonzero(cache.rows.free[: len(cache.rows)])
        divided = np.array([cache.nodes[name].row for name in cache.divided], dtype=np.int64)
        return left_on(cache, cache.rows, np.union1d(rows, divided), resources)

    def _worth(self, room: Room, request: GpuRequest, needs: ResourceList) -> NodeWorth:
        cache = self._cache
        worth = self._known.get((request, needs))
        if worth is None or len(worth.quality) != len(cache.rows.kinds):
            if len(self._known) >= _MOST_WISHES:
                self._known.clear()
            worth = self._known[request, needs] = NodeWorth.of_none(len(cache.rows.kinds))
        changed = self._changed_since(worth)
        self._judge(request, needs, worth, changed, cache.rows)
        if worth.room is not room:
            worth.room, changed = room, np.arange(len(cache.rows))
        self._judge_room(room, needs, worth, changed, cache.rows)
        return worth

    def _changed_since(self, worth: NodeWorth) -> Ints:
        """The rows whose GPUs, CPU, memory or shares changed since *worth* was brought up to
        date."""
        logs, count = (self._cache.settled_rows, self._cache.rows.charged), len(self._cache.rows)
        seen = worth.seen
        worth.seen = logs[0].generation, logs[1].generation
        if seen is None:
            return np.arange(count)
        rows = {
            row for log, since in zip(logs, seen, strict=True) for row in log.since(since, count)
        }
        return np.array([*rows], dtype=np.int64)

    def _judge(
        self,
        request: GpuRequest,
        needs: ResourceList,
        worth: NodeWorth,
        rows: Ints,
        table: NodeTable,
    ) -> None:
        """Everything but the lost room."""
        if len(rows) > _FEW:
            self._judge_by_kind(request, worth, rows, table)
        else:
            for row in rows.tolist():
                found = self._of(request, int(table.kinds[row]), int(table.free[row]))
                worth.quality[row], worth.taken[row], worth.closeness[row] = found[:3]
                worth.damage[row], worth.free_share[row] = found[3:]
        # A pod on a dead GPU counts until it is gone, though the kubelet offers that GPU no more.
        # kube-scheduler counts it too, but not the plans.
        short = (table.offering[rows] == BY_KUBELET) & (table.left.gpus[rows] < needs.gpus)
        worth.quality[rows[short]] = -np.inf

    def _judge_by_kind(
        self, request: GpuRequest, worth: NodeWorth, rows: Ints, table: NodeTable
    ) -> None:
        worth.quality[rows], worth.taken[rows], worth.closeness[rows] = _NONE[:3]
        worth.damage[rows], worth.free_share[rows] = _NONE[3:]
        for kind, places, free in by_kind(self._cache, table, rows):
            of_kind = rows[places]
            worth.put(of_kind, kind, request, free)

    def _of(self, request: GpuRequest, number: int, free: int) -> OfSet:
        return _NONE if number == NOT_USABLE else _of_set(self._cache.kinds[number], request, free)

    def _judge_room(
        self, room: Room, needs: ResourceList, worth: NodeWorth, rows: Ints, table: NodeTable
    ) -> None:
        worth.lost_room[rows] = 0.0
        rows = rows[worth.quality[rows] > -np.inf]
        if not len(rows):
            return
        try:
            before = left_on(self._cache, table, rows, room.resources)
            worth.lost_room[rows] = room.lost(before, before.without(needs, worth.taken[rows]))
        except Exception as defect:  # the other values order the nodes
            self._defects.append(defect)


@while_alive(65536)
def _of_set(kind: MachineKind, request: GpuRequest, free: int) -> OfSet:
    """By the kind itself: its number is another one's once no node has it."""
    masks = np.array([free])
    taken = int(kind.taken_within(request, masks)[0])
    return (
        float(kind.qualities(request, masks)[0]),
        taken,
        int(kind.closeness(request, np.array([taken]))[0]),
        kind.damage(free, taken),
        free.bit_count() / kind.all_gpus.bit_count(),
    )


def left_on(cache: Cache, table: NodeTable, rows: Ints, resources: Collection[str]) -> Left:
    """What the nodes in these rows have left; the free shares are those of *resources*."""
    shares = {resource: np.zeros(len(rows), dtype=np.int64) for resource in resources}
    if shares and cache.divided:
        for place, row in enumerate(rows.tolist()):
            name = table.names[row]
            if name in cache.divided:
                for resource, count in cache.nodes[name].shares.free.items():
                    if resource in shares:
                        shares[resource][place] = count
    left = table.left
    return Left(
        table.kinds[rows], table.free[rows], left.milli_cpu[rows], left.memory[rows], shares
    )


def by_kind(cache: Cache, table: NodeTable, rows: Ints) -> Iterator[tuple[MachineKind, Ints, Ints]]:
    """The kinds among these rows (-1: unknown): kind, places in *rows*, masks of free GPUs."""
    kinds = np.where(rows >= 0, table.kinds[rows], NOT_USABLE)
    for number in np.flatnonzero(np.bincount(kinds[kinds != NOT_USABLE])):
        places = np.flatnonzero(kinds == number)
        yield cache.kinds[number], places, table.free[rows[places]]


def order_of(worth: NodeWorth, name_ranks: Ints) -> Iterator[NDArray[np.generic]]:
    """The keys [rows] by which a single pod's nodes are ordered, less is better. *name_ranks*: as
    those of a `NodeTable`."""
    for each in OF_NODES:
        values = getattr(worth, each.of)
        yield -values if each.more else values
    yield name_ranks


def first_of(places: Ints, *keys: NDArray[np.generic]) -> int:
    """The one of *places*, which are not empty, that is first by these keys, one after the other;
    the rest is not sorted."""
    for key in keys:
        if len(places) > 1:
            of_places = key[places]
            places = places[of_places == of_places.min()]
    return int(places[0])


class Offers:
    """Filter returns only the best node for a single pod: nothing is left to choose or to score.

    kube-scheduler proposes some hundred nodes. It would rate each of them with all its plugins and
    with a second call to the extender, only to choose the node that the extender rates best. Filter
    returns all suitable nodes in two cases:
    - The pod, or kube-scheduler for it, has preferences of its own.
    - The pod was offered one node before and comes again. Then something that the extender cannot
      see has kept it off that node (another extender, a volume, a plugin's late refusal).

    docs/decisions/placement.md#10-one-node says what this saves.
    """

    def __init__(self, cache: Cache, best_node: BestNode) -> None:
        self._cache, self.best_node = cache, best_node
        self._made = cache.memory.set()  # uids of the pods that were offered one node of several

    def offer(self, record: PodRecord, names: Sequence[str], view: NodesView) -> str | None:
        """The node of *names* to return; None if there is none, or if all are to be returned."""
        if record.prefers or record.uid in self._made:
            return None
        request = GpuRequest(record.demand, record.ask.requirement)
        best = self.best_node.among(request, record.needs, names, view)
        if best is None or puts_off(record.template, self._cache.nodes[best].record):
            return None
        if len(names) > 1 and record.uid in self._cache.pods:
            self._made.add(record.uid)
        return best

    @property
    def pending(self) -> int:
        """How many pods were offered a node and are not known to be bound."""
        return len(self._made)

    def forget(self, uid: str) -> None:
        self._made.discard(uid)
