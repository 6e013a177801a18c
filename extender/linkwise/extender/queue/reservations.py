"""What is kept for gangs that wait, and who may have it all the same.

A hold is a concrete set of GPUs: those that are free and the others as they come free. `turns` says
which gangs get one. Later requests are not shown them, be they gangs or single pods. Others may
take them:

- a more urgent gang or pod;
- a gang that runs and has lost a member, or it might wait for the very gang that waits for it;
- a gang or pod that says that it ends before the gang can start;
- one that says nothing, if nine of ten pods like it have ended in that time (`run_times`).

What comes free is kept in the same way until those who wait for longest have had their turn.
docs/decisions/0013-order-and-holds.md has why.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Protocol

import numpy as np

from linkwise.extender.api.records import GangKey, PodRecord, Template
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.node_table import Bools, NodeTable
from linkwise.extender.gangs.failed_searches import requests_of
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.placement.nodes.node_filters import NodeFilters
from linkwise.extender.placement.nodes.nodes_view import NodesView, as_it_is
from linkwise.extender.placement.result import Spot
from linkwise.extender.queue.earliest_start import EarliestStart, Gpus, earliest
from linkwise.extender.queue.run_times import NineOfTen, RunTimes, run_time
from linkwise.extender.queue.running_pods import RunningPods
from linkwise.extender.queue.scheduling_queue import SchedulingQueue, Urgency, urgency_of_single

# Of the wait for those whose ends are estimated, others may use so much.
_PASSING_SHARE = 0.5
FIRST: Urgency = (-(2**63), 0.0, GangKey("", ""))  # before everybody


class ReservedGpus(Protocol):
    """GPUs that are shown to some, and not to all."""

    @property
    def gpus(self) -> Gpus: ...

    @property
    def number(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FreshGpus:
    """GPUs that came free, and that those who wait for longest have not had their turn with."""

    gpus: Gpus
    number: int


@dataclass(frozen=True, slots=True)
class Reservation:
    key: GangKey
    urgency: Urgency
    earliest: EarliestStart
    requests: object  # of the members that it is for
    places: frozenset[tuple[Template, str]]  # which kind of member goes on which node
    pool: Bools  # [rows] the nodes that its gang could use when it last had its turn
    number: int
    passable_until: float  # who says that he ends by then may pass
    evicts: bool = False  # somebody was evicted for it: nobody but a more urgent one gets it

    @property
    def title(self) -> str:
        return self.key.title

    @property
    def gpus(self) -> Gpus:
        return self.earliest.gpus

    @property
    def start(self) -> float:
        return self.earliest.start


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who wants GPUs, as far as it matters to holds."""

    urgency: Urgency
    seconds: float | None  # how long it runs; None: nobody knows
    runs: bool = False  # a gang that has started, and has lost members that it needs


def may_pass(claimant: Claimant, reservation: Reservation, now: float) -> bool:
    """Whether what the hold keeps is shown to this one."""
    return (
        claimant.urgency <= reservation.urgency
        or (claimant.runs and not reservation.evicts)
        or (claimant.seconds is not None and now + claimant.seconds <= reservation.passable_until)
    )


class Reservations:
    def __init__(
        self,
        cache: Cache,
        queue: SchedulingQueue,
        node_filters: NodeFilters,
        running_pods: RunningPods,
        run_times: RunTimes,
    ) -> None:
        self._cache, self._queue, self._node_filters, self._running_pods = (
            cache,
            queue,
            node_filters,
            running_pods,
        )
        self._run_times = run_times
        self._reservations: dict[GangKey, Reservation] = {}
        self._numbers = count()
        # All who are as urgent as this have had their turn with what came free.
        self.served = FIRST
        self._fresh = FreshGpus({}, -1)
        self._changed: set[GangKey] = set()  # since `take_changed`

    # Questions.

    def all(self) -> list[Reservation]:
        """The most urgent first."""
        return sorted(self._reservations.values(), key=lambda reservation: reservation.urgency)

    @property
    def by_key(self) -> Mapping[GangKey, Reservation]:
        return self._reservations

    def of(self, key: GangKey) -> Reservation | None:
        return self._reservations.get(key)

    def evicts(self, key: GangKey) -> bool:
        """Whether others are evicted for what is kept for it."""
        reservation = self._reservations.get(key)
        return reservation is not None and reservation.evicts

    def on(self, node: str) -> list[Reservation]:
        return [reservation for reservation in self.all() if node in reservation.gpus]

    # Who may take what is held.

    def claimant(self, gang: Gang, members: GangMembers) -> Claimant:
        lacks = members.started and not members.enough_placed
        seconds = _longest(members.open, self._run_times.nine_of_ten)
        return Claimant(self._queue.urgency(gang.key), seconds, runs=lacks)

    def claimant_of_single(self, record: PodRecord) -> Claimant:
        return claimant_of_single(record, self._run_times.nine_of_ten)

    def open_to(self, claimant: Claimant) -> list[Reservation]:
        """Its own, and those that do not bind it, however long it runs."""
        ever = replace(claimant, seconds=None)
        return [
            reservation
            for reservation in self._reservations.values()
            if may_pass(ever, reservation, 0.0)
        ]

    def ways(self, claimant: Claimant, now: float) -> list[list[ReservedGpus]]:
        """What to show it besides all that is free: first what it may have anyhow; and where it
        says that it ends in time, what others wait for until then."""
        surely: list[ReservedGpus] = [*self.open_to(claimant)]
        if self._cache.fresh and (claimant.urgency <= self.served or claimant.runs):
            surely.append(self._fresh_now())
        until_then = [
            reservation
            for reservation in self._reservations.values()
            if reservation not in surely and may_pass(claimant, reservation, now)
        ]
        return [surely, [*surely, *until_then]] if until_then else [surely]

    def views(self, claimant: Claimant, now: float) -> list[NodesView]:
        """The nodes as this claimant may use them, in the order in which it tries them."""
        return [self.view(reservations) for reservations in self.ways(claimant, now)]

    def view(self, reservations: Sequence[ReservedGpus]) -> NodesView:
        """The nodes with what is free and what these reserve."""
        if not reservations:
            return as_it_is(self._cache)
        return NodesView(
            frozenset(reservation.number for reservation in reservations),
            partial(self.rows_with, reservations),
            self._rows_of(reservations),
        )

    def kept_on(self, node: str, reservations: Iterable[ReservedGpus]) -> int:
        """The GPUs of a node that nobody has, and that are kept by these."""
        info = self._cache.nodes.get(node)
        mask = 0
        for reservation in reservations:
            mask |= reservation.gpus.get(node, 0)
        return info.held & mask if info is not None else 0

    def rows_with(self, reservations: Sequence[ReservedGpus]) -> NodeTable:
        """The rows with what these keep, and nobody has, as if it were free."""
        rows = self._cache.rows.copy()
        for reservation in reservations:
            for node, mask in reservation.gpus.items():
                row = rows.row_of.get(node)
                if row is not None:
                    rows.free[row] |= rows.held[row] & mask
        return rows

    def _rows_of(self, reservations: Iterable[ReservedGpus]) -> tuple[int, ...]:
        row_of = self._cache.rows.row_of
        nodes = {node for reservation in reservations for node in reservation.gpus}
        return tuple(sorted(row_of[node] for node in nodes if node in row_of))

    def _fresh_now(self) -> FreshGpus:
        if self._fresh.gpus != self._cache.fresh:
            self._fresh = FreshGpus(dict(self._cache.fresh), next(self._numbers))
        return self._fresh

    def forget_fresh(self) -> None:
        """What was shown of it to those who had their turns."""
        self._fresh = FreshGpus({}, -1)

    # What happens to holds.

    def give_up(self, key: GangKey) -> None:
        if self._reservations.pop(key, None) is not None:
            self._cache.reserve(key, {})
            self._changed.add(key)

    def reserve_for(
        self,
        gang: Gang,
        members: GangMembers,
        spots: Sequence[Spot],
        now: float,
        *,
        evicts: bool = False,
    ) -> Reservation:
        """Keep these places for the open members of a gang."""
        new = earliest(self._cache, self._running_pods, spots, now)
        reservation = Reservation(
            gang.key,
            self._queue.urgency(gang.key),
            new,
            requests_of(members.open),
            frozenset(
                (member.template, spot.node)
                for member, spot in zip(members.open, spots, strict=True)
                if member.template is not None
            ),
            self.pool_of(members),
            next(self._numbers),
            _passable_until(new, now),
            evicts,
        )
        for other in list(self._reservations.values()):
            if other.key != gang.key and _overlap(other.gpus, new.gpus):
                self.give_up(other.key)
        self._reservations[gang.key] = reservation
        self._cache.reserve(gang.key, new.gpus)
        self._changed.add(gang.key)
        return reservation

    def take_changed(self) -> set[GangKey]:
        """For whom something else is kept than when this was last asked."""
        changed, self._changed = self._changed, set()
        return changed

    def pool_of(self, members: GangMembers) -> Bools:
        """[rows] the nodes that could ever take one of the open members."""
        rows, kinds = self._cache.rows, self._cache.kinds
        pool: Bools = np.zeros(len(rows), dtype=np.bool_)
        for template, request in {
            (member.template, GpuRequest(member.demand, member.ask.requirement))
            for member in members.open
        }:
            if template is None:
                continue
            able = [kind.take(request, kind.all_gpus) is not None for kind in kinds]
            of_kind = np.array([*able, False])[rows.kinds[: len(rows)]]  # NOT_USABLE: the last
            pool |= of_kind & self._node_filters.rows(template)
        return pool

    def is_good(self, reservation: Reservation, members: GangMembers) -> bool:
        """Whether its members could still be placed where it keeps GPUs for them, once they are
        free."""
        if reservation.requests != requests_of(members.open) or reservation.start == math.inf:
            return False
        for node, mask in reservation.gpus.items():
            info = self._cache.nodes.get(node)
            if info is None or info.machine is None or info.closed:
                return False
            if mask & ~info.machine.healthy_gpus:
                return False
        return all(self._node_filters.on(template, node) for template, node in reservation.places)

    def bring_up_to_date(self, reservation: Reservation, pool: Bools, now: float) -> Reservation:
        """When it can start changes with those who have its GPUs, and *pool* with the nodes."""
        fresh = earliest(self._cache, self._running_pods, reservation.earliest.spots, now)
        urgency = self._queue.urgency(reservation.key)
        same_pool = np.array_equal(pool, reservation.pool)
        if fresh == reservation.earliest and urgency == reservation.urgency and same_pool:
            return reservation
        new = replace(
            reservation,
            urgency=urgency,
            earliest=fresh,
            pool=pool,
            passable_until=_passable_until(fresh, now),
        )
        self._reservations[reservation.key] = new
        return new


def claimant_of_single(record: PodRecord, nine_of_ten: NineOfTen) -> Claimant:
    return Claimant(urgency_of_single(record), run_time(record, nine_of_ten))


def _longest(pods: Sequence[PodRecord], nine_of_ten: NineOfTen) -> float | None:
    """For how many seconds all of them run; None: nobody knows."""
    seconds = [run_time(pod, nine_of_ten) for pod in pods]
    known = [each for each in seconds if each is not None]
    return max(known) if known and len(known) == len(seconds) else None


def _passable_until(earliest: EarliestStart, now: float) -> float:
    """Where the start is an estimate, it may come sooner; then only half of the wait is lent."""
    if earliest.sure:
        return earliest.start
    return now + _PASSING_SHARE * (earliest.start - now)


def _overlap(one: Gpus, other: Gpus) -> bool:
    return any(mask & other.get(node, 0) for node, mask in one.items())
