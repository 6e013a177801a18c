"""Room for a waiting gang if some pods were evicted."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from operator import or_

import numpy as np

from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.gang_search import StaleResult
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.preemption.victim_selection import Unit, pods_of
from linkwise.extender.next.queue.books import Books
from linkwise.extender.next.queue.reservations import Reservation, Reservations, ReservedGpus
from linkwise.extender.place.cluster_view import as_if
from linkwise.extender.place.request import NoRoom, Spot
from linkwise.extender.place.shares.choice import Effort
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.cache.node_table import Bools, Ints, NodeTable, popcount
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.timers import RunUnlocked


class WhatIf:
    """What if some pods were gone: the GPUs that a claimant could then use on a node.

    *visible*: the reserved GPUs that the claimant may use. It never uses other reserved GPUs,
    whichever pods are gone.
    """

    def __init__(
        self, cache: Cache, reservations: Reservations, visible: Sequence[ReservedGpus]
    ) -> None:
        self._cache, self._reservations, self._visible = cache, reservations, visible
        self._keys = {each.key for each in visible if isinstance(each, Reservation)}
        self._may_have: dict[str, int] = {}  # node -> bitmask of the GPUs that it may ever use
        self.effort = Effort()  # of all searches for shares

    def usable(self, info: NodeInfo, gpus: int) -> int:
        """Those of *gpus* that the claimant may use once no pod has them."""
        may_have = self._may_have.get(info.name)
        if may_have is None:
            may_have = 0
            if info.machine is not None and not info.closed:
                may_have = info.machine.healthy_gpus
            for key, reserved in info.reserved.items():
                if key not in self._keys:
                    may_have &= ~reserved
            self._may_have[info.name] = may_have
        return gpus & may_have

    def free(self, info: NodeInfo, gone: Iterable[str]) -> int:
        """The bitmask of the GPUs that are free for the claimant without the pods *gone* (uids)."""
        owned = 0
        for uid in gone:
            owned |= info.owned.get(uid, 0)
        reserved = self._reservations.kept_on(info.name, self._visible)
        return info.free | reserved | self.usable(info, owned)


class NodeRoom:
    """Room for a single pod on one node, where the pods *gone* (uids) make room already."""

    def __init__(
        self, what_if: WhatIf, info: NodeInfo, request: GpuRequest, gone: Sequence[str]
    ) -> None:
        self._what_if, self._info, self._request, self._gone = what_if, info, request, gone

    def seek(self, units: Sequence[Unit]) -> list[Spot] | None:
        if self._info.kind is None:
            return None
        gone = (*self._gone, *(pod.uid for pod in pods_of(units)))
        gpus = self._info.kind.take(self._request, self._what_if.free(self._info, gone))
        return None if gpus is None else [Spot(self._info.name, gpus)]

    def may_suffice(self, units: Sequence[Unit]) -> bool:
        return self.seek(units) is not None

    def gain(self, gone: Sequence[Unit], more: Sequence[Unit]) -> int:
        before = {pod.uid for pod in pods_of(gone)}
        new: list[PodRecord] = [pod for pod in pods_of(more) if pod.uid not in before]
        return sum(self._info.owned.get(pod.uid, 0).bit_count() for pod in new)


_AT_ONCE = 128  # nodes; each takes microseconds, while kube-scheduler's calls wait


class GangRoom:
    """Terminating pods count as gone. GPUs that are reserved for less urgent gangs count as
    free."""

    def __init__(
        self,
        books: Books,
        gang: Gang,
        members: GangMembers,
        now: float,
        aside: RunUnlocked,
    ) -> None:
        """With *aside*, others may use the cache meanwhile."""
        cache, reservations = books.cache, books.reservations
        self._cache, self._search, self._running_pods = cache, books.search, books.running_pods
        self._members, self._now, self._aside = members, now, aside
        self._nodes = cache.changed_rows.generation
        visible = reservations.ways(reservations.claimant(gang, members), now)[0]
        what_if = WhatIf(cache, reservations, visible)
        self._base = reservations.rows_with(visible).trial()
        pool: Bools = reservations.pool_of(members)
        sizes = [member.demand.gpus for member in members.open if member.demand.gpus]
        self._wanted = Counter(sizes)
        self._total_wanted = sum(sizes)
        # uid -> its row, and the GPUs that the gang may use once they are free
        self._held: dict[str, tuple[int, int]] = {}
        for info in some_at_a_time(cache, aside):
            usable = what_if.usable(info, -1) if info.row < len(pool) and pool[info.row] else 0
            self._look_at(info, usable)
        free: Ints = np.where(pool, self._base.free[: len(pool)], 0)
        self._free: list[int] = free.tolist()
        counts = popcount(free)
        self._slots = {size: int((counts // size).sum()) for size in self._wanted}
        self._total = int(counts.sum())
        self._gone = _Gone(self._free, self._wanted)

    def seek(self, units: Sequence[Unit]) -> list[Spot] | None:
        """Raises StaleResult if nodes changed meanwhile: the copy may have GPUs of one that is out
        of use."""
        if self._cache.changed_rows.generation != self._nodes:
            raise StaleResult
        rows, changed = self._rows_without(units)
        view = as_if(rows, tuple(changed))
        spots = self._search.seek(self._members, self._now, aside=self._aside, view=view)
        return None if isinstance(spots, NoRoom) else spots

    def may_suffice(self, units: Sequence[Unit]) -> bool:
        """Whether there are enough GPUs, whichever links join them."""
        gone = self._gone
        gone.become(self._held_by(units))
        if self._total + gone.gpus < self._total_wanted:
            return False
        return all(self._slots[size] + gone.slots[size] >= n for size, n in self._wanted.items())

    def gain(self, gone: Sequence[Unit], more: Sequence[Unit]) -> int:
        before, after = (_Gone(self._free, self._wanted) for _ in range(2))
        before.become(self._held_by(gone))
        after.become(self._held_by((*gone, *more)))
        return sum(after.slots.values()) - sum(before.slots.values())

    def _held_by(self, units: Iterable[Unit]) -> dict[str, tuple[int, int]]:
        """Without pods that came or went while the nodes were looked at."""
        held = self._held
        return {pod.uid: held[pod.uid] for pod in pods_of(units) if pod.uid in held}

    def _look_at(self, info: NodeInfo, usable: int) -> None:
        rows = self._base
        for uid in (*info.bound, *info.plans):
            self._held[uid] = info.row, usable & info.owned.get(uid, 0)
        if not info.owned:
            return
        for uid, gpus in self._running_pods.leaving(info, self._now).items():
            rows.free[info.row] |= usable & gpus
            record = self._cache.pods.get(uid)
            if record is not None and record.leaving and not record.ended:
                rows.left.give_back(info.row, record.needs)

    def _rows_without(self, units: Sequence[Unit]) -> tuple[NodeTable, list[int]]:
        rows = self._base.trial()
        changed: dict[int, None] = {}
        for pod in pods_of(units):
            if pod.uid not in self._held:
                continue
            row, gpus = self._held[pod.uid]
            rows.free[row] |= gpus
            changed[row] = None
            rows.left.give_back(row, pod.needs)
        return rows, list(changed)


class _Gone:
    """Counts what pods leave. Sets that are compared one after the other differ in few pods."""

    def __init__(self, free: Sequence[int], wanted: Iterable[int]) -> None:
        """*free*: [rows] the bitmask of the free GPUs."""
        self._free = free
        self._pods: dict[str, tuple[int, int]] = {}  # uid -> row, GPUs
        self._on: dict[int, list[int]] = {}  # row -> the GPUs of each of them
        self.gpus = 0
        self.slots = dict.fromkeys(wanted, 0)  # size -> how many sets of that size

    def become(self, pods: dict[str, tuple[int, int]]) -> None:
        for uid in self._pods.keys() - pods.keys():
            row, gpus = self._pods[uid]
            self._change(row, partial(self._on[row].remove, gpus))
        for uid in pods.keys() - self._pods.keys():
            row, gpus = pods[uid]
            self._change(row, partial(self._on.setdefault(row, []).append, gpus))
        self._pods = pods

    def _change(self, row: int, change: Callable[[], None]) -> None:
        before = self._count(row)
        change()
        after = self._count(row)
        self.gpus += after - before
        for size in self.slots:
            self.slots[size] += after // size - before // size

    def _count(self, row: int) -> int:
        return reduce(or_, self._on[row], self._free[row]).bit_count()


def some_at_a_time(cache: Cache, aside: RunUnlocked) -> Iterator[NodeInfo]:
    """All nodes; others use the cache periodically."""
    for number, info in enumerate([*cache.nodes.values()], 1):
        yield info
        if number % _AT_ONCE == 0:
            aside(lambda: None)
