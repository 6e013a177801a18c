"""The GPUs that are reserved for waiting gangs, and which claimants may use them nevertheless.

A reservation is a concrete set of GPUs: those that are free, and the others once they come free.
`cycle.reserve` decides which gangs get one. Later requests, of gangs and of single pods, do not see
these GPUs. Exceptions are:

- a more urgent gang or pod;
- a running gang that lost a member: else it could wait for the very gang that waits for it;
- a gang or pod that declares a duration, and ends before the reserving gang can start, as long as
  the pods of its namespace keep their word;
- any other one, if half of the pods like it end within that time (`queue.run_times`).

GPUs that come free are reserved in the same way until the gangs that wait longest have had their
turn. docs/decisions/gangs-and-queue.md#13-order-and-reservations gives the reasons.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Protocol

import numpy as np

from linkwise.drawing.words import minute
from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.gang_search import requests_of
from linkwise.extender.next.gangs.members import GangMembers, plan_of
from linkwise.extender.next.queue.earliest_start import EarliestStart, Gpus, earliest
from linkwise.extender.next.queue.run_times import RunningPods, RunTimes, RunTimesOf
from linkwise.extender.next.queue.scheduling_queue import Ordering, SchedulingQueue, Urgency
from linkwise.extender.place.cluster_view import NodesView, as_it_is
from linkwise.extender.place.nodes.node_filters import NodeFilters
from linkwise.extender.place.request import Spot
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_table import Bools, NodeTable
from linkwise.extender.state.decisions import Decision, What, of_reservation
from linkwise.extender.state.records import GangKey, PodRecord, Template

# If the ends are estimates, others may use this share of the wait.
_PASSING_SHARE = 0.5
# What passes ends before the gang has waited for so long.
_LENDS_SECONDS = 86_400.0
_MOST_TABLES = 4
MOST_UNPROVEN = 2  # pods at a time; as many broken words as a namespace has free
FIRST: Urgency = (-(2**63), 0.0, GangKey("", ""))  # more urgent than all


class ReservedGpus(Protocol):
    """GPUs that only some claimants see."""

    @property
    def gpus(self) -> Gpus: ...

    @property
    def number(self) -> int: ...


@dataclass(frozen=True, slots=True)
class FreshGpus:
    """GPUs that came free, and that the gangs that wait longest have not had their turn with."""

    gpus: Gpus
    number: int


@dataclass(frozen=True, slots=True)
class Reservation:
    key: GangKey
    urgency: Urgency
    earliest: EarliestStart
    requests: object  # of the members that the reservation is for
    places: frozenset[tuple[Template, str]]  # the template of a member and its node
    pool: Bools  # [rows] the nodes that the gang could use at its last turn
    number: int
    passable_until: float  # a claimant that ends by then may use the GPUs
    by_preemption: bool = (
        False  # pods were evicted for it: only a more urgent claimant may use the GPUs
    )

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
    """A gang or pod that requests GPUs, reduced to what reservations depend on."""

    urgency: Urgency
    seconds: float | None  # how long it runs, as far as is known; None: unknown
    # A gang that has started, or of which members keep GPUs in any case, and that lacks others.
    runs: bool = False


def may_pass(claimant: Claimant, reservation: Reservation, now: float) -> bool:
    """Whether *claimant* may use the GPUs of *reservation*."""
    if claimant.urgency <= reservation.urgency:
        return True
    if reservation.by_preemption:
        return False
    seconds = claimant.seconds
    return claimant.runs or (seconds is not None and now + seconds <= reservation.passable_until)


class Reservations:
    def __init__(
        self,
        cache: Cache,
        *,
        queue: SchedulingQueue,
        node_filters: NodeFilters,
        running_pods: RunningPods,
        run_times: RunTimes,
    ) -> None:
        self._cache, self._queue, self._node_filters = cache, queue, node_filters
        self._running_pods, self._run_times = running_pods, run_times
        self._reservations: dict[GangKey, Reservation] = {}
        self._numbers = count()
        # All gangs that are at least as urgent as this have had their turn with the fresh GPUs.
        self.served = FIRST
        self._fresh = FreshGpus({}, -1)
        self._changed: set[GangKey] = set()  # since `take_changed`
        self._told: dict[GangKey, Gpus] = {}  # what `take_decisions` has told of
        self._untold: dict[GangKey, str] = {}  # changed since -> why it was given up
        # By namespace: the uids of pods that may use reserved GPUs by their word.
        self._passing: dict[str, set[str]] = {}
        self._tables_of: object = None  # the state of the cache that `_tables` is about
        self._tables: dict[tuple[int, ...], NodeTable] = {}

    # Queries.

    def all(self) -> list[Reservation]:
        """All reservations, the most urgent first."""
        return sorted(self._reservations.values(), key=lambda reservation: reservation.urgency)

    @property
    def by_key(self) -> Mapping[GangKey, Reservation]:
        return self._reservations

    def of(self, key: GangKey) -> Reservation | None:
        return self._reservations.get(key)

    def is_by_preemption(self, key: GangKey) -> bool:
        """Whether pods are evicted for the reservation of *key*."""
        reservation = self._reservations.get(key)
        return reservation is not None and reservation.by_preemption

    def versions(self) -> Hashable:
        """A value that changes as pods come to the nodes of reservations: more urgent ones may use
        these GPUs."""
        nodes = self._cache.nodes
        names = {name for each in self._reservations.values() for name in each.gpus}
        return tuple([nodes[name].version for name in sorted(names) if name in nodes])

    def on(self, node: str) -> list[Reservation]:
        return [reservation for reservation in self.all() if node in reservation.gpus]

    # Which claimants may use reserved GPUs.

    def claimant(self, gang: Gang, members: GangMembers) -> Claimant:
        urgency = self._queue.urgency(gang.key)
        return claimant_of_gang(urgency, members, self._run_times_of(len(members.open)))

    def claimant_of_single(self, record: PodRecord) -> Claimant:
        return claimant_of_single(record, self._queue.ordering, self._run_times_of(1))

    def _run_times_of(self, pods: int) -> RunTimesOf:
        """Of so many *pods* that would use reserved GPUs together."""
        return _Believed(self._run_times, lambda namespace: self._is_believed(namespace, pods))

    def _is_believed(self, namespace: str, pods: int) -> bool:
        """A namespace whose durations have not proved right may be wrong about few pods at a time:
        nothing ends those that run for longer than they declared."""
        if self._run_times.has_kept_words(namespace):
            return True
        passing = sum(map(self._passes, self._passing.get(namespace, ())))
        return passing + pods <= MOST_UNPROVEN

    def _passes(self, uid: str) -> bool:
        record = self._cache.pods.get(uid)
        written = None if record is None or record.ended else plan_of(self._cache, record)
        return written is not None and written.plan.passes

    def note_passing(self, record: PodRecord) -> None:
        """A pod was planned, changed or went: it may use GPUs that are reserved for others."""
        namespace, uid = record.ref.namespace, record.uid
        if self._passes(uid):
            self._passing.setdefault(namespace, set()).add(uid)
        elif namespace in self._passing:
            self._passing[namespace].discard(uid)
            if not self._passing[namespace]:
                del self._passing[namespace]

    def unproven(self) -> list[str]:
        """The namespaces of which no more pods may use reserved GPUs by their word."""
        return [each for each in self._passing if not self._is_believed(each, 1)]

    def open_to(self, claimant: Claimant) -> list[Reservation]:
        """Its own reservation, and those that do not bind it, however long it runs."""
        ever = replace(claimant, seconds=None)
        return [
            reservation
            for reservation in self._reservations.values()
            if may_pass(ever, reservation, 0.0)
        ]

    def ways(self, claimant: Claimant, now: float) -> list[list[ReservedGpus]]:
        """Which reserved GPUs the claimant may use besides all free ones: first those that it may
        use in any case; then, if it ends in time, also those that others wait for until then."""
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
        """The nodes as this claimant may use them, in the order in which it tries the views."""
        return [self.view(reservations) for reservations in self.ways(claimant, now)]

    def view(self, reservations: Sequence[ReservedGpus]) -> NodesView:
        """The nodes with their free GPUs and those of *reservations*."""
        if not reservations:
            return as_it_is(self._cache)
        return NodesView(
            frozenset(reservation.number for reservation in reservations),
            partial(self.rows_with, reservations),
            self._rows_of(reservations),
        )

    def kept_on(self, node: str, reservations: Iterable[ReservedGpus]) -> int:
        """The bitmask of a node's unused GPUs that *reservations* reserve."""
        info = self._cache.nodes.get(node)
        mask = 0
        for reservation in reservations:
            mask |= reservation.gpus.get(node, 0)
        return info.set_aside & mask if info is not None else 0

    def rows_with(self, reservations: Sequence[ReservedGpus]) -> NodeTable:
        """The node table with the unused GPUs of *reservations* as if they were free. Made once
        while nothing changes, as hundreds of pods may see the same; the caller must not change
        it."""
        cache = self._cache
        logs = (cache.settled_rows, cache.changed_rows, cache.versions, cache.rows.charged)
        state = (*(log.generation for log in logs), cache.rows.aside_changes)
        if state != self._tables_of or len(self._tables) >= _MOST_TABLES:
            self._tables_of = state
            self._tables.clear()
        key = tuple(reservation.number for reservation in reservations)
        if key not in self._tables:
            self._tables[key] = self._new_rows_with(reservations)
        return self._tables[key]

    def _new_rows_with(self, reservations: Sequence[ReservedGpus]) -> NodeTable:
        rows = self._cache.rows.copy()
        for reservation in reservations:
            for node, mask in reservation.gpus.items():
                row = rows.row_of.get(node)
                if row is not None:
                    rows.free[row] |= rows.set_aside[row] & mask
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
        """Drop the copy of the fresh GPUs that claimants saw in their turns."""
        self._fresh = FreshGpus({}, -1)

    # Changes.

    def give_up(self, key: GangKey, why: str) -> None:
        if self._reservations.pop(key, None) is not None:
            self._cache.reserve(key, {})
            self._changed.add(key)
            self._untold[key] = why

    def reserve_for(
        self,
        gang: Gang,
        members: GangMembers,
        spots: Sequence[Spot],
        now: float,
        *,
        by_preemption: bool = False,
    ) -> Reservation:
        """Reserve *spots* for the open members of a gang. Overlapping ones end."""
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
            self._passable_until(gang.key, new, now),
            by_preemption,
        )
        for other in list(self._reservations.values()):
            if other.key != gang.key and _overlap(other.gpus, new.gpus):
                self.give_up(other.key, f"{gang.key.title} reserves some of its GPUs")
        self._reservations[gang.key] = reservation
        self._untold[gang.key] = ""
        self._cache.reserve(gang.key, new.gpus)
        self._changed.add(gang.key)
        return reservation

    def follow_order(self) -> None:
        """The order of the queue has changed: a gang must not be behind its own reservation."""
        for key, reservation in self._reservations.items():
            self._reservations[key] = replace(reservation, urgency=self._queue.urgency(key))

    def take_changed(self) -> set[GangKey]:
        """The gangs whose reservation changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def take_decisions(self, now: float) -> list[Decision]:
        """The reservations that were made, moved or given up since the last call. One that was
        given up and made again in between has not changed, or has moved."""
        untold, self._untold = self._untold, {}
        decisions = []
        for key, why in untold.items():
            before, reservation = self._told.pop(key, None), self._reservations.get(key)
            if reservation is None:
                if before is not None:
                    decisions.append(of_reservation(What.GIVEN_UP, key, now, why, before))
                continue
            gpus = self._told[key] = reservation.gpus
            if gpus != before:
                what = What.RESERVED if before is None else What.MOVED
                decisions.append(of_reservation(what, key, now, _start_of(reservation, now), gpus))
        return decisions

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
            able = [kind.ever(request) for kind in kinds]
            of_kind = np.array([*able, False])[rows.kinds[: len(rows)]]  # NOT_USABLE: the last
            pool |= of_kind & self._node_filters.rows(template)
        return pool

    def is_good(self, reservation: Reservation, members: GangMembers) -> bool:
        """Whether the members could still be placed on the reserved GPUs, once these are free."""
        if reservation.requests != requests_of(members.open):
            return False
        if reservation.start == math.inf and not reservation.by_preemption:
            return False  # a server has the GPUs; but if others make room, it is to be evicted
        for node, mask in reservation.gpus.items():
            info = self._cache.nodes.get(node)
            if info is None or info.machine is None or info.closed:
                return False
            if mask & ~info.machine.healthy_gpus:
                return False
        return all(self._node_filters.on(template, node) for template, node in reservation.places)

    def comes_free(
        self, reservation: Reservation, goes: Callable[[str], bool], now: float
    ) -> float | None:
        """When to check again whether all its GPUs come free; None: a pod has some, and neither
        leaves nor *goes* (of a uid: whether it is to be evicted)."""
        until = math.inf
        for node, mask in reservation.gpus.items():
            info = self._cache.nodes.get(node)
            if info is None:
                return None
            leaving = self._running_pods.leaving(info, now)
            for uid, gpus in info.owned.items():
                if gpus & mask and uid not in leaving and not goes(uid):
                    return None
            until = min(until, self._running_pods.on(info, now).until)
        return until

    def bring_up_to_date(self, reservation: Reservation, pool: Bools, now: float) -> Reservation:
        """Recompute the start, which depends on the pods that use the GPUs, and store *pool*, which
        depends on the nodes."""
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
            passable_until=self._passable_until(reservation.key, fresh, now),
        )
        self._reservations[reservation.key] = new
        return new

    def _passable_until(self, key: GangKey, earliest: EarliestStart, now: float) -> float:
        """An estimated start may come sooner, so then others may use only half of the wait. Each
        pod that runs longer than expected could be followed by another one: so none may pass if one
        there runs for longer than it declared, nor end after the gang has waited for long."""
        if earliest.late:
            return -math.inf
        share = 1.0 if earliest.sure else _PASSING_SHARE
        ends_at = self._queue.created(key) + _LENDS_SECONDS
        return min(ends_at, now + share * (earliest.start - now))


@dataclass(frozen=True, slots=True)
class _Believed:
    """The run times, where it depends on more than kept words which namespace is believed."""

    run_times: RunTimes
    believes: Callable[[str], bool]

    def of(self, pod: PodRecord) -> float | None:
        return self.run_times.of(pod, is_believed=self.believes(pod.ref.namespace))


def claimant_of_single(record: PodRecord, ordering: Ordering, run_times: RunTimesOf) -> Claimant:
    return Claimant(ordering.of_single(record), run_times.of(record))


def claimant_of_gang(urgency: Urgency, members: GangMembers, run_times: RunTimesOf) -> Claimant:
    keeps = members.started or any(m.needs.gpus for m in (*members.bound, *members.flying))
    runs = keeps and not members.enough_placed
    return Claimant(urgency, _longest(members.open, run_times), runs=runs)


def _longest(pods: Sequence[PodRecord], run_times: RunTimesOf) -> float | None:
    """For how many seconds the longest of *pods* runs; None: unknown."""
    seconds = [run_times.of(pod) for pod in pods]
    known = [each for each in seconds if each is not None]
    return max(known) if known and len(known) == len(seconds) else None


def _start_of(reservation: Reservation, now: float) -> str:
    """When the gang can start, in words."""
    earliest = reservation.earliest
    if reservation.by_preemption:
        return "pods are evicted for it"
    if earliest.start <= now:
        return "all are free"
    if not earliest.known or earliest.start == math.inf:
        return "when all are free is not known"
    return f"all are free at {minute(earliest.start)}{'' if earliest.sure else ', by an estimate'}"


def _overlap(one: Gpus, other: Gpus) -> bool:
    return any(mask & other.get(node, 0) for node, mask in one.items())
