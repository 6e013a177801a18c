"""Makes room for a waiting gang: evicts less important gangs as a whole.

- No pod is evicted unless the whole gang then fits, according to the cache.
- The GPUs of the victims are reserved for the gang from the moment that the victims are chosen:
  only a more important gang or pod may use any of them.
- A victim is always less important than the gang that it makes room for, so no two can evict each
  other.
- A terminating pod counts as gone, unless it is stuck (`queue.running_pods`). If a victim gets
  stuck, or may not be evicted, other victims are chosen.
- For a single pod without linkwise's gate, kube-scheduler itself evicts (`verbs.preempt`).

docs/decisions/0013-order-and-holds.md says which pods may be evicted, and for which gangs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.pending_writes import PendingWrites
from linkwise.extender.gangs.allocate import GangSearch
from linkwise.extender.gangs.failed_searches import requests_of
from linkwise.extender.gangs.gang import Gang
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.gangs.partial_admission import needed
from linkwise.extender.gangs.registry import GangRegistry
from linkwise.extender.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.preemption.policy import Preempt
from linkwise.extender.preemption.victim_selection import Unit, VictimChoice, choose
from linkwise.extender.preemption.what_if import WhatIf
from linkwise.extender.queue.reservations import Reservations
from linkwise.extender.queue.running_pods import RunningPods
from linkwise.extender.queue.scheduling_queue import SchedulingQueue

# A gang without suitable victims is not tried again before this, and only if something changed.
TRY_SECONDS = 10.0
# A pod that the API server refuses to evict is spared for so long, and twice as long after each
# further refusal.
SPARED_SECONDS, _LONGEST_SPARED_SECONDS = 30.0, 600.0
_AT_ONCE = 1  # gangs: each may cost dozens of searches, and kube-scheduler's calls come in between
REASON = "Preempted"


@dataclass(slots=True)
class _Try:
    at: float
    state: object


@dataclass(slots=True)
class _Spared:
    until: float
    seconds: float


class GangPreemption:
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
        who: Preempt,
    ) -> None:
        self.budgets = budgets
        self._cache, self._pending_writes, self._registry, self._queue = (
            cache,
            pending_writes,
            registry,
            queue,
        )
        self._search, self._reservations, self._running_pods, self._who = (
            search,
            reservations,
            running_pods,
            who,
        )
        self._victims: dict[GangKey, frozenset[str]] = {}  # the gang that waits -> uids
        self._tries: dict[GangKey, _Try] = {}
        self._spared: dict[str, _Spared] = {}  # by uid
        self._spared_changes = 0  # how often a spared pod became evictable again
        # By gang with victims: when to check whether its GPUs come free.
        self._look_at: dict[GangKey, float] = {}
        self._more_at: float | None = None  # when to try the gangs that have not had their turn

    def victims(self, key: GangKey) -> frozenset[str]:
        """The uids of the pods that are, or were, evicted to make room for this gang."""
        return self._victims.get(key, frozenset())

    def evicts(self, gang: Gang) -> bool:
        """Whether members of *gang* are still to be evicted: then it gets no new GPUs."""
        members = self._cache.gangs.get(gang.key, set())
        return any(
            self._cache.pods[uid].live
            for victims in self._victims.values()
            for uid in victims & members
        )

    def next_due(self) -> float | None:
        """When to look again even if nothing changes until then."""
        if not (self._tries or self._victims):
            return None  # no gang needs room
        state = self._state()  # if it is the same, there is nothing new to find
        times = [
            each.at
            for key, each in self._tries.items()
            if key not in self._victims and each.state != state
        ]
        times += [spared.until for spared in self._spared.values() if spared.until]
        times += self._look_at.values()
        times += [] if self._more_at is None else [self._more_at]
        return min(times, default=None)

    def refused(self, uid: str, now: float) -> None:
        """The API server refused to evict this pod: choose other victims."""
        before = self._spared.get(uid)
        seconds = SPARED_SECONDS if before is None else 2 * before.seconds
        seconds = min(seconds, _LONGEST_SPARED_SECONDS)
        self._spared[uid] = _Spared(now + seconds, seconds)
        for key, victims in list(self._victims.items()):
            record = self._cache.pods.get(uid)
            if uid in victims and record is not None and record.live:
                self._give_up(key)

    def look(self, now: float) -> None:
        """Evict the chosen victims, and choose more, once all waiting gangs have been tried."""
        if self._who is Preempt.NEVER or not self.budgets.known:
            return
        waiting = self._queue.without_room()
        keys = {gang.key for gang in waiting}
        for key in [key for key in self._victims if key not in keys or self._is_spoilt(key, now)]:
            self._give_up(key)
        for key in self._tries.keys() - keys:
            del self._tries[key]
        self._end_sparing(now)
        self._look_on(waiting, now)
        for key in self._victims:
            self._evict(key, now)

    def _end_sparing(self, now: float) -> None:
        for uid, spared in list(self._spared.items()):
            record = self._cache.pods.get(uid)
            if record is None or not record.live:
                del self._spared[uid]
            elif spared.until and now >= spared.until:
                spared.until = 0.0  # `seconds` stays, for the next refusal
                self._spared_changes += 1

    def _is_spared(self, uid: str) -> bool:
        spared = self._spared.get(uid)
        return spared is not None and spared.until > 0

    def _look_on(self, waiting: Sequence[Gang], now: float) -> None:
        """The most urgent gangs first, few at a time; among equal gangs, one stands for all."""
        in_vain: set[object] = set()
        looked = 0
        self._more_at = None
        for gang in waiting:
            if gang.key in self._victims or not self._is_time(gang, now):
                continue
            alike = (-self._queue.urgency(gang.key)[0], requests_of(self._open(gang).open))
            if alike in in_vain:
                continue
            if looked == _AT_ONCE:
                self._tries.pop(gang.key)
                self._more_at = now
                return
            looked += 1
            if not self._choose(gang, now):
                in_vain.add(alike)
                tried = self._tries[gang.key]
                if tried.state is not None:
                    tried.state = self._state()  # the search itself changes the state

    def _open(self, gang: Gang) -> GangMembers:
        return needed(self._registry.muster(gang))

    def _give_up(self, key: GangKey) -> None:
        victims = self._victims.pop(key)
        self._look_at.pop(key, None)
        self._tries.pop(key, None)  # choose others at once
        reservation = self._reservations.of(key)
        if reservation is not None and reservation.evicts:
            self._reservations.give_up(key)
        for uid in victims:  # gangs that stay may have members that were left waiting
            record = self._cache.pods.get(uid)
            if record is not None:
                self._queue.take_up(record.gang)

    def _is_spoilt(self, key: GangKey, now: float) -> bool:
        """Whether the reservation is gone, or some of its GPUs do not come free: a victim is stuck,
        or a pod that is no victim uses them."""
        reservation = self._reservations.of(key)
        if reservation is None or not reservation.evicts:
            return True
        look_at = now + TRY_SECONDS
        for node, mask in reservation.gpus.items():
            info = self._cache.nodes.get(node)
            if info is None:
                return True
            leaving = self._running_pods.leaving(info, now)
            for uid, gpus in info.owned.items():
                if gpus & mask and uid not in leaving and not self._is_victim(key, uid):
                    return True
            look_at = min(look_at, self._running_pods.on(info, now).until)
        self._look_at[key] = look_at
        return False

    def _is_victim(self, key: GangKey, uid: str) -> bool:
        """Whether this pod is still to be evicted for the gang *key*."""
        record = self._cache.pods.get(uid)
        return uid in self._victims[key] and record is not None and record.live

    def _is_time(self, gang: Gang, now: float) -> bool:
        state = self._state()
        last = self._tries.get(gang.key)
        if last is not None and (now < last.at or last.state == state):
            return False
        self._tries[gang.key] = _Try(now + TRY_SECONDS, state)
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
            self.budgets.changes,
            self._spared_changes,
        )

    def _choose(self, gang: Gang, now: float) -> bool:
        """Choose victims for *gang*; return whether there are any."""
        found = self._open(gang)
        if not found.open or not all(member.preempts for member in found.open):
            return False
        if gang.alone and not all(member.gated for member in found.open):
            return False  # kube-scheduler evicts for it
        units = list(self._units(gang))
        if not units:
            return False
        question = WhatIf(
            self._cache, self._search, self._reservations, self._running_pods, gang, found, now
        )
        if question.seek(()) is not None:
            self._tries[gang.key].state = None  # look again, as terminating pods may get stuck
            return False  # the terminating pods make enough room
        choice = VictimChoice(self._may_all_go, question.may_do, question.makes_room, question.gain)
        chosen = choose(units, choice)
        spots = question.seek(chosen) if chosen else None
        if not chosen or spots is None:
            return False
        self._reservations.reserve_for(gang, found, spots, now, evicts=True)
        self._victims[gang.key] = frozenset(pod.uid for unit in chosen for pod in unit.pods)
        for unit in chosen:
            if unit.spare is None:
                self._queue.keep_age(unit.key, now)
            text = f"evicted to make room for {gang.key.title}, which is more important"
            self._pending_writes.say(unit.pods[0].ref, REASON, text, now)
        return True

    def _may_all_go(self, units: Sequence[Unit]) -> bool:
        return self.budgets.allow(pod for unit in units for pod in unit.pods)

    def _evict(self, key: GangKey, now: float) -> None:
        for uid in sorted(self._victims[key]):
            record = self._cache.pods.get(uid)
            if record is not None and record.live:
                self._pending_writes.evict(record, f"it makes room for {key.title}", now)

    def _units(self, gang: Gang) -> Iterator[Unit]:
        """All units that may be evicted for *gang*."""
        priority = -self._queue.urgency(gang.key)[0]
        seen: set[GangKey] = set()
        for info in self._cache.nodes.values():
            for record in info.bound.values():
                if record.priority >= priority or not record.live or not self._consents(record):
                    continue
                if record.ask.gang is None or record.gang is None:
                    name = record.ref
                    key = GangKey(name.namespace, name.name, name.uid)
                    if not self._is_spared(record.uid):
                        yield Unit((record,), record.priority, record.created, key)
                elif record.gang not in seen and record.gang != gang.key:
                    seen.add(record.gang)
                    yield from self._units_of(record.gang, priority)

    def _units_of(self, key: GangKey, priority: int) -> Iterator[Unit]:
        known = self._registry.gangs.get(key)
        if known is None or key in self._victims:
            return
        members = self._registry.muster(known)
        live = [member for member in members.all if member.live]
        bound = tuple(member for member in live if member.node)
        urgency, created, _ = self._queue.urgency(key)
        if -urgency >= priority or not all(self._consents(member) for member in live):
            return
        if not any(self._is_spared(member.uid) for member in bound):
            yield Unit(bound, -urgency, created, key)
        for number, member in enumerate(reversed(spare_of(members))):
            if not self._is_spared(member.uid):
                yield Unit((member,), -urgency, created, key, spare=number)

    def _consents(self, record: PodRecord) -> bool:
        return self._who is Preempt.LOWER_PRIORITY or record.ask.preemptible


def spare_of(members: GangMembers) -> tuple[PodRecord, ...]:
    """The members that a running gang can do without: those of the highest ranks."""
    ask = next((member.ask.gang for member in members.seats if member.ask.gang is not None), None)
    if ask is None or not members.started:
        return ()
    return members.bound[max(ask.minimum - members.done, 0) :]
