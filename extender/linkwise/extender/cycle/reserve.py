"""Those who wait have their turns, the most urgent first: what each may have, and what is kept.

A gang that finds no room at its turn gets a hold, if it is one of the first: the GPUs on which it
can start first (see `reserve`). Only then is it the turn of the next. So what comes free is never
given to anybody while somebody more urgent has not been looked at. A better place for a hold is
looked for every LOOK_SECONDS, and when GPUs come free that may be better.

Nobody waits for GPUs of a server, and a hold that idles too much for too long ends (`idle_limit`).
Members beyond a gang's minimum get no hold.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linkwise.extender.api.records import GangKey
from linkwise.extender.api.unlocked import Pause
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.node_table import Bools, NodeTable
from linkwise.extender.gangs.allocate import GangSearch
from linkwise.extender.gangs.failed_searches import requests_of
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.gangs.partial_admission import needed
from linkwise.extender.gangs.registry import GangRegistry
from linkwise.extender.placement.nodes.nodes_view import as_if
from linkwise.extender.placement.result import Refusal, Spot
from linkwise.extender.queue.earliest_start import (
    EarliestStart,
    NodesChangedError,
    ReservationRequest,
    fits_without_servers,
    reserve,
)
from linkwise.extender.queue.idle_limit import IdleLimit
from linkwise.extender.queue.reservations import FIRST, Reservation, Reservations
from linkwise.extender.queue.running_pods import RunningPods
from linkwise.extender.queue.scheduling_queue import SchedulingQueue

# A better place is looked for this often where something came free, and so is one for a gang for
# which there was none; and where only estimates may have changed, this often.
LOOK_SECONDS, ESTIMATE_SECONDS = 30.0, 300.0
# Where the search was interrupted, and where GPUs came free that may be better: not more often.
_AGAIN_SECONDS = 1.0
_MOST = 16  # holds: each costs searches, and those behind come to the front soon enough
SERVERS = "not for all unless pods go that never end by themselves (restartPolicy Always)"
NOBODY = "not for all even once nobody else runs"


@dataclass(frozen=True, slots=True)
class _Vain:
    requests: object
    changes: int
    what: str  # SERVERS or NOBODY


class _Front:
    """Who gets a hold: of each namespace the first; and of those behind it the first that wants
    other nodes."""

    def __init__(self) -> None:
        self.keys: set[GangKey] = set()
        self.pools: dict[object, Bools] = {}  # by wishes and what nodes there were
        self._blocked: list[Bools] = []
        self._taken: dict[str, list[Bools]] = {}  # by namespace

    @property
    def is_full(self) -> bool:
        return len(self.keys) >= _MOST

    @property
    def is_blocked(self) -> bool:
        return bool(self._blocked)

    def take(self, key: GangKey, pool: Bools) -> bool:
        before = self._taken.setdefault(key.namespace, [])
        # Pools of one round differ in length where nodes came in a pause.
        if any((pool[: len(other)] & other[: len(pool)]).any() for other in before):
            return False
        before.append(pool)
        return True

    def block(self, pool: Bools) -> None:
        """Those behind do not see what came free on these nodes before the next turns."""
        self._blocked.append(pool)

    def blocks(self, row: int) -> bool:
        return any(row < len(pool) and pool[row] for pool in self._blocked)


class Reserve:
    def __init__(
        self,
        cache: Cache,
        registry: GangRegistry,
        queue: SchedulingQueue,
        search: GangSearch,
        reservations: Reservations,
        running_pods: RunningPods,
        *,
        share: float,
        idle_limit: IdleLimit,
    ) -> None:
        """*share* of the GPUs that a gang could use may be held; what the first of those who wait
        for them needs is held in any case, within *idle_bound*. 0: no holds at all."""
        self._cache, self._registry, self._queue = cache, registry, queue
        self._search, self._reservations, self._running_pods = search, reservations, running_pods
        self._share, self._idle_limit = share, idle_limit
        self._look_at: dict[GangKey, float] = {}  # when to look for a place again
        self._looked: dict[GangKey, float] = {}  # when that was done last
        self._looked_in: dict[GangKey, object] = {}  # and what there was then
        self._in_vain: dict[GangKey, _Vain] = {}
        self._known: set[GangKey] = set()  # what was kept for them before is known
        self._over: set[GangKey] = set()  # what is kept for them idles more than the share
        self._changed: set[GangKey] = set()  # since `take_changed`
        self._front = _Front()
        self._seen: object = None

    def next_due(self) -> float | None:
        times = (*self._look_at.values(), self._idle_limit.next_due())
        return min((time for time in times if time is not None), default=None)

    def in_vain(self, key: GangKey, members: GangMembers) -> str:
        """What does not help a gang that finds no room: that everybody else ends by himself, or
        that all go. Empty: that would help, as far as it was seen."""
        seen = self._in_vain.get(key)
        if seen is None:
            return ""
        same = (seen.requests, seen.changes) == (
            requests_of(needed(members).open),
            self._cache.changed_rows.generation,
        )
        return seen.what if same else ""

    def rests_until(self, key: GangKey, now: float) -> float | None:
        """Until when nothing over the share is kept for gangs of this one's namespace."""
        return self._idle_limit.rests_until(key.namespace, now)

    def idles_since(self, key: GangKey) -> float | None:
        """Since when what is kept for this gang idles more than the share; None: it does not."""
        return self._idle_limit.over_since(key.namespace) if key in self._over else None

    def take_changed(self) -> set[GangKey]:
        """The gangs of which something else is to be noted than when this was last asked."""
        changed, self._changed = self._changed, set()
        return changed | self._reservations.take_changed()

    def give_up(self, key: GangKey) -> None:
        """Keep nothing for this one."""
        for known in (self._look_at, self._looked, self._looked_in, self._in_vain):
            known.pop(key, None)
        self._reservations.give_up(key)

    def have_to_look(self, now: float) -> bool:
        """Whether something happened since all had their turns."""
        due = self.next_due()
        return self._state() != self._seen or (due is not None and now >= due)

    def begin(self) -> None:
        self._front = _Front()

    def begin_turn(self, gang: Gang) -> None:
        """All before this one have had theirs."""
        if not self._front.is_blocked:
            self._reservations.served = self._queue.urgency(gang.key)

    def end_turn(self, gang: Gang, now: float, pause: Pause) -> None:
        """It found no room: keep some for it, if it is one of the first."""
        members = needed(self._registry.muster(gang))
        reservation = self._reservations.of(gang.key)
        is_evicting = reservation is not None and reservation.evicts
        if not members.open or (self._share == 0 and not is_evicting):
            return
        if self._front.is_full and not is_evicting:
            return
        pool = self._pool_of(members)
        if self._front.take(gang.key, pool) or is_evicting:
            self._front.keys.add(gang.key)
            self._cache.line_first = True  # what comes free in a pause from now on too
            self._look_at_head(gang, pool, now, pause)

    def end(self, now: float) -> None:
        """All have had theirs: what is kept for others than the first is given up, and what came
        free and was not taken is anybody's."""
        for key in [*self._reservations.by_key, *self._look_at]:
            if key not in self._front.keys:
                self.give_up(key)
        self._bound_idling(now)
        self._cache.line_first = bool(self._front.keys)
        rows = self._cache.rows.row_of
        self._cache.release_fresh(
            [
                name
                for name in self._cache.fresh
                if name not in rows or not self._front.blocks(rows[name])
            ]
        )
        self._reservations.forget_fresh()
        self._reservations.served = min(
            (self._queue.urgency(k) for k in self._front.keys), default=FIRST
        )
        self._running_pods.forget_all_but(self._cache.nodes)
        self._known &= self._registry.gangs.keys()
        self._seen = self._state()

    def _state(self) -> object:
        cache = self._cache
        return (
            cache.settled_rows.generation,
            cache.changed_rows.generation,
            cache.room,
            self._queue.changes,
        )

    def _bound_idling(self, now: float) -> None:
        over = {
            key
            for key, reservation in self._reservations.by_key.items()
            if self._idles_too_much(reservation)
        }
        ended = self._idle_limit.look({key.namespace for key in over}, now)
        self._changed |= over ^ self._over
        self._over = {key for key in over if key.namespace not in ended}
        for key in over - self._over:
            self.give_up(key)

    def _idles_too_much(self, reservation: Reservation) -> bool:
        idle = sum(
            self._reservations.kept_on(node, [reservation]).bit_count() for node in reservation.gpus
        )
        return idle > self._share * self._gpus_in(reservation.pool)

    def _pool_of(self, members: GangMembers) -> Bools:
        """As `Reservations.pool_of`, worked out once for gangs that want the same, and again
        where nodes changed in a pause."""
        alike = requests_of(members.open), self._cache.changed_rows.generation
        if alike not in self._front.pools:
            self._front.pools[alike] = self._reservations.pool_of(members)
        return self._front.pools[alike]

    def _look_at_head(self, gang: Gang, pool: Bools, now: float, pause: Pause) -> None:
        members = needed(self._registry.muster(gang))
        reservation = self._up_to_date(gang, members, pool, now)
        if reservation is not None and reservation.evicts:
            self._look_at[gang.key] = now + LOOK_SECONDS
            return
        if not self._may_look(gang, pool, now):
            return
        self._look_at[gang.key], self._looked[gang.key] = now + LOOK_SECONDS, now
        self._looked_in[gang.key] = self._what_there_is()
        requests = requests_of(members.open)
        try:
            best = self._choose(gang, members, pool, now, pause)
        except NodesChangedError:
            self._look_at[gang.key] = now + _AGAIN_SECONDS
            self._front.block(self._pool_of(members))  # with the nodes that came
            return
        members = needed(self._registry.muster(gang))
        if best is None or requests_of(members.open) != requests:
            return
        reservation = self._reservations.of(gang.key)
        if reservation is None or best.is_better_than(reservation.earliest, now):
            self._reservations.reserve_for(gang, members, best.spots, now)

    def _up_to_date(
        self, gang: Gang, members: GangMembers, pool: Bools, now: float
    ) -> Reservation | None:
        reservation = self._reservations.of(gang.key)
        if reservation is not None and not self._reservations.is_good(reservation, members):
            self.give_up(gang.key)
            return None
        if reservation is None:
            reservation = self._restored(gang, members, now)
        return (
            None
            if reservation is None
            else self._reservations.bring_up_to_date(reservation, pool, now)
        )

    def _may_look(self, gang: Gang, pool: Bools, now: float) -> bool:
        """Whether to look for a better place now; where it is too soon for what came free, nobody
        behind this gang gets that before."""
        if now >= self._look_at.get(gang.key, 0.0):
            looked = self._looked.get(gang.key, -math.inf)
            same = self._looked_in.get(gang.key) == self._what_there_is()
            if same and now < looked + ESTIMATE_SECONDS:
                self._look_at[gang.key] = looked + ESTIMATE_SECONDS
                return False
            return True
        if not self._came_free_in(pool):
            return False
        again_at = self._looked.get(gang.key, -math.inf) + _AGAIN_SECONDS
        if now >= again_at:
            return True
        self._look_at[gang.key] = again_at
        self._front.block(pool)
        return False

    def _restored(self, gang: Gang, members: GangMembers, now: float) -> Reservation | None:
        """What a leader before this one kept for it, once, if it can still come true."""
        if gang.key in self._known:
            return None
        self._known.add(gang.key)
        notes = (member.queue for member in members.all if member.live and member.queue)
        note = next((note for note in notes if note.spots or note.rests_until), None)
        if note is None:
            return None
        self._idle_limit.go_on(gang.key.namespace, note.idle_since, note.rests_until, now)
        places = note.places()
        cache = self._cache.nodes
        kept = {node for other in self._reservations.all() for node in other.gpus}
        if len(places) != len(members.open) or not places:
            return None
        if any(node not in cache or node in kept for node, _ in places):
            return None
        reservation = self._reservations.reserve_for(
            gang, members, [Spot(*place) for place in places], now
        )
        if self._reservations.is_good(reservation, members):
            return reservation
        self.give_up(gang.key)
        return None

    def _what_there_is(self) -> object:
        """Another thing once something may fit that did not before, or a node changed."""
        return self._cache.room, self._cache.changed_rows.generation

    def _came_free_in(self, pool: Bools) -> bool:
        row_of = self._cache.rows.row_of
        return any(pool[row_of[name]] for name in self._cache.fresh if name in row_of)

    def _choose(
        self, gang: Gang, members: GangMembers, pool: Bools, now: float, pause: Pause
    ) -> EarliestStart | None:
        claimant = self._reservations.claimant(gang, members)
        surely = self._reservations.open_to(claimant)
        wanted = sum(member.demand.gpus for member in members.open)
        if not self._may_reserve(gang.key, wanted, pool, now):
            return None
        open_to = frozenset(reservation.key for reservation in surely)
        own = frozenset(
            member.uid for member in (*members.bound, *members.flying, *members.planned)
        )
        base = self._reservations.rows_with(self._reservations.ways(claimant, now)[0])
        want = ReservationRequest(wanted, pool, base, open_to, own)

        def seek(rows: NodeTable, changed: Sequence[int]) -> list[Spot] | Refusal:
            return self._search.seek(members, now, view=as_if(rows, tuple(changed)))

        self._in_vain.pop(gang.key, None)
        chosen = reserve(self._cache, self._running_pods, want, seek, now, pause)
        if chosen is None and self._reservations.by_key.keys() <= want.open_to | {gang.key}:
            helps = fits_without_servers(self._cache, self._running_pods, want, seek, now)
            self._in_vain[gang.key] = _Vain(
                requests_of(members.open),
                self._cache.changed_rows.generation,
                SERVERS if helps else NOBODY,
            )
        return chosen

    def _may_reserve(self, key: GangKey, wanted: int, pool: Bools, now: float) -> bool:
        """Whether so much may be kept idle of what it could use; the first may in any case, where
        its namespace has not done so for too long."""
        held = 0
        for reservation in self._reservations.by_key.values():
            if reservation.key != key:
                for node, mask in reservation.gpus.items():
                    row = self._cache.rows.row_of.get(node)
                    held += mask.bit_count() if row is not None and pool[row] else 0
        if not held and self.rests_until(key, now) is None:
            return True
        return held + wanted <= self._share * self._gpus_in(pool)

    def _gpus_in(self, pool: Bools) -> int:
        rows = self._cache.rows
        sizes = np.array([*(kind.all_gpus.bit_count() for kind in self._cache.kinds), 0])
        return int(sizes[rows.kinds[: len(pool)]][pool].sum())
