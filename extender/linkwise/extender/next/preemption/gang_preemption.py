"""Makes room for a waiting gang: evicts less important gangs as a whole, and idle ones.

A single pod behind linkwise's gate counts as a gang. For other single pods kube-scheduler evicts,
and the extender completes its choice (`calls.preempt`); but of idle pods kube-scheduler knows
nothing, so the extender evicts them for every pod in the scheduling queue.

- No pod is evicted unless the whole gang then fits, according to the cache.
- The GPUs of the victims are reserved for the gang from the moment that the victims are chosen:
  only a more important gang or pod may use any of them.
- A victim is always less important than the gang that it makes room for, so no two can evict each
  other. Idle pods that consent (`preemption.reclaim`) may be as important: they are evicted alone,
  if they are enough, and else before other pods.
- A plan of a less important gang or pod that has not been bound for IDLING_SECONDS is withdrawn if
  that makes room, whatever may be evicted: no work is lost.
- A terminating pod counts as gone, unless it is stuck (`RunningPods`). If a victim gets
  stuck, or may not be evicted, other victims are chosen.

docs/decisions/gangs-and-queue.md#13-order-and-reservations says which pods may be evicted, and for
which gangs.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from linkwise.drawing.words import minute
from linkwise.extender.next.core_settings import Preempt
from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.gang_search import Seen, StaleResult
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.gangs.registry import GangRegistry
from linkwise.extender.next.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.next.preemption.eviction_candidates import EvictionCandidates
from linkwise.extender.next.preemption.gang_room import GangRoom, some_at_a_time
from linkwise.extender.next.preemption.reclaim import IdlePods
from linkwise.extender.next.preemption.victim_selection import Preemption, Unit, pods_of, select
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_table import NodeTable
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.timers import RunUnlocked, T, nothing, run_inline

SPARED_SECONDS, _LONGEST_SPARED_SECONDS = 30.0, 600.0


@dataclass(slots=True)
class _Spared:
    until: float  # 0: it may be evicted again
    seconds: float


class SparedPods:
    """The pods that the API server refused to evict: for a while, no gang is to have them evicted.

    The pause doubles with each further refusal of the same pod.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._spared: dict[str, _Spared] = {}  # by uid
        self.ended = 0  # how often a pod became evictable again

    def __contains__(self, uid: str) -> bool:
        spared = self._spared.get(uid)
        return spared is not None and spared.until > 0

    def refused(self, uid: str, now: float) -> None:
        before = self._spared.get(uid)
        seconds = SPARED_SECONDS if before is None else 2 * before.seconds
        seconds = min(seconds, _LONGEST_SPARED_SECONDS)
        self._spared[uid] = _Spared(now + seconds, seconds)

    def look(self, now: float) -> None:
        """End the pauses that are over, and forget pods that are gone."""
        for uid, spared in list(self._spared.items()):
            record = self._cache.pods.get(uid)
            if record is None or not record.live:
                del self._spared[uid]
            elif spared.until and now >= spared.until:
                spared.until = 0.0  # `seconds` stays, for the next refusal
                self.ended += 1

    def ends(self) -> Iterator[float]:
        """When each of the pauses ends."""
        return (spared.until for spared in self._spared.values() if spared.until)


ROBBED_SECONDS, PLANNED_SECONDS, _LONGEST_SECONDS = 300.0, 60.0, 3600.0


@dataclass(slots=True)
class _Rest:
    until: float
    pause: float


class Rests:
    """For which gangs no more pods are evicted or moved for a while, as that was useless before.

    The GPUs of a gang that rests went to a pod that heeds no reservation, or the gang was planned
    on them and did not start: kube-scheduler may refuse that for a reason that only it knows. The
    pause doubles until the gang starts, so no gang has others evicted again and again.
    """

    def __init__(self, registry: GangRegistry) -> None:
        self._registry = registry
        self._rests: dict[GangKey, _Rest] = {}

    def begin(self, key: GangKey, least: float, now: float) -> None:
        before = self._rests.get(key)
        pause = min(least if before is None else max(least, 2 * before.pause), _LONGEST_SECONDS)
        self._rests[key] = _Rest(now + pause, pause)

    def until(self, key: GangKey) -> float:
        """No pod is evicted or moved for the gang before; 0: it does not rest."""
        rest = self._rests.get(key)
        return 0.0 if rest is None else rest.until

    def look(self) -> None:
        """Forget gangs that have started or are gone."""
        for key in [key for key in self._rests if not self._is_still_to_start(key)]:
            del self._rests[key]

    def _is_still_to_start(self, key: GangKey) -> bool:
        gang = self._registry.gangs.get(key)
        return gang is not None and not self._registry.members_of(gang).started


# A gang without suitable victims is not tried again before this, and only if something changed.
TRY_SECONDS = 10.0
_MOST_STALE = 2  # searches without the lock; the next one keeps it
_AT_ONCE = 1  # gangs: each may cost dozens of searches, and kube-scheduler's calls come in between
REASON, RECLAIMED, WITHDRAWN = "Preempted", "Reclaimed", "Withdrawn"
# Members are bound within seconds of their plan, unless something is in their way: kube-scheduler's
# back-off and a wait at the barrier take less.
IDLING_SECONDS = 30.0
VICTIMS_STAY = "GPUs that were to come free for it do not"
_NO_BUDGETS = DisruptionBudgets()  # for what is not evicted
_NO_BUDGETS.replace(())


@dataclass(slots=True)
class _Try:
    at: float
    state: object
    requests: object = None  # of the members that were to be placed


class _Beside:
    """Runs work while others use the cache, and notes whether they changed the state."""

    def __init__(self, aside: RunUnlocked, state: Callable[[], object]) -> None:
        self._aside, self._state = aside, state
        self.changed = False

    def __call__(self, work: Callable[[], T]) -> T:
        before = self._state()
        try:
            return self._aside(work)
        finally:
            self.changed = self.changed or self._state() != before


class GangPreemption(Part):
    def __init__(
        self,
        books: Books,
        *,
        candidates: EvictionCandidates,
        idle_pods: IdlePods,
        budgets: DisruptionBudgets,
        rests: Rests,
        allowed: Preempt,
    ) -> None:
        super().__init__(books)
        self._books = books
        books.agenda.ask(self._times)
        self._candidates, self._idle_pods, self._budgets = candidates, idle_pods, budgets
        self._rests, self._allowed = rests, allowed
        self._preemptions: dict[GangKey, Preemption] = {}  # by the gang that waits
        self._tries: dict[GangKey, _Try] = {}
        self._stale: dict[GangKey, int] = {}  # how often the cluster changed during the search
        self._withdrawn: set[GangKey] = set()
        self._spared = SparedPods(books.cache)
        # By gang with victims: when to check whether its GPUs come free.
        self._look_at: dict[GangKey, float] = {}
        self._more_at: float | None = None  # when to try the gangs that have not had their turn
        self._quiet: object = None  # the state after the last run
        self._quiet_until = math.inf

    @property
    def preemptions(self) -> Mapping[GangKey, Preemption]:
        """By the gang that waits for the victims' GPUs."""
        return self._preemptions

    def is_victim(self, gang: Gang) -> bool:
        """Whether members of *gang* are still to be evicted: then it gets no new GPUs."""
        members = self._cache.gangs.get(gang.key, set())
        return any(
            self._cache.pods[uid].live
            for preemption in self._preemptions.values()
            for uid in preemption.victims & members
        )

    def is_reclaimed(self, uid: str) -> bool:
        """Whether this pod is evicted because it is idle."""
        return any(
            unit.idle_since is not None and any(pod.uid == uid for pod in unit.pods)
            for preemption in self._preemptions.values()
            for unit in preemption.units
        )

    def _times(self) -> Iterable[float]:
        if not (self._tries or self._preemptions):
            return  # no gang needs room
        if self._quiet != self._state_of_all():
            yield from self._tries_at()
        elif self._quiet_until < math.inf:
            yield self._quiet_until

    def _tries_at(self) -> Iterable[float]:
        state = self._state()  # if it is the same, there is nothing new to find
        makes_room = self._reservations.is_by_preemption  # for these there is nothing to try
        for key, each in self._tries.items():
            if each.state != state and not makes_room(key):
                yield each.at
        yield from self._spared.ends()
        yield from self._look_at.values()
        if self._more_at is not None:
            yield self._more_at

    def refused(self, uid: str, now: float) -> None:
        """The API server refused to evict this pod: choose other victims."""
        self._quiet = None
        self._spared.refused(uid, now)
        record = self._cache.pods.get(uid)
        for key, preemption in list(self._preemptions.items()):
            if uid in preemption.victims and record is not None and record.live:
                self._give_up(key, "the API server refused to evict a pod for it")

    def run(self, now: float, aside: RunUnlocked = run_inline) -> None:
        """Evict the chosen victims, and choose more, once all waiting gangs have been tried. With
        *aside*, others use the cache during the search."""
        self._idle_pods.look(now, aside)
        if not self._budgets.known or self._is_quiet(now):
            return
        may_evict = self._allowed is not Preempt.NEVER or self._idle_pods.any_consent
        may_help = may_evict or self._preemptions or self._cache.plans
        waiting = self._queue.without_room() if may_help else []
        keys = {gang.key for gang in waiting}
        for key in list(self._preemptions):
            if key not in keys or self._is_spoilt(key, now):
                if key not in keys and self._is_planned(key):
                    self._rests.begin(key, PLANNED_SECONDS, now)
                elif key in keys and self._is_robbed(key):
                    self._rests.begin(key, ROBBED_SECONDS, now)
                self._give_up(key, VICTIMS_STAY if key in keys else "it no longer waits")
        for known in (self._tries, self._stale):
            for key in known.keys() - keys:
                del known[key]
        self._rests.look()
        self._spared.look(now)
        self._try_waiting(waiting, now, aside)
        for key, preemption in self._preemptions.items():
            self._evict(key, preemption, now)
        self._quiet = self._state_of_all()
        self._quiet_until = min(self._tries_at(), default=math.inf)

    def _is_quiet(self, now: float) -> bool:
        """Whether nothing has changed since the last run, and nothing is due. Thousands of gangs
        may wait, and each call of kube-scheduler is followed by a round."""
        if self._preemptions or self._quiet != self._state_of_all():
            return False
        return now < self._quiet_until

    def _state_of_all(self) -> object:
        return self._queue.news, self._state()

    def _try_waiting(self, waiting: Sequence[Gang], now: float, aside: RunUnlocked) -> None:
        """The most urgent gangs first, few at a time; among equal gangs, one stands for all."""
        in_vain: set[object] = set()
        looked = 0
        self._more_at = None
        state = self._state()
        for gang in waiting:
            # By moves too: they make the room, and no work ends.
            if self._reservations.is_by_preemption(gang.key):
                continue
            if not self._is_time(gang, state, now):
                continue
            alike = -self._queue.urgency(gang.key)[0], self._registry.needed_of(gang).requests
            if alike in in_vain:
                continue
            if looked == _AT_ONCE:
                self._tries.pop(gang.key)
                self._more_at = now
                return
            looked += 1
            tried = self._tries[gang.key]
            is_stale_again = self._stale.get(gang.key, 0) >= _MOST_STALE
            beside = _Beside(run_inline if is_stale_again else aside, self._state)
            try:
                preemption = self._select(gang, now, beside)
            except StaleResult:
                self._stale[gang.key] = self._stale.get(gang.key, 0) + 1
                self._tries.pop(gang.key, None)
                self._more_at = now
                return
            except Exception:
                self._tries.pop(gang.key, None)  # it has not had its turn
                raise
            self._stale.pop(gang.key, None)
            if preemption is None:
                in_vain.add(alike)
                if tried.state is not None and not beside.changed:
                    tried.state = self._state()  # the search itself changes the state
            else:
                self._begin(gang, preemption, now)
                aside(nothing)
            state = self._state()

    def _open(self, gang: Gang) -> GangMembers:
        return self._registry.needed_of(gang).members

    def _give_up(self, key: GangKey, why: str) -> None:
        preemption = self._preemptions.pop(key)
        self._look_at.pop(key, None)
        self._tries.pop(key, None)  # choose others at once
        reservation = self._reservations.of(key)
        if reservation is not None and reservation.by_preemption:
            self._reservations.give_up(key, why)
        for uid in preemption.victims:  # gangs that stay may have members that were left waiting
            record = self._cache.pods.get(uid)
            if record is not None:
                self._queue.take_up(record.gang)

    def _is_spoilt(self, key: GangKey, now: float) -> bool:
        """Whether the reservation is gone, or some of its GPUs do not come free: a victim is stuck,
        or works again before it is evicted, or a pod that is no victim uses them."""
        reservation = self._reservations.of(key)
        if reservation is None or not reservation.by_preemption:
            return True
        if not self._are_idle(self._preemptions[key], now):
            return True
        until = self._reservations.comes_free(reservation, partial(self._is_victim, key), now)
        if until is None:
            return True
        self._look_at[key] = min(now + TRY_SECONDS, until)
        return False

    def _are_idle(self, preemption: Preemption, now: float) -> bool:
        """Whether the idle units among the victims still do nothing."""
        idle = (unit for unit in preemption.units if unit.idle_since is not None)
        return all(self._idle_pods.is_still_idle(unit, now) for unit in idle)

    def _is_robbed(self, key: GangKey) -> bool:
        """Whether a pod that the extender does not place has got GPUs that are reserved for the
        gang. It will take the next victims' GPUs too: nothing keeps kube-scheduler from it."""
        reservation, victims = self._reservations.of(key), self._preemptions[key].victims
        for node, mask in () if reservation is None else reservation.gpus.items():
            info = self._cache.nodes.get(node)
            for uid, gpus in () if info is None else info.owned.items():
                if gpus & mask and uid not in victims and self._is_robber(uid):
                    return True
        return False

    def _is_robber(self, uid: str) -> bool:
        record = self._cache.pods.get(uid)
        if record is None or not record.live:
            return False  # it had its GPUs before, and is stuck
        if uid in self._cache.plans or uid in self._cache.assumed:
            return False  # what the extender has decided is not on the API server yet
        return record.left_alone or record.written is None

    def _is_planned(self, key: GangKey) -> bool:
        return any(uid in self._cache.plans for uid in self._cache.gangs.get(key, ()))

    def _is_victim(self, key: GangKey, uid: str) -> bool:
        """Whether this pod is still to be evicted for the gang *key*."""
        record = self._cache.pods.get(uid)
        return uid in self._preemptions[key].victims and record is not None and record.live

    def _is_time(self, gang: Gang, state: object, now: float) -> bool:
        if now < (until := self._rests.until(gang.key)):
            self._tries[gang.key] = _Try(until, None)
            return False
        last, requests = self._tries.get(gang.key), self._registry.needed_of(gang).requests
        if last is not None and last.requests != requests:
            last.state, last.requests = None, requests  # there is something new to find
        if last is not None and (now < last.at or last.state == state):
            return False
        self._tries[gang.key] = _Try(now + TRY_SECONDS, state, requests)
        return True

    def _state(self) -> object:
        """Differs once other pods may be evicted, or once the victims may suffice."""
        cache = self._cache
        return (
            cache.room,
            # Pods that are only planned are no victims, and pods that leave make room.
            cache.comings_and_goings,
            cache.settled_rows.generation,
            frozenset(cache.fresh.items()),  # until others have had their turn with them
            self._budgets.changes,
            self._spared.ended,
            self._idle_pods.changes,
        )

    def _select(self, gang: Gang, now: float, aside: RunUnlocked) -> Preemption | None:
        """The victims for *gang*; None: there are none that make room, or none is needed. Raises
        StaleResult if what it found is not true any more."""
        members = self._open(gang)
        if not members.open or not all(member.preempts for member in members.open):
            return None
        idle = self._idle_units(gang, now)
        # For a single pod without the gate, kube-scheduler evicts pods that are less important.
        is_ours = not gang.alone or all(member.gated for member in members.open)
        preempts = is_ours and self._allowed is not Preempt.NEVER
        plans = self._idling_plans(gang, now)
        if not (idle or preempts or plans):
            return None
        seen, before = Seen(self._cache, members.open), self._cache.rows.copy()
        units = list(self._units(gang, aside)) if preempts else []
        if not (idle or units or plans):
            return None
        aside(nothing)
        room = GangRoom(self._books, gang, members, now, aside)
        if room.seek(()) is not None:
            self._tries[gang.key].state = None  # look again, as terminating pods may get stuck
            return None  # the terminating pods make enough room
        if plans and (outranked := select([plans], room, _NO_BUDGETS, aside)) is not None:
            if not self._is_still_true(outranked, seen, before, now):
                raise StaleResult
            self._withdraw(outranked.units, gang, now)
            return None
        budgets = self._budgets.copied()
        taken = {pod.uid for pod in pods_of(idle)}
        others = [unit for unit in units if taken.isdisjoint(pod.uid for pod in unit.pods)]
        found = select([idle, [*idle, *others]], room, budgets, aside)
        if found is not None and not self._is_still_true(found, seen, before, now):
            raise StaleResult
        return found

    def _idling_plans(self, gang: Gang, now: float) -> list[Unit]:
        """What is planned and less important, and has not been bound for long."""
        priority = -self._queue.urgency(gang.key)[0]
        planned = list(self._candidates.planned(priority))
        idling = [unit for unit, made in planned if now >= made + IDLING_SECONDS]
        if len(idling) < len(planned):
            self._tries[gang.key].state = None  # look again: they may idle by then
        return idling

    def _withdraw(self, units: Iterable[Unit], gang: Gang, now: float) -> None:
        """Take the plans of these away: *gang* fits then."""
        for unit in units:
            why = f"for {gang.key.title}, which is more important"
            told = f"its plan was withdrawn {why}"
            self._pending_writes.say(unit.pods[0].ref, WITHDRAWN, told, now)
            for pod in unit.pods:
                self._cache.plan(pod.uid, None)
                self._pending_writes.note_why(pod.uid, why)
            self._withdrawn.add(unit.key)

    def take_withdrawn(self) -> set[GangKey]:
        """The gangs since the last call that lost their plans."""
        withdrawn, self._withdrawn = self._withdrawn, set()
        return withdrawn

    def _is_still_true(self, found: Preemption, seen: Seen, before: NodeTable, now: float) -> bool:
        pods = self._cache.pods
        are_there = all(pods.get(pod.uid) == pod for pod in pods_of(found.units))
        return are_there and self._are_idle(found, now) and seen.still_free(before, found.spots)

    def _units(self, gang: Gang, aside: RunUnlocked) -> Iterable[Unit]:
        """All units that may be evicted for *gang*."""
        priority = -self._queue.urgency(gang.key)[0]
        bound = (
            record
            for info in some_at_a_time(self._cache, aside)
            for record in [*info.bound.values()]
        )
        for unit in self._candidates.units(bound, priority, self._consents):
            if self._may_go_for(gang, unit):
                yield unit

    def _idle_units(self, gang: Gang, now: float) -> list[Unit]:
        priority = -self._queue.urgency(gang.key)[0]
        units = self._idle_pods.units(priority, now)
        return [unit for unit in units if self._may_go_for(gang, unit)]

    def _may_go_for(self, gang: Gang, unit: Unit) -> bool:
        is_spared = any(pod.uid in self._spared for pod in unit.pods)
        return not (is_spared or unit.key == gang.key or unit.key in self._preemptions)

    def _consents(self, record: PodRecord) -> bool:
        return self._allowed is Preempt.LOWER_PRIORITY or record.ask.preemptible

    def _begin(self, gang: Gang, preemption: Preemption, now: float) -> None:
        """Reserve what the victims leave."""
        self._reservations.reserve_for(
            gang, self._open(gang), preemption.spots, now, by_preemption=True
        )
        self._preemptions[gang.key] = preemption
        for unit in preemption.units:
            if unit.idle_since is None and unit.spare is None:
                self._queue.keep_age(unit.key, now)

    def _evict(self, key: GangKey, preemption: Preemption, now: float) -> None:
        to = self._queue.beneficiary(key)
        if to is None:
            return  # it is gone, since the victims were chosen
        for unit in preemption.units:
            event, why = REASON, f"to make room for {key.title}"
            if unit.idle_since is None:
                why = f"{why}, which is more important"
            else:
                event, why = RECLAIMED, f"{why}: no GPU has worked since {minute(unit.idle_since)}"
            for number, pod in enumerate(unit.pods):
                record = self._cache.pods.get(pod.uid)
                if record is None or not record.live:
                    continue
                try:
                    told = "" if number else event
                    self._pending_writes.evict(
                        record, why, now, event=told, priority=unit.priority, for_whom=to
                    )
                except Exception:
                    self.refused(pod.uid, now)
                    raise
