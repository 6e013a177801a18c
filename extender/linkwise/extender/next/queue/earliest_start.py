"""Chooses the GPUs to reserve for a gang that waits: those on which it can start first, or nearer
ones on which it can start soon after.

The search removes the running pods of the nodes from a copy of the node table, in the order in
which they end, until the gang fits. The queue reserves the place that the search finds.
`RunningPods` knows or estimates when each pod ends. Servers do not end by themselves, so no
gang waits for their GPUs.
"""

import functools
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from linkwise.extender.next.queue.run_times import RunningPods
from linkwise.extender.place.cluster_view import Counts
from linkwise.extender.place.request import NoRoom, Spot
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_table import NOT_USABLE, Bools, Ints, NodeTable, popcount
from linkwise.extender.state.records import GangKey, ResourceList
from linkwise.extender.state.timers import Pause

Gpus = Mapping[str, int]
"""Node -> bitmask."""
Seek = Callable[[NodeTable, Sequence[int]], list[Spot] | NoRoom]
"""Finds a place for the gang in a node table that differs from the real one in the given rows."""


Spread = Callable[[Sequence[Spot]], Counts]
"""How many domains of each level a place has, the widest level first."""


_AT_ONCE = 256  # nodes
_WORTH_A_MOVE = 0.75
_WAITS_NEARER = 2.0  # times as long as for the first place


class NodesChangedError(Exception):
    """The set of nodes changed during a pause, so the search is void."""


@dataclass(frozen=True, slots=True)
class EarliestStart:
    spots: tuple[Spot, ...]
    gpus: Gpus
    to_free: int  # how many of the GPUs are in use yet
    start: float  # when all GPUs are free, as far as is known; infinity: a server uses some of them
    sure: bool  # all pods on these GPUs say when they end; else the start is an estimate
    known: bool  # False: of some of these pods nothing says when they end
    late: bool  # one of these pods runs for longer than it declared

    def is_better_than(self, other: "EarliestStart", now: float) -> bool:
        """Whether a reservation should move from *other* to this place.

        Estimates move with time, and a reservation that follows each of them never collects all its
        GPUs. So the move has to save a quarter of the wait, or need fewer GPUs to come free without
        a longer wait.
        """
        wait, longer = max(self.start - now, 0.0), max(other.start - now, 0.0)
        if wait < _WORTH_A_MOVE * longer:
            return True
        return wait <= longer and self.to_free < other.to_free


class _Step(NamedTuple):
    """The end of one running pod."""

    end: float
    row: int
    gpus: int
    needs: ResourceList
    pods: int


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """What a waiting gang requests, and which nodes it may use."""

    gpus: int  # of all members
    pool: Bools  # [rows] the nodes that could ever take one of its members
    base: NodeTable  # what the gang may use now
    open_to: frozenset[GangKey]  # waiting gangs whose reservations do not bind this gang
    own: frozenset[str]  # uids of its members that have GPUs: they end with the gang, not before


def reserve(
    cache: Cache,
    running_pods: RunningPods,
    want: ReservationRequest,
    seek: Seek,
    spread: Spread,
    now: float,
    pause: Pause,
) -> EarliestStart | None:
    """Where *seek* finds a place first, or in the fewest domains that it finds in twice that time.
    None if it finds none even after all pods that end by themselves have ended. Raises
    NodesChangedError."""
    nodes = cache.changed_rows.generation
    steps = _steps(cache, running_pods, want, now, pause)
    letting_go = _LettingGo(want.base, steps)

    @functools.cache
    def after(count: int) -> list[Spot] | NoRoom:
        pause()
        if cache.changed_rows.generation != nodes:
            raise NodesChangedError
        return seek(letting_go.rows(count), letting_go.changed(count))

    if isinstance(after(len(steps)), NoRoom):
        return None
    fewest = _fewest(after, letting_go.fewest_for(want), len(steps))

    def place_after(count: int) -> EarliestStart:
        spots = after(count)
        assert not isinstance(spots, NoRoom), "the search found a place with as many pods gone"
        return earliest(cache, running_pods, spots, now)

    first = place_after(fewest)
    spread_of_first = spread(first.spots)
    if max(spread_of_first, default=1) == 1:
        return first
    until = now + _WAITS_NEARER * (first.start - now)
    most = max(bisect_right(steps, until, key=lambda step: step.end), fewest)
    nearest = spread(place_after(most).spots)
    if nearest >= spread_of_first:
        return first

    def near(count: int) -> list[Spot] | NoRoom:
        spots = after(count)
        is_near = isinstance(spots, NoRoom) or spread(spots) <= nearest
        return spots if is_near else NoRoom(1, 0, "", 0)

    return place_after(_fewest(near, fewest, most))


def earliest(
    cache: Cache, running_pods: RunningPods, spots: Sequence[Spot], now: float
) -> EarliestStart:
    gpus: dict[str, int] = {}
    for spot in spots:
        gpus[spot.node] = gpus.get(spot.node, 0) | spot.gpus
    to_free, start, sure, known, late = 0, now, True, True, False
    for node, mask in gpus.items():
        info = cache.nodes.get(node)
        there = () if info is None else running_pods.on(info, now).all
        for tenant in there:
            if tenant.gpus & mask:
                to_free += (tenant.gpus & mask).bit_count()
                start, sure = max(start, tenant.end), sure and tenant.sure
                known, late = known and tenant.known, late or tenant.late
    return EarliestStart(tuple(spots), gpus, to_free, start, sure, known, late)


def fits_without_servers(
    cache: Cache,
    running_pods: RunningPods,
    want: ReservationRequest,
    seek: Seek,
    now: float,
    pause: Pause,
) -> bool:
    """Whether *seek* finds a place once all pods with GPUs have ended, servers included."""
    steps = _steps(cache, running_pods, want, now, pause, servers=True)
    letting_go = _LettingGo(want.base, steps)
    all_pods = len(steps)
    found = seek(letting_go.rows(all_pods), letting_go.changed(all_pods))
    return not isinstance(found, NoRoom)


def fits_on_empty_nodes(cache: Cache, want: ReservationRequest, seek: Seek, pause: Pause) -> bool:
    """Whether *seek* finds a place on the nodes without any pod, also of those without GPUs."""
    rows = want.base.copy()
    usable = np.flatnonzero(want.pool & (rows.kinds[: len(rows)] != NOT_USABLE)).tolist()
    for number, row in enumerate(usable):
        if number % _AT_ONCE == _AT_ONCE - 1:
            pause()
        info = cache.nodes.get(rows.names[row] or "")
        if info is None or info.machine is None or info.record is None:
            continue
        rows.free[row] = info.machine.healthy_gpus
        rows.show(row, info.offers, info.record.max_pods, offering=info.offering)
    return not isinstance(seek(rows, usable), NoRoom)


def _steps(
    cache: Cache,
    running_pods: RunningPods,
    want: ReservationRequest,
    now: float,
    pause: Pause,
    *,
    servers: bool = False,
) -> list[_Step]:
    """The running pods that end by themselves (with *servers*: all), in the order of their ends.
    Among equal ends, pods on nodes where the fewest GPUs have to come free are first."""
    found: list[tuple[float, int, int, str, _Step]] = []
    rows = want.base
    ranks = rows.name_ranks().tolist()
    usable = np.flatnonzero(want.pool & (rows.kinds[: len(rows)] != NOT_USABLE)).tolist()
    for number, row in enumerate(usable):
        if number % _AT_ONCE == _AT_ONCE - 1:
            pause()
        info = cache.nodes.get(rows.names[row] or "")
        if info is None or info.machine is None or not info.owned:
            continue
        may_have = info.machine.healthy_gpus
        for who, kept in info.reserved.items():
            if who not in want.open_to:
                may_have &= ~kept
        there = running_pods.on(info, now).without(want.own)
        go = [tenant for tenant in there if servers or not tenant.endless]
        to_free = sum((tenant.gpus & may_have).bit_count() for tenant in go)
        for tenant in go:
            step = _Step(tenant.end, row, tenant.gpus & may_have, tenant.needs, tenant.pods)
            found.append((tenant.end, to_free, ranks[row], tenant.uid, step))
    found.sort()  # no two share node and uid, so steps are never compared
    return [step for *_, step in found]


class _LettingGo:
    """The node table after the first *count* steps."""

    def __init__(self, base: NodeTable, steps: Sequence[_Step]) -> None:
        self._base = base
        self._rows = _column([step.row for step in steps])
        self._gpus = _column([step.gpus for step in steps])
        self._returned = base.left.columns_of(
            [step.needs for step in steps], [step.pods for step in steps]
        )

    def changed(self, count: int) -> list[int]:
        changed: list[int] = np.unique(self._rows[:count]).tolist()
        return changed

    def rows(self, count: int) -> NodeTable:
        rows, at = self._base.trial(), self._rows[:count]
        np.bitwise_or.at(rows.free, at, self._gpus[:count])
        for column, amounts in self._returned.items():
            np.add.at(rows.left.amounts[column], at, amounts[:count])
        return rows

    def fewest_for(self, want: ReservationRequest) -> int:
        """A lower bound: fewer steps leave too few GPUs in all, however links join them."""
        free = int(popcount(self._base.free[: len(want.pool)][want.pool]).sum())
        freed = np.concatenate([[0], np.cumsum(popcount(self._gpus))])
        return min(int(np.searchsorted(freed, want.gpus - free)), len(self._gpus))


def _fewest(after: Callable[[int], list[Spot] | NoRoom], least: int, most: int) -> int:
    """The fewest steps after which the gang fits; it fits after *most* of them.

    The result is mostly near *least*, so the search starts there with strides that double.
    """
    none, enough, stride = least - 1, most, 1
    while none + stride < enough:
        if isinstance(after(none + stride), NoRoom):
            none += stride
            stride *= 2
        else:
            enough = none + stride
    while enough - none > 1:
        middle = (none + enough) // 2
        if isinstance(after(middle), NoRoom):
            none = middle
        else:
            enough = middle
    return enough


def _column(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)
