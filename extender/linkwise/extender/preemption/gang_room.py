"""Room for a waiting gang if some pods were evicted."""

from collections.abc import Iterable, Sequence
from copy import copy

import numpy as np

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.node_info import NodeInfo
from linkwise.extender.cache.node_table import Bools, Ints, NodeTable, popcount
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.gang_search import GangSearch
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.placement.nodes.nodes_view import as_if
from linkwise.extender.placement.result import NoRoom, Spot
from linkwise.extender.preemption.victim_selection import Unit, pods_of
from linkwise.extender.preemption.what_if import WhatIf
from linkwise.extender.queue.reservations import Reservations
from linkwise.extender.queue.running_pods import RunningPods


class GangRoom:
    """Terminating pods count as gone. GPUs that are reserved for less urgent gangs count as
    free."""

    def __init__(
        self,
        cache: Cache,
        search: GangSearch,
        reservations: Reservations,
        running_pods: RunningPods,
        gang: Gang,
        members: GangMembers,
        now: float,
    ) -> None:
        self._cache, self._search, self._running_pods = cache, search, running_pods
        self._members, self._now = members, now
        visible = reservations.ways(reservations.claimant(gang, members), now)[0]
        self._what_if = WhatIf(cache, reservations, visible)
        self._base = reservations.rows_with(visible)
        self._pool: Bools = reservations.pool_of(members)
        sizes = [member.demand.gpus for member in members.open if member.demand.gpus]
        self._wanted = {size: sizes.count(size) for size in sizes}
        self._leave()
        free: Ints = np.where(self._pool, self._base.free[: len(self._pool)], 0)
        self._free: list[int] = free.tolist()
        counts = popcount(free)
        self._slots = {size: int((counts // size).sum()) for size in self._wanted}
        self._total = int(counts.sum())

    def seek(self, units: Sequence[Unit]) -> list[Spot] | None:
        rows, changed = self._rows_without(units)
        spots = self._search.seek(self._members, self._now, view=as_if(rows, tuple(changed)))
        return None if isinstance(spots, NoRoom) else spots

    def may_suffice(self, units: Sequence[Unit]) -> bool:
        """Whether there are enough GPUs, whichever links join them."""
        total, slots = self._gained(units)
        if self._total + total < sum(size * count for size, count in self._wanted.items()):
            return False
        return all(self._slots[size] + slots[size] >= n for size, n in self._wanted.items())

    def gain(self, gone: Sequence[Unit], more: Sequence[Unit]) -> int:
        _, before = self._gained(gone)
        _, after = self._gained((*gone, *more))
        return sum(after.values()) - sum(before.values())

    def _leave(self) -> None:
        rows = self._base = _copy(self._base)
        for info in self._cache.nodes.values():
            if not info.owned:
                continue
            for uid, gpus in self._running_pods.leaving(info, self._now).items():
                rows.free[info.row] |= self._usable(info, gpus)
                record = self._cache.pods.get(uid)
                if record is not None and record.leaving and not record.ended:
                    _give_back(rows, info.row, record)

    def _usable(self, info: NodeInfo, gpus: int) -> int:
        """Those of *gpus* that the gang may use once they are free."""
        return self._what_if.usable(info, gpus) if self._pool[info.row] else 0

    def _freed(self, units: Iterable[Unit]) -> dict[int, int]:
        """row -> bitmask of the GPUs that come free without *units*."""
        freed: dict[int, int] = {}
        for unit in units:
            for pod in unit.pods:
                info = self._cache.nodes[pod.node]
                gpus = self._usable(info, info.owned.get(pod.uid, 0))
                freed[info.row] = freed.get(info.row, 0) | gpus
        return freed

    def _gained(self, units: Iterable[Unit]) -> tuple[int, dict[int, int]]:
        """How many GPUs, and how many sets of each requested size, come free."""
        total, slots = 0, dict.fromkeys(self._wanted, 0)
        for row, gpus in self._freed(units).items():
            before = self._free[row]
            now, then = before.bit_count(), (before | gpus).bit_count()
            total += then - now
            for size in slots:
                slots[size] += then // size - now // size
        return total, slots

    def _rows_without(self, units: Sequence[Unit]) -> tuple[NodeTable, list[int]]:
        rows = _copy(self._base)
        freed = self._freed(units)
        for row, gpus in freed.items():
            rows.free[row] |= gpus
        for pod in pods_of(units):
            _give_back(rows, self._cache.nodes[pod.node].row, pod)
        return rows, list(freed)


def _copy(rows: NodeTable) -> NodeTable:
    """A copy whose columns that depend on pods may be written."""
    other = copy(rows)
    for name in ("free", "milli_cpu", "memory", "gpus", "pods"):
        setattr(other, name, getattr(rows, name).copy())
    return other


def _give_back(rows: NodeTable, row: int, pod: PodRecord) -> None:
    """Return to the row what kube-scheduler counts of the pod."""
    rows.milli_cpu[row] += pod.needs.milli_cpu
    rows.memory[row] += pod.needs.memory
    rows.gpus[row] += pod.needs.gpus
    rows.pods[row] += 1
