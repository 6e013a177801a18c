"""Makes room for a waiting gang or pod by moves, and sees them through.

1. A gang that found no room has a reservation: the GPUs on which it can start first. If moves make
   room for it now, and cost less than that wait does, they are planned (`moves.search`).
2. The room is reserved for the gang, and the targets for the pods that move. Then these are
   evicted.
3. The new pod that the controller of each makes is planned exactly on the target (`targets`).

A gang moves as a whole, and costs what the restart of all its members costs. A member that it can
spare may move alone, if each of its pods is a communicator of its own: else all would restart too.

**The rule**, in GPU seconds: moves lose the cost of each pod that moves times its GPUs. They save
the gang's wait, from now until its reservation is expected to be free, times its GPUs. They have to
save at least what they lose, or nothing moves.

With `Moves.ADVISE`, the plan is only remembered as advice: until the gang starts or goes, a pod
that would move changes, or another search finds something else.

If no moves are found for a large gang or pod, the account notes which pods do not consent to such
as would have made room (`kept_waiting`).

A pod is moved at most once in a while, and not near its expected end: it would rather be waited
for. Nothing moves for less important work, and nothing that a PodDisruptionBudget protects.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from linkwise.extender.next.core_settings import MovePolicy, Moves
from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.gang_search import Seen, StaleResult
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.moves.kept_waiting import KeptWaiting, WaitAccount
from linkwise.extender.next.moves.may_move import MayMove, Stays
from linkwise.extender.next.moves.plan import Move, MovePlan, gpus_by_node
from linkwise.extender.next.moves.search import Mover, MoveSearch
from linkwise.extender.next.moves.targets import Targets
from linkwise.extender.next.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.next.preemption.gang_preemption import PLANNED_SECONDS, Rests
from linkwise.extender.next.preemption.gang_room import GangRoom, some_at_a_time
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.place.request import Spot
from linkwise.extender.state.actions import Beneficiary
from linkwise.extender.state.cache.node_table import popcount
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.timers import Agenda, RunUnlocked, Timers, run_inline

REASON = "Moved"
# How often moves are sought for one gang: if something changed meanwhile, and else, as pods may be
# moved once they have run for long enough.
TRY_SECONDS, LOOK_SECONDS = 60.0, 1800.0
# How often to search who keeps one gang waiting: that search is about most pods.
SUPPOSE_SECONDS = 600.0
EVICT_SECONDS = 300.0  # for so long, the evictions of a plan are tried
_MOMENT_SECONDS = 1.0
_MOST_SEARCHES = 8  # for one question


@dataclass(slots=True)
class _Begun:
    """A plan of moves that is carried out."""

    at: float
    for_whom: Beneficiary
    is_evicting: bool = False  # or has


class Tries:
    """For which gangs moves are to be sought. Hundreds may wait, and every change is followed by a
    round."""

    def __init__(self, agenda: Agenda) -> None:
        agenda.ask(self._overdue)
        self._alarms: Timers[GangKey] = Timers(agenda)
        self._waiting: Sequence[Gang] = ()
        self.keys: Set[GangKey] = frozenset()  # of the gangs that wait
        self._due: set[GangKey] = set()
        self._not_before: dict[GangKey, float] = {}  # of those that were tried
        self._unchanged: set[GangKey] = set()  # nothing has changed since they were
        self._unreserved: set[GangKey] = set()  # their next try is once they have a reservation
        self._state: object = None

    def wait(self, waiting: Sequence[Gang]) -> None:
        """These gangs wait, the most urgent first; forget the others."""
        if waiting is self._waiting:
            return
        self._waiting, self.keys = waiting, {gang.key for gang in waiting}
        for key in self._not_before.keys() - self.keys:
            self._forget(key)
        self._due = (self._due & self.keys) | (self.keys - self._not_before.keys())

    def due(
        self, helped: Set[GangKey], reserved: Set[GangKey], state: object, now: float
    ) -> list[Gang]:
        """The gangs to try now, without those that are *helped*. *reserved*: those with
        reservations. *state*: another one after each change that may help any of them."""
        if state != self._state:
            self._state = state
            for key in self._unchanged:
                self._alarms[key] = self._not_before[key]
            self._unchanged.clear()
        self._due.update(self._alarms.take(now), self._unreserved & reserved)
        due = self._due - helped
        return [gang for gang in self._waiting if gang.key in due] if due else []

    def put_off(self, key: GangKey, until: float, *, unreserved: bool = False) -> None:
        """Try it again then. *unreserved*: or once it has a reservation."""
        self._forget(key)
        self._not_before[key] = self._alarms[key] = until
        if unreserved:
            self._unreserved.add(key)

    def tried(self, key: GangKey, now: float) -> None:
        """Try it again in a while if something has changed, and else later."""
        self.put_off(key, now + TRY_SECONDS)
        self._alarms[key] = now + TRY_SECONDS + LOOK_SECONDS
        self._unchanged.add(key)

    def something_changed(self, key: GangKey) -> None:
        """For this gang alone."""
        if key in self._unchanged:
            self._unchanged.discard(key)
            self._alarms[key] = self._not_before[key]

    def start_anew(self, key: GangKey) -> None:
        """Try it as one that was never tried."""
        self._forget(key)
        if key in self.keys:
            self._due.add(key)

    def _forget(self, key: GangKey) -> None:
        self._alarms.drop(key)
        self._not_before.pop(key, None)
        for keys in (self._due, self._unchanged, self._unreserved):
            keys.discard(key)

    def _overdue(self) -> Iterable[float]:
        """Those that had no turn: another gang was helped."""
        return () if self._not_before.keys().isdisjoint(self._due) else (0.0,)


class PlannedMoves(Part):
    def __init__(
        self,
        books: Books,
        *,
        budgets: DisruptionBudgets,
        rests: Rests,
        policy: MovePolicy,
        who: MayMove,
        targets: Targets,
        waits_for_servers: Callable[[GangKey, GangMembers], bool],
        share: float,
    ) -> None:
        """*share* of the cluster's GPUs may be reserved for the pods of a namespace that move."""
        super().__init__(books)
        self._books = books
        books.agenda.ask(self._times)
        self._budgets, self._policy = budgets, policy
        self._who, self._targets, self._waits_for_servers = who, targets, waits_for_servers
        self._rests, self._share = rests, share
        self._plans: dict[GangKey, MovePlan] = {}  # by the gang that waits
        self._begun: dict[GangKey, _Begun] = {}
        self._look_at = 0.0  # when to check whether the room of the plans comes free
        self._tries = Tries(books.agenda)
        self._advice: dict[GangKey, MovePlan] = {}
        self._account = WaitAccount()
        self._supposed: dict[GangKey, float] = {}  # when who keeps it waiting was last sought

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

    def kept_waiting(self, now: float) -> tuple[KeptWaiting, ...]:
        """What pods that do not consent kept waiting in this term."""
        return self._account.rows(now)

    def _times(self) -> Iterator[float]:
        if self._plans:
            yield self._look_at
        yield from self._targets.ends()

    # Questions

    def sought(self, key: GangKey, now: float) -> MovePlan | None:
        """The moves that make room for the gang now, however short its wait is expected to be.
        `saved` counts that wait. None: there are none, or none was found. Nothing is carried out or
        remembered."""
        gang = self._registry.gangs.get(key)
        if gang is None:
            return None
        members = self._registry.needed_of(gang).members
        plan = None
        with self._who.supposing():
            for _ in range(_MOST_SEARCHES):
                known = self._who.notes
                plan = self._find(gang, members, math.inf, now, run_inline)
                if plan is not None or self._who.notes == known:
                    break  # else once more without the pods that have no place elsewhere
        if plan is None:
            return None
        wanted = sum(member.demand.gpus for member in members.open)
        return replace(plan, saved=self._expected_wait(gang, members, now) * wanted)

    # Rounds

    def run(self, now: float, aside: RunUnlocked = run_inline) -> None:
        """See the moves that are planned through, and plan more. With *aside*, others use the cache
        during the search."""
        if self._policy.moves is Moves.NEVER:
            return
        for key in [*self._plans]:
            if self._is_wanted(key) and self._is_in_vain(key, now):
                self._give_up(key, now)
            if not self._is_wanted(key) and not self._goes_on(key, now):
                if self._is_placed(key):
                    self._targets.helped(self._plans[key])
                    self._rests.begin(key, PLANNED_SECONDS, now)
                del self._begun[key], self._plans[key]
                self._targets.over(key)
        self._look_at = now + TRY_SECONDS
        wanted = {key for key in self._plans if self._is_wanted(key)}
        self._targets.give_back(now, wanted, self._plans)
        waiting = self._queue.without_room() if self._budgets.known else ()
        self._tries.wait(waiting)
        self._end_waits(self._tries.keys, now)
        self._try_waiting(now, aside)
        self._keep_advice(waiting)
        for key in self._plans:
            self._evict(key, now)

    def _is_wanted(self, key: GangKey) -> bool:
        """Whether the gang still waits for the room that the moves make."""
        reservation = self._reservations.of(key)
        return reservation is not None and reservation.by_preemption

    def _is_placed(self, key: GangKey) -> bool:
        gang = self._registry.gangs.get(key)
        return gang is not None and not self._registry.needed_of(gang).members.open

    def _goes_on(self, key: GangKey, now: float) -> bool:
        """Whether a gang is half evicted: the rest follows, with or without need of the room."""
        return self._is_new(key, now) and bool(self._half_way(key))

    def _half_way(self, key: GangKey) -> set[str]:
        return self._targets.half_way(key) if self._begun[key].is_evicting else set()

    def _is_new(self, key: GangKey, now: float) -> bool:
        return now < self._begun[key].at + EVICT_SECONDS

    def _is_in_vain(self, key: GangKey, now: float) -> bool:
        """Whether some of the room does not come free: a pod that moves is not evicted or does not
        end, or another pod uses it."""
        reservation = self._reservations.of(key)
        is_new = self._is_new(key, now)
        going = {move.pod.uid for move in self._plans[key].moves if is_new}

        def goes(uid: str) -> bool:
            record = self._cache.pods.get(uid)
            return uid in going and record is not None and record.live

        return reservation is None or self._reservations.comes_free(reservation, goes, now) is None

    def _give_up(self, key: GangKey, now: float) -> None:
        cannot = [] if self._is_new(key, now) else self._evictable(key)
        for record, _ in cannot:
            self._who.stays(record.uid, now + self._policy.again_seconds, Stays.AGAIN)
        records = [self._cache.pods.get(move.pod.uid) for move in self._plans[key].moves]
        if any(record is None or not record.live for record in records):
            self._rests.begin(key, PLANNED_SECONDS, now)
        self._reservations.give_up(key, "GPUs that were to come free for it by moves do not")

    def _state(self) -> object:
        return self._cache.room, self._cache.comings_and_goings, self._budgets.changes

    def _try_waiting(self, now: float, aside: RunUnlocked) -> None:
        reserved = self._reservations.by_key
        helped = self._plans.keys() | {key for key, each in reserved.items() if each.by_preemption}
        for key in helped:
            self._tries.start_anew(key)
            self._advice.pop(key, None)
            self._account.end(key, now)
        for gang in self._tries.due(helped, reserved.keys(), self._state(), now):
            if now < (until := self._rests.until(gang.key)):
                self._tries.put_off(gang.key, until)
                continue
            members = self._registry.needed_of(gang).members
            wait = self._expected_wait(gang, members, now)
            if wait <= self._policy.cost_seconds:  # it starts soon, or is not among the first
                self._advice.pop(gang.key, None)
                self._account.end(gang.key, now)
                worth_it_from = self._queue.created(gang.key) + self._policy.cost_seconds
                # Else what was to end may not, and nothing else changes.
                soon = worth_it_from + _MOMENT_SECONDS if now < worth_it_from else now + TRY_SECONDS
                self._tries.put_off(gang.key, soon, unreserved=gang.key not in reserved)
                continue
            self._tries.tried(gang.key, now)
            known = self._who.notes
            try:
                plan = self._find_or_note(gang, members, wait, now, aside)
            except StaleResult:
                self._tries.put_off(gang.key, now)
                return
            self._advice.pop(gang.key, None)
            if plan is None:
                if self._who.notes != known:  # others that may move have their turn
                    self._tries.something_changed(gang.key)
                continue
            if self._policy.moves is Moves.ADVISE:  # it takes nothing from those behind
                self._advice[gang.key] = plan
                continue
            self._begin(gang, members, plan, now)
            return

    def _find_or_note(
        self, gang: Gang, members: GangMembers, wait: float, now: float, aside: RunUnlocked
    ) -> MovePlan | None:
        """If no moves make room for the gang, note which pods do not consent to such as would. Only
        large gangs and pods count: with as many GPUs as a node has, they wait for whole nodes.
        Raises StaleResult."""
        plan = self._find(gang, members, wait, now, aside)
        if plan is not None:
            self._account.end(gang.key, now)
            return plan
        if now < self._supposed.get(gang.key, -math.inf) + SUPPOSE_SECONDS:
            return None
        wanted = sum(member.demand.gpus for member in members.open)
        kinds = (info.kind for info in self._cache.nodes.values())
        smallest = min((kind.all_gpus.bit_count() for kind in kinds if kind is not None), default=0)
        supposed = None
        if smallest and wanted >= smallest:
            supposed = self._find(gang, members, wait, now, aside, supposing_consent=True)
        pods = [] if supposed is None else [move.pod for move in supposed.moves]
        refusing = [pod for pod in pods if not self._who.consents(pod)]
        if refusing:
            self._account.begin(gang.key, wanted, refusing, now)
        else:
            self._account.end(gang.key, now)
        self._supposed[gang.key] = now
        return None

    def _end_waits(self, waiting: Set[GangKey], now: float) -> None:
        """Of those that wait no more, and where one of the pods that kept them waiting has gone or
        consents: there moves are sought again soon."""
        for key in self._supposed.keys() - waiting:
            del self._supposed[key]
        for key, pods in self._account.waits.items():
            if key not in waiting:
                self._account.end(key, now)
            elif not all(map(self._refuses_still, pods)):
                self._account.end(key, now)
                self._supposed.pop(key, None)
                self._tries.something_changed(key)

    def _refuses_still(self, pod: PodRecord) -> bool:
        record = self._cache.pods.get(pod.uid)
        return record is not None and record.live and not self._who.consents(record)

    def _may_keep(self, plan: MovePlan) -> bool:
        """Whether so many GPUs may be reserved for the pods that move, with those that are for
        others of their namespaces: while a pod ends, it has twice what it asked for."""
        kinds = (info.kind for info in self._cache.nodes.values())
        most = self._share * sum(kind.all_gpus.bit_count() for kind in kinds if kind is not None)
        kept = {each: of.total() for each, of in self._targets.kept_by_namespace().items()}
        for move in plan.moves:
            namespace = move.pod.ref.namespace
            kept[namespace] = kept.get(namespace, 0) + move.spot.gpus.bit_count()
        return all(kept[move.pod.ref.namespace] <= most for move in plan.moves)

    def _keep_advice(self, waiting: Sequence[Gang]) -> None:
        """Forget what is for others than these, or about pods that have changed since."""
        if not self._advice:
            return
        kept = {}
        for gang in waiting:
            plan = self._advice.get(gang.key)
            if plan is None:
                continue
            if not self._holds(plan):
                self._tries.something_changed(gang.key)
            else:
                kept[gang.key] = plan
        self._advice = kept

    def _holds(self, plan: MovePlan) -> bool:
        """Whether its pods are as they were, and its targets free still, or their own."""
        if self._is_outdated(plan):
            return False
        nodes = self._cache.nodes
        pods = [move.pod for move in plan.moves if move.pod.node in nodes]
        own = gpus_by_node(Spot(pod.node, nodes[pod.node].owned.get(pod.uid, 0)) for pod in pods)
        return all(
            (info := nodes.get(node)) is not None
            and not info.closed
            and info.has_unused(gpus & ~own.get(node, 0))
            for node, gpus in gpus_by_node(move.spot for move in plan.moves).items()
        ) and self._has_shares(plan)

    def _has_shares(self, plan: MovePlan) -> bool:
        """Whether those of its targets are free."""
        found = (
            (self._cache.nodes[move.spot.node].shares, move) for move in plan.moves if move.shares
        )
        return all(
            book.has_unused(move.shares)
            and book.reserved.isdisjoint(each for of in move.shares for each in of.ids)
            for book, move in found
        )

    def _is_outdated(self, plan: MovePlan) -> bool:
        pods, gangs = self._cache.pods, {move.gang for move in plan.moves if move.gang is not None}
        known = {move.pod.uid for move in plan.moves}
        return any(pods.get(move.pod.uid) != move.pod for move in plan.moves) or not all(
            self._goes(gang, known) for gang in gangs
        )

    def _goes(self, gang: GangKey, uids: Set[str]) -> bool:
        """Whether these are all members of the gang, or such as it can spare."""
        members = self._members_of(gang)
        if members is None or not members.runs_whole:
            return False
        going = {member.uid for member in members.bound} & uids
        return len(going) == len(members.bound) or going <= {
            each.uid for each in members.may_go_alone
        }

    def _find(
        self,
        gang: Gang,
        members: GangMembers,
        wait: float,
        now: float,
        aside: RunUnlocked,
        *,
        supposing_consent: bool = False,
    ) -> MovePlan | None:
        """*supposing_consent*: as if all pods consented that could."""
        if not members.open or members.bound or members.flying or members.planned:
            return None
        wanted = sum(member.demand.gpus for member in members.open)
        reservation = self._reservations.of(gang.key)
        own = [] if reservation is None else [reservation]
        # Those that move may go where the gang may not.
        if int(popcount(self._reservations.rows_with(own).free).sum()) < wanted:
            return None
        priority = -self._queue.urgency(gang.key)[0]
        found_on = self._movers(priority, now, aside, supposing_consent=supposing_consent)
        movers = {node: found for node, found in found_on if found}
        if not movers:
            return None
        seen, before = Seen(self._cache, members.open), self._cache.rows.copy()
        room = GangRoom(self._books, gang, members, now, aside)
        needs = [member.needs for member in members.open]
        view = self._reservations.view(own)
        search = MoveSearch(
            self._cache,
            search=self._search,
            room=room,
            view=view,
            needs=needs,
            budgets=self._budgets,
            now=now,
            aside=aside,
        )
        plan = search.find(movers, wait * wanted)
        for uid in search.placeless:
            self._who.stays(uid, now + LOOK_SECONDS, Stays.NO_PLACE)
        if plan is None or not self._may_keep(plan):
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
        self, priority: float, now: float, aside: RunUnlocked, *, supposing_consent: bool
    ) -> Iterator[tuple[str, list[Mover]]]:
        """Those of each node that may move for work of this *priority*. Others may use the cache
        between two steps."""
        gangs: dict[GangKey, Mapping[str, Mover]] = {}
        for info in some_at_a_time(self._cache, aside):
            if info.kind is None or info.closed or not info.bound:
                continue
            found: dict[str, Mover] = {}
            for record in info.bound.values():
                if not self._may_move(record, priority, now, supposing_consent):
                    continue
                key = record.gang
                if record.ask.gang is None or key is None:
                    mover = self._mover((record,), None, now)
                else:
                    if key not in gangs:
                        gangs[key] = self._gang_movers(key, priority, now, supposing_consent)
                    mover = gangs[key].get(info.name)
                if mover is not None:
                    found[mover.uid] = mover
            yield info.name, [*found.values()]

    def _gang_movers(
        self, key: GangKey, priority: float, now: float, supposing_consent: bool
    ) -> Mapping[str, Mover]:
        """By node: the whole gang, or the one member there, if the gang can spare it."""
        members = self._members_of(key)
        if members is None or not members.runs_whole or self._targets.moves_gang(key):
            return {}
        pods, on = members.bound, Counter(pod.node for pod in members.bound)
        units = [(pod,) for pod in members.may_go_alone if on[pod.node] == 1]
        found: dict[str, Mover] = {}
        for unit in (pods, *units):
            if all(self._may_move(pod, priority, now, supposing_consent) for pod in unit):
                mover = self._mover(unit, members, now) if self._budgets.allow(unit) else None
                found |= {} if mover is None else dict.fromkeys(mover.on, mover)
        return found

    def _members_of(self, key: GangKey) -> GangMembers | None:
        gang = self._registry.gangs.get(key)
        return None if gang is None else self._registry.members_of(gang)

    def _mover(
        self, pods: tuple[PodRecord, ...], members: GangMembers | None, now: float
    ) -> Mover | None:
        """None: one of them has not run for long, ends soon, is on a node that is closed, or has
        shares in place of whole GPUs: others may have shares of the same ones."""
        cost, spots = max(map(self._policy.cost_of, pods)), []
        for pod in pods:
            info = self._cache.nodes[pod.node]
            gpus = info.owned.get(pod.uid, 0)
            ends = (
                each.end for each in self._running_pods.on(info, now).all if each.uid == pod.uid
            )
            if info.kind is None or info.closed or not gpus or pod.uid in info.sharing.strays:
                return None
            if not self._who.has_run(pod, now, cost) or next(ends, 0.0) - now < cost:
                return None
            spots.append(Spot(pod.node, gpus))
        return Mover(pods, tuple(spots), cost, members)

    def _may_move(
        self, record: PodRecord, priority: float, now: float, supposing_consent: bool
    ) -> bool:
        if record.priority > priority or self._targets.of(record.uid):
            return False
        return self._who.why_not(record, now, supposing_consent=supposing_consent) is None

    def _begin(self, gang: Gang, members: GangMembers, plan: MovePlan, now: float) -> None:
        """Reserve the targets, and the room."""
        for_whom = self._queue.beneficiary(gang.key)
        assert for_whom is not None, "it waits"
        self._reservations.reserve_for(gang, members, plan.spots, now, by_preemption=True)
        self._plans[gang.key], self._begun[gang.key] = plan, _Begun(now, for_whom)
        self._targets.keep(plan, gang.key, now)

    def _evict(self, key: GangKey, now: float) -> None:
        begun, to = self._begun[key], self._queue.beneficiary(key)
        if to is None and not self._goes_on(key, now):
            return  # it is gone, since the moves were planned
        for record, target in self._evictable(key):
            begun.is_evicting = True
            where = f"this pod's next place is reserved on {target}"
            why = f"to make room for {key.title}: {where}"
            self._pending_writes.evict(
                record,
                why,
                now,
                event=REASON,
                priority=record.priority,
                for_whom=to or begun.for_whom,
            )

    def _evictable(self, key: GangKey) -> list[tuple[PodRecord, str]]:
        """The pods that have not begun to leave, and whose targets are noted: else a new leader
        would not know of these. With the target's node."""
        pods = self._cache.pods
        may_go = self._targets.may_be_evicted(key) | self._half_way(key)
        plan = self._plans[key]
        moves = [
            move for move in plan.moves if move.pod.uid in may_go and self._lets_go(move, plan)
        ]
        known = ((pods.get(move.pod.uid), move.spot.node) for move in moves)
        return [(pod, node) for pod, node in known if pod is not None and pod.live]

    def _lets_go(self, move: Move, plan: MovePlan) -> bool:
        """Whether the others of its gang move too, or are enough without it."""
        members = None if move.gang is None else self._members_of(move.gang)
        if members is None or sum(each.gang == move.gang for each in plan.moves) > 1:
            return True
        stay = sum(member.uid != move.pod.uid for member in members.bound)
        return stay >= min(members.minimum, members.size - 1)
