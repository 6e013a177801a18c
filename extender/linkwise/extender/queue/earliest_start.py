"""Which GPUs to keep for a gang that waits: those on which it can start first.

The search lets the running pods of the nodes go in thought, in the order in which they end, until
the gang fits. The place that it finds is reserved. `running_pods` knows or estimates when each pod
ends. Servers do not end by themselves, so no gang waits for their GPUs.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from linkwise.extender.api.records import GangKey, ResourceList
from linkwise.extender.api.unlocked import Pause
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.node_table import NOT_USABLE, Bools, Ints, NodeTable, popcount
from linkwise.extender.placement.result import Refusal, Spot
from linkwise.extender.queue.running_pods import RunningPods

Gpus = Mapping[str, int]
"""Node -> bitmask."""
Seek = Callable[[NodeTable, Sequence[int]], list[Spot] | Refusal]
"""A place for the gang on these rows; they differ from the true ones in those named."""


_AT_ONCE = 256  # nodes
_WORTH_A_MOVE = 0.75


class NodesChangedError(Exception):
    """Nodes came, went or changed during a pause: what was found out counts no more."""


@dataclass(frozen=True, slots=True)
class EarliestStart:
    spots: tuple[Spot, ...]
    gpus: Gpus
    to_free: int  # of them: those that somebody has yet
    start: float  # when all will be free, as far as is known; infinity: a server has some of them
    sure: bool  # all who have some said when they end; else it is an estimate

    def is_better_than(self, other: "EarliestStart", now: float) -> bool:
        """Estimates move with time, and a hold that follows each of them never collects all its
        GPUs: so a quarter of the wait has to be gained, or GPUs at no longer a wait."""
        wait, longer = max(self.start - now, 0.0), max(other.start - now, 0.0)
        if wait < _WORTH_A_MOVE * longer:
            return True
        return wait <= longer and self.to_free < other.to_free


class _Step(NamedTuple):
    """A tenant of a node that ends."""

    row: int
    gpus: int
    needs: ResourceList
    pods: int


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """What a gang that waits wants, and where it may be."""

    gpus: int  # in all
    pool: Bools  # [rows] the nodes that could ever take one of its members
    base: NodeTable  # what it may have now
    open_to: frozenset[GangKey]  # who else waits, and cannot keep GPUs from it
    own: frozenset[str]  # its members that have GPUs: they end when it does, so never for it


def reserve(
    cache: Cache,
    running_pods: RunningPods,
    want: ReservationRequest,
    seek: Seek,
    now: float,
    pause: Pause,
) -> EarliestStart | None:
    """Where *seek* finds a place first; None: not even once all have ended who end by themselves.
    Raises NodesChangedError."""
    nodes = cache.changed_rows.generation
    steps = _steps(cache, running_pods, want, now, pause)
    letting_go = _LettingGo(want.base, steps)

    @functools.cache
    def after(count: int) -> list[Spot] | Refusal:
        pause()
        if cache.changed_rows.generation != nodes:
            raise NodesChangedError
        return seek(letting_go.rows(count), letting_go.changed(count))

    if isinstance(after(len(steps)), Refusal):
        return None
    spots = after(_fewest(after, letting_go.fewest_for(want), len(steps)))
    assert not isinstance(spots, Refusal), "it was found with so many gone"
    return earliest(cache, running_pods, spots, now)


def earliest(
    cache: Cache, running_pods: RunningPods, spots: Sequence[Spot], now: float
) -> EarliestStart:
    gpus: dict[str, int] = {}
    for spot in spots:
        gpus[spot.node] = gpus.get(spot.node, 0) | spot.gpus
    to_free, start, sure = 0, now, True
    for node, mask in gpus.items():
        info = cache.nodes.get(node)
        there = () if info is None else running_pods.on(info, now).all
        for tenant in there:
            if tenant.gpus & mask:
                to_free += (tenant.gpus & mask).bit_count()
                start, sure = max(start, tenant.end), sure and tenant.sure
    return EarliestStart(tuple(spots), gpus, to_free, start, sure)


def fits_without_servers(
    cache: Cache, running_pods: RunningPods, want: ReservationRequest, seek: Seek, now: float
) -> bool:
    """Whether *seek* finds a place once all are gone, those too that never end by themselves."""
    steps = _steps(cache, running_pods, want, now, lambda: None, servers=True)
    letting_go = _LettingGo(want.base, steps)
    everybody = len(steps)
    found = seek(letting_go.rows(everybody), letting_go.changed(everybody))
    return not isinstance(found, Refusal)


def _steps(
    cache: Cache,
    running_pods: RunningPods,
    want: ReservationRequest,
    now: float,
    pause: Pause,
    *,
    servers: bool = False,
) -> list[_Step]:
    """The tenants that end by themselves, the first to end first, and of equals those on nodes
    where fewest GPUs are to be freed; with *servers* all."""
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
            step = _Step(row, tenant.gpus & may_have, tenant.needs, tenant.pods)
            found.append((tenant.end, to_free, ranks[row], tenant.uid, step))
    found.sort(key=lambda each: each[:4])
    return [step for *_, step in found]


class _LettingGo:
    """The rows as they are once the first so many steps are done."""

    def __init__(self, base: NodeTable, steps: Sequence[_Step]) -> None:
        self._base = base
        self._rows = _column([step.row for step in steps])
        self._gpus = _column([step.gpus for step in steps])
        self._columns = {
            "milli_cpu": _column([step.needs.milli_cpu for step in steps]),
            "memory": _column([step.needs.memory for step in steps]),
            "gpus": _column([step.needs.gpus for step in steps]),
            "pods": _column([step.pods for step in steps]),
        }

    def changed(self, count: int) -> list[int]:
        changed: list[int] = np.unique(self._rows[:count]).tolist()
        return changed

    def rows(self, count: int) -> NodeTable:
        rows = copy(self._base)
        at = self._rows[:count]
        rows.free = rows.free.copy()
        np.bitwise_or.at(rows.free, at, self._gpus[:count])
        for name, column in self._columns.items():
            left = getattr(rows, name).copy()
            np.add.at(left, at, column[:count])
            setattr(rows, name, left)
        return rows

    def fewest_for(self, want: ReservationRequest) -> int:
        """No fewer steps than this free so many GPUs, however they are joined."""
        free = int(popcount(self._base.free[: len(want.pool)][want.pool]).sum())
        freed = np.concatenate([[0], np.cumsum(popcount(self._gpus))])
        return min(int(np.searchsorted(freed, want.gpus - free)), len(self._gpus))


def _fewest(after: Callable[[int], list[Spot] | Refusal], least: int, most: int) -> int:
    """The fewest steps after which there is room, where there is after *most* of them.

    The answer is mostly near *least*, so the way there is in steps that double.
    """
    none, enough, stride = least - 1, most, 1
    while none + stride < enough:
        if isinstance(after(none + stride), Refusal):
            none += stride
            stride *= 2
        else:
            enough = none + stride
    while enough - none > 1:
        middle = (none + enough) // 2
        if isinstance(after(middle), Refusal):
            none = middle
        else:
            enough = middle
    return enough


def _column(numbers: Sequence[int]) -> Ints:
    return np.array(numbers, dtype=np.int64)
