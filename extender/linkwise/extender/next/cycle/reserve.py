"""Gives each waiting gang its turn, the most urgent first, and decides what to reserve for it.

If a gang finds no room at its turn and is one of the first, it gets a reservation: GPUs on which it
can start soon (`queue.earliest_start`). Only then does the next gang get its turn. So no gang gets
GPUs that came free before all more urgent gangs have had their turn. A search for a better place
runs every LOOK_SECONDS, and when GPUs come free that may be better.

No gang waits for GPUs of a server. A reservation that idles too much for too long ends
(`queue.idle_limit`). Members beyond a gang's minimum get no reservation.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np

from linkwise.extender.next.gangs.gang import Gang, Phase
from linkwise.extender.next.gangs.gang_search import Requests, StaleResult, requests_of
from linkwise.extender.next.gangs.members import GangMembers, needed
from linkwise.extender.next.gangs.to_come import MembersToCome
from linkwise.extender.next.moves.targets import Targets
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.next.queue.earliest_start import (
    EarliestStart,
    NodesChangedError,
    ReservationRequest,
    fits_on_empty_nodes,
    fits_without_servers,
    reserve,
)
from linkwise.extender.next.queue.idle_limit import IdleLimit, Idling
from linkwise.extender.next.queue.reservations import FIRST, Reservation
from linkwise.extender.next.queue.run_times import LEAST_SECONDS
from linkwise.extender.next.queue.scheduling_queue import QueueOrder
from linkwise.extender.place.cluster_view import as_if
from linkwise.extender.place.request import NoRoom, Spot
from linkwise.extender.state.cache.node_table import Bools, NodeTable
from linkwise.extender.state.records import GangKey
from linkwise.extender.state.timers import RunUnlocked, nothing

_MOST = 16  # reservations: each costs searches, and later gangs soon become the first


class Front:
    """The gangs that get a reservation in one pass through the scheduling queue.

    The gangs that get a reservation: the first of each namespace, and behind it those that use
    other nodes than those before them. With *several*, also others of the namespace.
    """

    def __init__(self, *, several: bool = False) -> None:
        self._several = several
        self.keys: set[GangKey] = set()
        self.unreserved: set[GangKey] = set()  # wait as well, and get none
        self.pools: dict[object, Bools] = {}  # by requests and the state of the nodes
        self._blocked: list[Bools] = []
        self._taken: dict[str, list[Bools]] = {}  # by namespace
        self._refused: set[tuple[str, Hashable]] = set()

    @property
    def is_full(self) -> bool:
        return len(self.keys) >= _MOST

    @property
    def is_blocked(self) -> bool:
        return bool(self._blocked)

    @property
    def takes_alike(self) -> bool:
        """Whether of pods that are alike another one may get a reservation."""
        return self._several and not self.is_full

    def take(self, key: GangKey, alike: Hashable, pool: Bools) -> bool:
        """*pool*: the nodes that the gang could use; of gangs that are *alike*, the same."""
        if self._several:
            return True
        if (key.namespace, alike) in self._refused:
            return False
        before = self._taken.setdefault(key.namespace, [])
        # Pools of one round differ in length if nodes are added during a pause.
        if any((pool[: len(other)] & other[: len(pool)]).any() for other in before):
            self._refused.add((key.namespace, alike))
            return False
        before.append(pool)
        return True

    def block(self, pool: Bools) -> None:
        """Hide GPUs that came free on these nodes from later gangs until the next turns."""
        self._blocked.append(pool)

    def blocks(self, row: int) -> bool:
        return any(row < len(pool) and pool[row] for pool in self._blocked)


# The first: how often to look for a better place after GPUs came free, or for any place for a gang
# without one. The second: how often if only estimates may have changed.
LOOK_SECONDS, ESTIMATE_SECONDS = 30.0, 300.0
# A reservation may idle its GPUs for as long as the gang has waited, and for this share of the time
# for which it will run.
RUN_SHARE = 0.25
# The shortest pause after an interrupted search, and between searches among GPUs that came free.
_AGAIN_SECONDS = 1.0


OTHERS_FIRST = "it is not among the first in the queue now"
WAITS_NO_MORE = "it no longer waits for GPUs"


class InVain(Enum):
    """Why the end of other pods makes no room for a gang or pod."""

    SERVERS = "servers"  # it would if those ended too that do not end by themselves
    NEVER_FITS = "never-fits"  # nor if all other pods were gone


@dataclass(frozen=True, slots=True)
class _Vain:
    requests: object
    state: object  # of the nodes
    what: InVain


class Reserve(Part):
    def __init__(
        self,
        books: Books,
        *,
        to_come: MembersToCome,
        targets: Targets,
        share: float,
        idle_limit: IdleLimit,
    ) -> None:
        """*share* of the GPUs that a gang could use may be reserved. The first of the gangs that
        wait for them may reserve what it needs in any case, within *idle_limit*. 0: no
        reservations at all."""
        super().__init__(books)
        books.agenda.ask(self._times)
        self._share, self._idle_limit, self._to_come = share, idle_limit, to_come
        self._run_times = books.run_times
        self._targets = targets
        self._look_at: dict[GangKey, float] = {}  # when to look for a place again
        self._looked: dict[GangKey, float] = {}  # when the last search was
        self._looked_in: dict[GangKey, object] = {}  # the state of the nodes at that search
        self._in_vain: dict[GangKey, _Vain] = {}
        self._known: set[GangKey] = set()  # gangs whose notes of a previous leader have been read
        # Gangs whose reservations idle GPUs -> how much their namespaces have used up.
        self._idling: dict[GangKey, float] = {}
        self._gpus_idling: dict[GangKey, int] = {}
        # Gangs that got GPUs -> their share of what their namespaces idled; until they start.
        self._got: dict[GangKey, float] = {}
        self._changed: set[GangKey] = set()  # since `take_changed`
        self._front = Front()
        self._seen: object = None

    def _times(self) -> Iterable[float]:
        return (*self._look_at.values(), *self._idle_limit.times())

    def in_vain(self, key: GangKey, members: GangMembers) -> InVain | None:
        """Of a gang without room; None: the end of other pods may help."""
        seen = self._in_vain.get(key)
        if seen is None:
            return None
        same = (seen.requests, seen.state) == (
            requests_of(needed(members).open),
            self._state_of_nodes(seen.what),
        )
        return seen.what if same else None

    def _state_of_nodes(self, in_vain: InVain) -> object:
        """What `in_vain` depends on: for SERVERS also what is free, as servers may go."""
        nodes = self._cache.changed_rows.generation
        return nodes if in_vain is InVain.NEVER_FITS else (nodes, self._cache.room)

    def rests_until(self, key: GangKey, now: float) -> float | None:
        """When the namespace of *key* may have reservations again; None: now."""
        return self._idle_limit.rests_until(key.namespace, now)

    def idles_since(self, key: GangKey) -> float | None:
        """Since when the namespace's reservations idle GPUs, if this gang's does; else None."""
        return self._idle_limit.idles_since(key.namespace) if key in self._idling else None

    def idle_used(self, key: GangKey) -> float:
        """How much of what its namespace may idle is used up, if this gang's reservation idles."""
        return self._idling.get(key, 0.0)

    def take_changed(self) -> set[GangKey]:
        """The gangs whose note on a pod has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed | self._reservations.take_changed()

    def give_up(self, key: GangKey, why: str) -> None:
        """End the gang's reservation, and forget its searches."""
        for known in (self._look_at, self._looked, self._looked_in, self._in_vain):
            known.pop(key, None)
        self._reservations.give_up(key, why)

    def got_gpus(self, key: GangKey) -> None:
        """The gang has a plan."""
        of_namespace = [
            gpus for other, gpus in self._gpus_idling.items() if other.namespace == key.namespace
        ]
        if key in self._gpus_idling:
            self._got[key] = self._gpus_idling[key] / sum(of_namespace)
        self.give_up(key, "it got GPUs")

    def _note_use(self, now: float) -> None:
        for key, share in [*self._got.items()]:
            gang = self._registry.gangs.get(key)
            if gang is not None and gang.phase is Phase.RUNNING:
                self._idle_limit.was_of_use(key.namespace, share, now)
            elif gang is not None:
                members = self._registry.members_of(gang)
                if members.planned or members.flying or members.bound:
                    continue  # it may not start
            del self._got[key]

    def have_to_look(self, now: float) -> bool:
        """Whether anything changed since the last turns."""
        return self._state() != self._seen or any(now >= time for time in self._times())

    def begin(self) -> None:
        self._front = Front(several=self._queue.ordering.order is not QueueOrder.AGE)

    def begin_turn(self, gang: Gang) -> None:
        """Begin the turn of *gang*; all gangs before it have had theirs."""
        if not self._front.is_blocked:
            self._reservations.served = self._queue.urgency(gang.key)

    def gives_each(self, gang: Gang) -> bool:
        """Whether *gang* may get a reservation beside that of a single pod like it."""
        return self._front.takes_alike and not _needs_no_reservation(
            gang, self._registry.members_of(gang)
        )

    def end_turn(self, gang: Gang, now: float, aside: RunUnlocked) -> None:
        """The gang found no room: reserve GPUs for it if it is one of the first."""
        members, requests = self._registry.needed_of(gang)
        if _needs_no_reservation(gang, members):
            self._front.unreserved.add(gang.key)
            self._cache.queue_first = True
            return
        reservation = self._reservations.of(gang.key)
        is_evicting = reservation is not None and reservation.by_preemption
        if not members.open or (self._share == 0 and not is_evicting):
            return
        if self._front.is_full and not is_evicting:
            return
        alike = self._alike(requests)
        pool = self._pool_of(members, alike)
        if self._front.take(gang.key, alike, pool) or is_evicting:
            self._front.keys.add(gang.key)
            self._cache.queue_first = True  # also for GPUs that come free in a pause from now on
            self._look_at_head(gang, pool, now, aside)

    def end(self, now: float) -> None:
        """End the turns: end the reservations of all gangs but the first, and release the GPUs that
        came free and were not used."""
        for key in [*self._reservations.by_key, *self._look_at]:
            if key not in self._front.keys:
                self.give_up(key, OTHERS_FIRST if self._queue.waits(key) else WAITS_NO_MORE)
        self._bound_idling(now)
        first = self._front.keys | self._front.unreserved
        self._cache.queue_first = bool(first)
        rows = self._cache.rows.row_of
        self._cache.release_fresh(
            [
                name
                for name in self._cache.fresh
                if name not in rows or not self._front.blocks(rows[name])
            ]
        )
        self._reservations.forget_fresh()
        self._reservations.served = min((self._queue.urgency(k) for k in first), default=FIRST)
        self._running_pods.forget_all_but(self._cache.nodes)
        self._known &= self._registry.gangs.keys()
        self._seen = self._state()

    def _state(self) -> object:
        cache = self._cache
        return (
            cache.settled_rows.generation,
            cache.changed_rows.generation,
            cache.room,
            self._reservations.versions(),
            self._queue.changes,
        )

    def _bound_idling(self, now: float) -> None:
        self._note_use(now)
        kept = self._kept_beside() if self._reservations.by_key else {}
        found = {
            key: idling
            for key, reservation in self._reservations.by_key.items()
            if (idling := self._idles(reservation, kept.get(key.namespace, Counter()), now))
        }
        by_namespace: dict[str, Idling] = {}
        for key, idling in found.items():
            by_namespace[key.namespace] = idling.beside(by_namespace.get(key.namespace))
        ended = self._idle_limit.look(by_namespace, now)
        used = {key: self._idle_limit.used(key.namespace) for key in found}
        self._gpus_idling = {key: idling.gpus for key, idling in found.items()}
        self._changed |= {key for key, _ in used.items() ^ self._idling.items()}
        self._idling = {key: of for key, of in used.items() if key.namespace not in ended}
        for key in [key for key in self._reservations.by_key if key.namespace in ended]:
            self.give_up(key, "the reserved GPUs of its namespace have idled for too long")

    def _kept_beside(self) -> Mapping[str, Counter[str]]:
        """How many GPUs on which nodes each namespace keeps beside its reservations: for members to
        come, and for pods that move."""
        kept = self._to_come.kept_by_namespace()
        for namespace, on in self._targets.kept_by_namespace().items():
            kept[namespace] = kept.get(namespace, Counter()) + on
        return kept

    def _idles(self, reservation: Reservation, kept: Counter[str], now: float) -> Idling | None:
        """What the reservation idles; None: nothing. *kept*: by the same namespace, beside it."""
        idle = sum(
            self._reservations.kept_on(node, [reservation]).bit_count() for node in reservation.gpus
        )
        row_of = self._cache.rows.row_of
        in_pool = (node for node in kept if node in row_of and row_of[node] < len(reservation.pool))
        idle += sum(kept[node] for node in in_pool if reservation.pool[row_of[node]])
        if not idle:
            return None
        is_over = idle > self._share * self._gpus_in(reservation.pool)
        return Idling(idle, self._worth(reservation, now), is_over)

    def _worth(self, reservation: Reservation, now: float) -> float:
        """How many GPU seconds the reservation may idle: a part of those that the gang will use,
        and as many as it has waited for, or a gang of short runs would wait forever. In moments a
        reservation idles little, however short the runs are. Infinity if others were evicted for
        it: their GPUs come free in moments."""
        gang = self._registry.gangs.get(reservation.key)
        if reservation.by_preemption or gang is None:
            return math.inf
        members, _ = self._registry.needed_of(gang)
        seconds = max([LEAST_SECONDS, *map(self._run_times.expected, members.open)])
        waited = max(now - self._queue.created(gang.key), 0.0)
        gpus = sum(member.demand.gpus for member in members.open)
        return gpus * (RUN_SHARE * seconds + waited)

    def _alike(self, requests: Requests) -> Hashable:
        """Equal for gangs that want the same of the same nodes: these may change in a pause."""
        return requests, self._cache.changed_rows.generation

    def _pool_of(self, members: GangMembers, alike: Hashable) -> Bools:
        """As `Reservations.pool_of`, worked out once for gangs that are alike."""
        if alike not in self._front.pools:
            self._front.pools[alike] = self._reservations.pool_of(members)
        return self._front.pools[alike]

    def _look_at_head(self, gang: Gang, pool: Bools, now: float, aside: RunUnlocked) -> None:
        members, requests = self._registry.needed_of(gang)
        reservation = self._up_to_date(gang, members, pool, now)
        if reservation is not None and reservation.by_preemption:
            self._look_at[gang.key] = now + LOOK_SECONDS
            return
        if reservation is not None and self._is_crowded_out(reservation, now):
            self.give_up(gang.key, "more urgent ones have reserved as much as they may together")
        wanted = sum(member.demand.gpus for member in members.open)
        if not self._may_reserve(gang.key, wanted, pool, now):
            self._looked.pop(gang.key, None)  # it looks as soon as it may
            self._look_at[gang.key] = now + LOOK_SECONDS
            return
        if not self._may_look(gang, pool, now):
            return
        self._look_at[gang.key], self._looked[gang.key] = now + LOOK_SECONDS, now
        self._looked_in[gang.key] = self._what_there_is()
        try:
            best = self._choose(gang, members, pool, now, aside)
        except NodesChangedError:
            self._look_at[gang.key] = now + _AGAIN_SECONDS
            self._front.block(self._pool_of(members, self._alike(requests)))  # with the new nodes
            return
        members, requests_now = self._registry.needed_of(gang)
        if best is None or requests_now != requests:
            return
        reservation = self._reservations.of(gang.key)
        if reservation is None or best.is_better_than(reservation.earliest, now):
            self._reservations.reserve_for(gang, members, best.spots, now)

    def _up_to_date(
        self, gang: Gang, members: GangMembers, pool: Bools, now: float
    ) -> Reservation | None:
        reservation = self._reservations.of(gang.key) or self._restored(gang, members, now)
        if reservation is None:
            return None
        reservation = self._reservations.bring_up_to_date(reservation, pool, now)
        if not self._reservations.is_good(reservation, members):
            self.give_up(gang.key, "it wants other GPUs now, or cannot get these any more")
            return None
        return reservation

    def _may_look(self, gang: Gang, pool: Bools, now: float) -> bool:
        """Whether to look for a better place now. If it is too soon to look at GPUs that came free,
        no gang behind this one gets them before."""
        if now >= self._look_at.get(gang.key, 0.0) or gang.key not in self._looked:
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
        """The reservation that a previous leader noted, read once; None: there is none."""
        if gang.key in self._known:
            return None
        self._known.add(gang.key)
        notes = (member.queue for member in members.all if member.live and member.queue)
        note = next((note for note in notes if note.spots or note.rests_until), None)
        if note is None:
            return None
        self._idle_limit.go_on(
            gang.key.namespace, note.idle_since, note.idle_used, note.rests_until, now
        )
        places = note.places()
        cache = self._cache.nodes
        kept = {node for other in self._reservations.all() for node in other.gpus}
        if len(places) != len(members.open) or not places:
            return None
        if any(node not in cache or node in kept for node, _ in places):
            return None
        spots = [Spot(*place) for place in places]
        return self._reservations.reserve_for(gang, members, spots, now)

    def _what_there_is(self) -> object:
        """Another thing once something may fit that did not before, or a node changed."""
        return self._cache.room, self._cache.changed_rows.generation

    def _came_free_in(self, pool: Bools) -> bool:
        row_of = self._cache.rows.row_of
        return any(pool[row_of[name]] for name in self._cache.fresh if name in row_of)

    def _choose(
        self, gang: Gang, members: GangMembers, pool: Bools, now: float, aside: RunUnlocked
    ) -> EarliestStart | None:
        claimant = self._reservations.claimant(gang, members)
        surely = self._reservations.open_to(claimant)
        wanted = sum(member.demand.gpus for member in members.open)
        open_to = frozenset(reservation.key for reservation in surely)
        own = frozenset(
            member.uid for member in (*members.bound, *members.flying, *members.planned)
        )
        base = self._reservations.rows_with(self._reservations.ways(claimant, now)[0])
        want = ReservationRequest(wanted, pool, base, open_to, own)

        nodes = self._cache.changed_rows.generation

        def seek(rows: NodeTable, changed: Sequence[int]) -> list[Spot] | NoRoom:
            view = as_if(rows, tuple(changed))
            try:
                found = self._search.seek(members, now, pausing=aside, view=view)
            except StaleResult as stale:
                raise NodesChangedError from stale
            if self._cache.changed_rows.generation != nodes:
                raise NodesChangedError
            return found

        self._in_vain.pop(gang.key, None)
        pause = partial(aside, nothing)
        spread = partial(self._search.spread, members)
        chosen = reserve(self._cache, self._running_pods, want, seek, spread, now, pause)
        if chosen is None and self._reservations.by_key.keys() <= want.open_to | {gang.key}:
            states = {each: self._state_of_nodes(each) for each in InVain}
            what = None
            if fits_without_servers(self._cache, self._running_pods, want, seek, now, pause):
                what = InVain.SERVERS
            elif not (
                _looks_at_pods(members) or fits_on_empty_nodes(self._cache, want, seek, pause)
            ):
                what = InVain.NEVER_FITS
            if what is not None:  # else pods without GPUs are in the way, or missing
                requests = requests_of(members.open)
                self._in_vain[gang.key] = _Vain(requests, states[what], what)
        return chosen

    def _may_reserve(self, key: GangKey, wanted: int, pool: Bools, now: float) -> bool:
        """Whether so many GPUs that the gang could use may be reserved, which the first gang may
        always. None is reserved for a namespace that rests."""
        if self.rests_until(key, now) is not None:
            return False
        held = 0
        for reservation in self._reservations.by_key.values():
            if reservation.key != key and self._counts_before(reservation, key):
                for node, mask in reservation.gpus.items():
                    row = self._cache.rows.row_of.get(node)
                    held += mask.bit_count() if row is not None and pool[row] else 0
        return not held or held + wanted <= self._share * self._gpus_in(pool)

    def _is_crowded_out(self, reservation: Reservation, now: float) -> bool:
        """Whether more urgent ones that came later have reserved so much that this is too much."""
        if self._queue.ordering.order is QueueOrder.AGE:
            return False
        gpus = sum(mask.bit_count() for mask in reservation.gpus.values())
        return not self._may_reserve(reservation.key, gpus, reservation.pool, now)

    def _counts_before(self, other: Reservation, key: GangKey) -> bool:
        """Whether the GPUs of *other* count before those of *key*. By age, who comes first reserves
        first. In other orders one that comes later may be more urgent."""
        is_by_age = self._queue.ordering.order is QueueOrder.AGE
        return is_by_age or other.urgency < self._queue.urgency(key)

    def _gpus_in(self, pool: Bools) -> int:
        rows = self._cache.rows
        sizes = np.array([*(kind.all_gpus.bit_count() for kind in self._cache.kinds), 0])
        return int(sizes[rows.kinds[: len(pool)]][pool].sum())


def _needs_no_reservation(gang: Gang, members: GangMembers) -> bool:
    """A single GPU comes free by itself. The gate asks for a plan as early as possible."""
    return (
        gang.alone
        and bool(members.open)
        and all(pod.needs.gpus == 1 and not pod.gated for pod in members.open)
    )


def _looks_at_pods(members: GangMembers) -> bool:
    """Whether the pods around decide where a member may be: an empty cluster tells nothing then."""
    return any(member.facts is not None and member.facts.demands for member in members.open)
