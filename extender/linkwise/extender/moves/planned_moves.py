"""Makes room for a waiting gang or pod by moves, and sees them through.

1. A gang that found no room has a reservation: the GPUs on which it can start first. If moves make
   room for it now, and cost less than that wait does, they are planned (`moves.search`).
2. The room is reserved for the gang, and the targets for the pods that move. Then these are
   evicted.
3. The controller of each makes a new pod. It is known by its owner and its request, and is planned
   exactly on the target. A target for which no pod comes is given back after COME_SECONDS.

**The rule**, in GPU seconds: moves lose the cost of each pod that moves times its GPUs. They save
the gang's wait, from now until its reservation is expected to be free, times its GPUs. They have to
save at least what they lose, or nothing moves.

With `Moves.ADVISE`, the plan is only remembered as advice: until the gang starts or goes, a pod
that would move changes, or another search finds something else.

A pod is moved at most once in a while, and not near its expected end: it would rather be waited
for. Nothing moves for less important work, and nothing that a PodDisruptionBudget protects.
"""

import math
from collections.abc import Callable, Iterator, Mapping, MutableSet, Set
from dataclasses import dataclass, replace

from linkwise.extender.api.queue_note import NotedMove
from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.api.timers import Agenda
from linkwise.extender.api.unlocked import RunUnlocked, run_inline
from linkwise.extender.api.views import MoveCounts
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.node_info import plan_on
from linkwise.extender.cache.node_table import popcount
from linkwise.extender.cache.pending_writes import PendingWrites
from linkwise.extender.cache.plans import plan_id, written_plan
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.gang_search import GangSearch, Seen, StaleResult
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.gangs.registry import GangRegistry
from linkwise.extender.moves.plan import Move, MovePlan, MoveUnderWay, gpus_by_node
from linkwise.extender.moves.policy import MovePolicy, Moves
from linkwise.extender.moves.search import Mover, MoveSearch
from linkwise.extender.placement.result import Spot
from linkwise.extender.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.preemption.gang_room import GangRoom, some_at_a_time
from linkwise.extender.queue.reservations import Reservations
from linkwise.extender.queue.running_pods import RunningPods, Tenant
from linkwise.extender.queue.scheduling_queue import SchedulingQueue
from linkwise.topology.annotations.plan import Plan
from linkwise.topology.machine.model import MAX_GPUS

REASON = "Moved"
# How often moves are sought for one gang: if something changed meanwhile, and else, as pods may be
# moved once they have run for long enough.
TRY_SECONDS, LOOK_SECONDS = 60.0, 1800.0
# How long a target is kept once the pod that moves has ended, or should have: its controller may be
# slow. Its grace period may be as long as this; beyond, GPUs would idle for a tenant's word.
COME_SECONDS, _MOST_GRACE_SECONDS = 300.0, 3600.0
# A pod that has run for less than this many times the cost of its move stays: the shorter its run,
# the more of it a restart takes away.
_RUN_TIMES = 10.0
_MOMENT_SECONDS = 1.0
_BY_NAME = "StatefulSet"  # its pods keep their names, and each its own volumes
# More pods of one node make no room for one member.
_MOVES_OF_A_MEMBER = MAX_GPUS
_MOST_REMEMBERED = 20_000


@dataclass(slots=True)
class _Seat:
    """A target, kept for the pod that takes the place of one that moves."""

    noted: NotedMove
    spot: Spot
    for_whom: GangKey
    began: float
    like: PodRecord | None  # the pod that moves; None: it was gone when this leader began
    move: Move | None = None  # None: an earlier leader planned it
    plan: MovePlan | None = None
    left: float | None = None  # since when the pod that moves is gone, or on its way out

    @property
    def key(self) -> GangKey:
        """Of the reservation."""
        namespace, _, name = self.noted.pod.partition("/")
        return GangKey(namespace, name, self.noted.uid, "move")

    def suits(self, record: PodRecord) -> bool:
        """Whether *record* takes the place of the pod that moves."""
        if record.owner_uid != self.noted.owner:
            return False
        if record.demand.gpus != self.spot.gpus.bit_count():
            return False
        if record.owner_kind == _BY_NAME and record.key != self.noted.pod:
            return False
        if self.like is None:
            return True
        # The template has namespace and requests. What else the pods ask for depends on whether
        # their owner has been read.
        return (
            record.template is self.like.template
            and record.demand == self.like.demand
            and record.ask.requirement == self.like.ask.requirement
        )


class PlannedMoves:
    """*awaited*: the uids of the owners whose new pods get a target, and of the new pods that have
    got one, until they are bound. They are planned ahead (`cache.ingest`)."""

    def __init__(
        self,
        cache: Cache,
        pending_writes: PendingWrites,
        registry: GangRegistry,
        queue: SchedulingQueue,
        search: GangSearch,
        reservations: Reservations,
        running_pods: RunningPods,
        *,
        budgets: DisruptionBudgets,
        policy: MovePolicy,
        awaited: MutableSet[str],
        waits_for_servers: Callable[[GangKey, GangMembers], bool],
        agenda: Agenda,
    ) -> None:
        agenda.ask(self._times)
        self._cache, self._pending_writes, self._registry = cache, pending_writes, registry
        self._queue, self._search, self._reservations = queue, search, reservations
        self._running_pods, self._budgets, self._policy = running_pods, budgets, policy
        self._awaited, self._waits_for_servers = awaited, waits_for_servers
        self._plans: dict[GangKey, MovePlan] = {}  # by the gang that waits
        self._began: dict[GangKey, float] = {}  # when each was made
        self._look_at = 0.0  # when to check whether the room of the plans comes free
        self._seats: dict[str, _Seat] = {}  # by the uid of the pod that moves
        self._stay: dict[str, float] = {}  # uids of pods that are not moved before a time
        self._tries: dict[GangKey, tuple[float, object]] = {}
        self._noted: dict[str, frozenset[str]] = {}  # uid of a pod with a note -> uids of owners
        self._changed: set[GangKey] = set()  # since `take_changed`
        self._is_restored = False
        self._advice: dict[GangKey, MovePlan] = {}
        self._counts = MoveCounts()

    @property
    def plans(self) -> Mapping[GangKey, MovePlan]:
        """By the gang for which pods move."""
        return self._plans

    @property
    def policy(self) -> MovePolicy:
        return self._policy

    @property
    def advice(self) -> Mapping[GangKey, MovePlan]:
        """The moves that would be planned with `Moves.CONSENT`, by the gang that waits, the most
        urgent first."""
        return self._advice

    @property
    def counts(self) -> MoveCounts:
        return self._counts

    def under_way(self) -> list[MoveUnderWay]:
        """Those that this leader has planned."""
        return [
            MoveUnderWay(seat.move, seat.plan, seat.for_whom, self._end_of(uid, seat))
            for uid, seat in self._seats.items()
            if seat.move is not None and seat.plan is not None
        ]

    def _times(self) -> Iterator[float]:
        state = self._state()
        for at, tried_in in self._tries.values():
            yield at + LOOK_SECONDS if tried_in == state else at
        if self._plans:
            yield self._look_at
        ends = (self._end_of(uid, seat) for uid, seat in self._seats.items())
        yield from (at for at in ends if at is not None)

    # The note of the moves, for the next leader.

    def noted(self, key: GangKey) -> tuple[NotedMove, ...]:
        """The targets that are kept for pods that move for this gang."""
        seats = (seat for seat in self._seats.values() if seat.for_whom == key)
        return tuple(sorted((seat.noted for seat in seats), key=lambda noted: noted.uid))

    def noted_at(self, key: GangKey) -> float | None:
        began = (seat.began for seat in self._seats.values() if seat.for_whom == key)
        return max(began, default=None)

    def _noted_on(self, key: GangKey) -> set[NotedMove]:
        """What the API server has of it."""
        notes = (member.queue for member in self._cache.members(key) if member.queue)
        return {move for note in notes for move in note.moves}

    def _is_noted(self, record: PodRecord, noted: Set[NotedMove]) -> bool:
        seat = self._seats.get(record.uid)
        return seat is not None and seat.noted in noted

    def take_changed(self) -> set[GangKey]:
        """The gangs whose note has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def restore(self, now: float) -> set[GangKey]:
        """Keep the targets that an earlier leader noted for pods that it evicted; only once. Return
        the single pods that have got theirs."""
        if self._is_restored or self._policy.moves is Moves.NEVER:
            return set()
        self._is_restored = True
        for carrier in [*self._cache.pods.values()]:
            if carrier.queue is not None and carrier.queue.moves:
                members = 1 if carrier.gang is None else len(self._cache.gangs[carrier.gang])
                for noted in carrier.queue.moves[: members * _MOVES_OF_A_MEMBER]:
                    self._restore(noted, carrier, carrier.queue.moves_at or 0.0, now)
        placed = set()
        for record in [*self._cache.pods.values()]:
            if record.node or not record.live:
                continue
            if any(seat.suits(record) for seat in self._seats.values()):
                planned_ahead = replace(record, gang=record.gang or _key_of(record))
                self._cache.put_pod(planned_ahead)
                self._take_seat(planned_ahead, now)
                placed.add(_key_of(record))
        return placed

    def _restore(self, noted: NotedMove, carrier: PodRecord, began: float, now: float) -> None:
        for_whom = carrier.gang or _key_of(carrier)
        self._changed.add(for_whom)
        moved, info = self._cache.pods.get(noted.uid), self._cache.nodes.get(noted.node)
        gpus = int(noted.gpus, 16)
        since = began if moved is None else max(began, moved.leaving_until)
        if (moved is not None and moved.live) or now > since + 2 * COME_SECONDS:
            return  # it was not evicted, or so long ago that nothing is kept for it
        if noted.uid in self._seats or info is None or gpus & ~(info.free | info.fresh):
            return  # its replacement is there
        spot = Spot(noted.node, gpus)
        self._keep(_Seat(noted, spot, for_whom, began, moved, left=now))

    def _keep(self, seat: _Seat) -> None:
        self._seats[seat.noted.uid] = seat
        self._cache.reserve(seat.key, {seat.spot.node: seat.spot.gpus})
        self._awaited.add(seat.noted.owner)
        self._changed.add(seat.for_whom)
        self._counts = replace(self._counts, begun=self._counts.begun + 1)

    def _read_note(self, record: PodRecord) -> None:
        """New pods of the owners are planned ahead from now on, whoever leads."""
        if self._policy.moves is Moves.NEVER:
            return
        moves = () if record.queue is None else record.queue.moves
        owners = frozenset(move.owner for move in moves)
        before = self._noted.pop(record.uid, frozenset())
        if owners:
            self._noted[record.uid] = owners
            self._awaited |= owners
        for owner in before - owners:
            self._await_no_more(owner)

    def _await_no_more(self, owner: str) -> None:
        seats = any(seat.noted.owner == owner for seat in self._seats.values())
        if not seats and not any(owner in owners for owners in self._noted.values()):
            self._awaited.discard(owner)

    # Pods

    def pod_changed(self, record: PodRecord, now: float) -> None:
        """A pod came or changed; the cache has it already."""
        if record.queue is not None or record.uid in self._noted:
            self._read_note(record)
        if record.written is not None and record.written.plan.moved:
            self._stays(record.uid, record.written.plan.moved + self._policy.again_seconds)
        if record.uid in self._seats:
            if not record.live:
                self._leaves(record.uid, now)
        elif record.owner_uid in self._awaited and not record.node and record.live:
            self._take_seat(record, now)
        elif record.node:
            self._awaited.discard(record.uid)

    def pod_gone(self, uid: str, now: float) -> None:
        self._stay.pop(uid, None)
        self._awaited.discard(uid)
        for owner in self._noted.pop(uid, ()):
            self._await_no_more(owner)
        self._leaves(uid, now)
        if uid in self._seats:
            self._seats[uid].left = now

    def evicted(self, uid: str, now: float) -> None:
        """The API server evicts the pod; the watch may show it later."""
        self._leaves(uid, now)

    def _leaves(self, uid: str, now: float) -> None:
        seat = self._seats.get(uid)
        if seat is not None and seat.left is None:
            seat.left = now
            lost = self._counts.lost_gpu_seconds + (seat.move.lost if seat.move else 0.0)
            self._counts = replace(self._counts, lost_gpu_seconds=lost)

    def _take_seat(self, record: PodRecord, now: float) -> None:
        cache = self._cache
        if record.uid in cache.plans or record.gang is None or not record.gang.uid:
            return
        if record.held_back:  # it would hold the GPUs for as long as its other gate stays
            return
        for uid, seat in self._seats.items():
            spot = seat.spot
            if seat.left is None or not seat.suits(record):
                continue
            self._end_seat(uid)
            info = cache.nodes.get(spot.node)
            if (
                info is None
                or info.kind is None
                or info.closed
                or spot.gpus & ~(info.free | info.fresh)
            ):
                self._counts = replace(self._counts, given_back=self._counts.given_back + 1)
                return
            self._counts = replace(self._counts, arrived=self._counts.arrived + 1)
            epoch = self._pending_writes.next_epoch([record.uid])
            ident = plan_id(record.ref.namespace, record.ref.name, epoch, now, [record.uid])
            leader = self._pending_writes.leader
            plan = Plan(id=ident, node=spot.node, leader=leader, epoch=epoch, made=now, moved=now)
            cache.plan(record.uid, written_plan(cache, record, plan, spot.gpus))
            self._awaited.add(record.uid)  # it may change before the watch shows its plan
            return

    def _stays(self, uid: str, until: float) -> None:
        """The pod is not moved before that time."""
        if len(self._stay) >= _MOST_REMEMBERED:
            del self._stay[next(iter(self._stay))]
        self._stay[uid] = until

    # Rounds

    def run(self, now: float, aside: RunUnlocked = run_inline) -> None:
        """See the moves that are planned through, and plan more. With *aside*, others use the cache
        during the search."""
        if self._policy.moves is Moves.NEVER:
            return
        for key in [*self._plans]:
            if not self._is_wanted(key):
                self._end_plan(key)
            elif self._is_in_vain(key, now):
                self._give_up(key, now)
        self._look_at = now + TRY_SECONDS
        for uid, seat in [*self._seats.items()]:
            if self._is_over(uid, seat, now):
                self._end_seat(uid)
                self._counts = replace(self._counts, given_back=self._counts.given_back + 1)
        waiting = self._queue.without_room() if self._budgets.known else []
        keys = {gang.key for gang in waiting}
        for key in self._tries.keys() - keys:
            del self._tries[key]
        self._try_waiting(waiting, now, aside)
        self._keep_advice(waiting, now)
        # Single pods that have started are in no queue: their notes are looked at here.
        carriers = (self._cache.pods[uid] for uid in self._noted)
        self._changed |= {_key_of(pod) for pod in carriers if pod.gang is None}
        for key, plan in self._plans.items():
            self._evict(key, plan, now)

    def _is_wanted(self, key: GangKey) -> bool:
        """Whether the gang still waits for the room that the moves make."""
        reservation = self._reservations.of(key)
        return reservation is not None and reservation.by_preemption

    def _is_in_vain(self, key: GangKey, now: float) -> bool:
        """Whether some of the room does not come free: a pod that moves is not evicted or does not
        end, or another pod uses it."""
        reservation = self._reservations.of(key)
        is_new = now < self._began[key] + COME_SECONDS
        going = {move.pod.uid for move in self._plans[key].moves if is_new}

        def goes(uid: str) -> bool:
            record = self._cache.pods.get(uid)
            return uid in going and record is not None and record.live

        return reservation is None or self._reservations.comes_free(reservation, goes, now) is None

    def _give_up(self, key: GangKey, now: float) -> None:
        is_late, noted = now >= self._began[key] + COME_SECONDS, self._noted_on(key)
        for move in self._end_plan(key).moves:
            record = self._cache.pods.get(move.pod.uid)
            if is_late and record is not None and record.live and self._is_noted(record, noted):
                # It cannot be evicted.
                self._stays(record.uid, now + self._policy.again_seconds)
        self._reservations.give_up(key, "GPUs that were to come free for it by moves do not")

    def _end_plan(self, key: GangKey) -> MovePlan:
        del self._began[key]
        return self._plans.pop(key)

    def _is_over(self, uid: str, seat: _Seat, now: float) -> bool:
        """Whether the target is kept for no pod any more."""
        end = self._end_of(uid, seat)
        if end is not None:
            return now >= end
        return seat.for_whom not in self._plans and not self._pending_writes.is_evicting(uid)

    def _end_of(self, uid: str, seat: _Seat) -> float | None:
        """Until when the target is kept; None: the pod that moves has not begun to leave. Some
        controllers make a new pod only once the old one is gone."""
        if seat.left is None:
            return None
        record = self._cache.pods.get(uid)
        grace_ends = 0.0 if record is None else record.leaving_until
        return max(seat.left, min(grace_ends, seat.left + _MOST_GRACE_SECONDS)) + COME_SECONDS

    def _end_seat(self, uid: str) -> None:
        seat = self._seats.pop(uid)
        self._cache.reserve(seat.key, {})
        self._await_no_more(seat.noted.owner)
        self._changed.add(seat.for_whom)

    def _state(self) -> object:
        return self._cache.room, self._cache.comings_and_goings

    def _try_waiting(self, waiting: list[Gang], now: float, aside: RunUnlocked) -> None:
        state = self._state()
        for gang in waiting:
            if self._reservations.is_by_preemption(gang.key):
                self._tries.pop(gang.key, None)
                self._advice.pop(gang.key, None)
                continue
            at, tried_in = self._tries.get(gang.key, (0.0, None))
            if now < (at + LOOK_SECONDS if tried_in == state else at):
                continue
            members = self._registry.needed_of(gang).members
            wait = self._expected_wait(gang, members, now)
            if wait <= self._policy.cost_seconds:  # it starts soon, or is not among the first
                self._advice.pop(gang.key, None)
                worth_it_from = self._queue.created(gang.key) + self._policy.cost_seconds
                at = max(now + TRY_SECONDS, worth_it_from + _MOMENT_SECONDS)
                self._tries[gang.key] = at, None if now < worth_it_from else state
                continue
            self._tries[gang.key] = now + TRY_SECONDS, state
            try:
                plan = self._find(gang, members, wait, now, aside)
            except StaleResult:
                self._tries[gang.key] = now, None
                return
            self._advice.pop(gang.key, None)
            if plan is None:
                continue
            if self._policy.moves is Moves.ADVISE:  # it takes nothing from those behind
                self._advice[gang.key] = plan
                continue
            self._begin(gang, members, plan, now)
            return

    def _keep_advice(self, waiting: list[Gang], now: float) -> None:
        """Forget what is for others than these, or about pods that have changed since."""
        kept = {}
        for gang in waiting:
            plan = self._advice.get(gang.key)
            if plan is None:
                continue
            if self._is_outdated(plan) or not self._has_targets(plan):
                self._tries[gang.key] = self._tries.get(gang.key, (now, None))[0], None
            else:
                kept[gang.key] = plan
        self._advice = kept

    def _has_targets(self, plan: MovePlan) -> bool:
        """Whether they are free still."""
        nodes = self._cache.nodes
        return all(
            (info := nodes.get(node)) is not None
            and not (info.closed or gpus & ~(info.free | info.fresh))
            for node, gpus in gpus_by_node(move.spot for move in plan.moves).items()
        )

    def _is_outdated(self, plan: MovePlan) -> bool:
        pods = self._cache.pods
        return any(pods.get(move.pod.uid) != move.pod for move in plan.moves)

    def _find(
        self,
        gang: Gang,
        members: GangMembers,
        wait: float,
        now: float,
        aside: RunUnlocked,
    ) -> MovePlan | None:
        if not members.open or members.bound or members.flying or members.planned:
            return None
        wanted = sum(member.demand.gpus for member in members.open)
        reservation = self._reservations.of(gang.key)
        own = [] if reservation is None else [reservation]
        pool = self._reservations.pool_of(members)
        free = self._reservations.rows_with(own).free[: len(pool)][pool]
        if int(popcount(free).sum()) < wanted:
            return None
        movers = {node: found for node, found in self._movers(gang, now, aside) if found}
        if not movers:
            return None
        seen, before = Seen(self._cache, members.open), self._cache.rows.copy()
        room = GangRoom(
            self._cache,
            self._search,
            self._reservations,
            self._running_pods,
            gang,
            members,
            now,
            aside,
        )
        needs = [member.needs for member in members.open]
        view = self._reservations.view(own)
        search = MoveSearch(self._cache, self._search, room, view, needs, self._budgets, aside)
        plan = search.find(movers, wait * wanted)
        for uid in search.placeless:
            self._stays(uid, now + LOOK_SECONDS)
        if plan is None:
            if search.placeless:  # others have their turn, even if nothing changes
                self._tries[gang.key] = now + TRY_SECONDS, None
            return None
        spots = (*plan.spots, *(move.spot for move in plan.moves))
        if self._is_outdated(plan) or not seen.still_free(before, spots):
            raise StaleResult
        return replace(plan, saved=wait * wanted)

    def _expected_wait(self, gang: Gang, members: GangMembers, now: float) -> float:
        """Seconds until the gang starts without moves; infinity: never, as servers are in its way;
        0: it is not among the first. If nothing is known about the pods that it waits for, it is
        expected to wait for as long again as it has waited."""
        reservation = self._reservations.of(gang.key)
        if reservation is None:
            return math.inf if self._waits_for_servers(gang.key, members) else 0.0
        if reservation.earliest.known:
            return max(reservation.start - now, 0.0)
        return max(now - self._queue.created(gang.key), 0.0)

    def _movers(
        self, gang: Gang, now: float, aside: RunUnlocked
    ) -> Iterator[tuple[str, list[Mover]]]:
        priority = -self._queue.urgency(gang.key)[0]
        for info in some_at_a_time(self._cache, aside):
            if info.kind is None or info.closed or not info.bound:
                continue
            tenants: dict[str, Tenant] | None = None
            found = []
            for record in info.bound.values():
                if not self._may_move(record, priority, now):
                    continue
                if tenants is None:
                    tenants = {each.uid: each for each in self._running_pods.on(info, now).all}
                tenant = tenants.get(record.uid)
                cost = self._policy.cost_of(record)
                if tenant is None or tenant.end - now < cost:
                    continue  # it ends soon
                found.append(Mover(record, tenant.gpus, cost))
            yield info.name, found

    def _may_move(self, record: PodRecord, priority: int, now: float) -> bool:
        if not self._policy.consents(record) or record.priority > priority:
            return False
        if record.left_alone or not (record.live and record.admitted) or record.shares:
            return False
        if record.ask.gang is not None or record.uid in self._seats:
            return False
        if not self._budgets.allow([record]):
            return False
        if now < self._stay.get(record.uid, -math.inf):
            return False
        written = plan_on(record, record.node)
        began = record.created if written is None else written.plan.made
        return now - began >= _RUN_TIMES * self._policy.cost_of(record)

    def _begin(self, gang: Gang, members: GangMembers, plan: MovePlan, now: float) -> None:
        """Reserve the targets, and the room."""
        self._reservations.reserve_for(gang, members, plan.spots, now, by_preemption=True)
        self._plans[gang.key], self._began[gang.key] = plan, now
        for move in plan.moves:
            ref, spot = move.pod.ref, move.spot
            pod, gpus = f"{ref.namespace}/{ref.name}", f"{spot.gpus:x}"
            noted = NotedMove(pod, ref.uid, move.pod.owner_uid, spot.node, gpus)
            self._keep(_Seat(noted, spot, gang.key, now, move.pod, move, plan))

    def _evict(self, key: GangKey, plan: MovePlan, now: float) -> None:
        """Those whose targets are noted: else a new leader would not know of them."""
        to = self._queue.beneficiary(key)
        if to is None:
            return  # it is gone, since the moves were planned
        noted = self._noted_on(key)
        for move in plan.moves:
            record = self._cache.pods.get(move.pod.uid)
            if record is None or not record.live or not self._is_noted(record, noted):
                continue
            where = f"this pod's next place is reserved on {move.spot.node}"
            why = f"to make room for {key.title}: {where}"
            self._pending_writes.evict(
                record, why, now, event=REASON, priority=record.priority, for_whom=to
            )


def _key_of(single: PodRecord) -> GangKey:
    return GangKey(single.ref.namespace, single.ref.name, single.ref.uid)
