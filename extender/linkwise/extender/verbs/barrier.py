"""Holds the Bindings of a gang until every member that must start with them has come.

kube-scheduler calls `bind` for a pod once all of its filters, Reserve and PreBind have let the pod
through to its planned node. So the last of these calls is the moment at which the whole gang can
start, whatever else its pods need. Before it, nothing is bound: a gang that cannot start whole
holds no node, and is never evicted for having started by half.

A member waits only for as many others as its own minimum says. Once a member with the same minimum
is bound, or its Binding is in flight, nothing is held: the others can only follow.

The members of a large gang may need longer to come than a call can wait. So one that has come, and
gave up only because of the time, counts for some more. Its plan and nomination keep its room.
"""

from linkwise.extender.api.records import GangKey, PodRecord, WrittenPlan
from linkwise.extender.cache.cache import Cache
from linkwise.extender.gangs.members import minimum_of
from linkwise.extender.gangs.registry import GangRegistry
from linkwise.extender.gangs.repair import seat_of

# One that gave up comes again within 10 s, kube-scheduler's longest back-off.
_LARGE = 64
_REMEMBERED_SECONDS = 30.0


class Barrier:
    def __init__(self, cache: Cache, registry: GangRegistry) -> None:
        self._cache, self._registry = cache, registry
        self._waiting: dict[GangKey, set[str]] = {}  # the members, by uid, whose calls wait
        self._open: dict[GangKey, set[str]] = {}  # those that waited, and may be bound now
        self._gang_of: dict[str, GangKey] = {}  # of all in these two
        self._released: set[GangKey] = set()
        self._in_vain: set[str] = set()
        self._told: set[str] = set()  # members whose plans are lost, and that were released
        # Members of large gangs that came and gave up: by which plan, and when.
        self._came: dict[GangKey, dict[str, tuple[WrittenPlan, float]]] = {}

    def holds(self, record: PodRecord, now: float) -> bool:
        """Whether the Binding of this member, which has a plan, must wait for others. It counts as
        come from now on, until `leave`."""
        key = record.gang
        if key is None or key.uid or not record.demand.gpus:
            return False
        if record.uid in self._open.get(key, ()):
            return False
        pilot = self._pilot(key)
        if pilot is None and self._has_begun(record, key):
            self._release(key)
            return False
        waiting = self._waiting.setdefault(key, set())
        waiting.add(record.uid)
        self._gang_of[record.uid] = key
        if pilot is not None and pilot != record.uid:
            if pilot in waiting and self._may_go(record, key, waiting, now):
                waiting.discard(pilot)
                self._open.setdefault(key, set()).add(pilot)
                self._released.add(key)
            return True
        if pilot is not None and self._may_go(record, key, waiting, now):
            waiting.discard(pilot)
            return False
        if self._may_go(record, key, waiting, now):
            self._open.setdefault(key, set()).update(waiting)
            self._release(key)
            return False
        return True

    def gave_up(self, record: PodRecord, now: float) -> None:
        """The call about this member has waited for as long as it can; `leave` follows. The calls
        that wait for it end now too: each member comes again within kube-scheduler's back-off,
        which is shorter than a wait, so then they meet. One by one, three could miss each other
        forever."""
        key = record.gang
        if key is None:
            return
        waiting = self._waiting.pop(key, set())
        if len(self._cache.gangs.get(key, ())) >= _LARGE:
            for uid in waiting | {record.uid}:
                if (plan := self._cache.plans.get(uid)) is not None:
                    self._came.setdefault(key, {})[uid] = plan, now
        self._in_vain |= waiting - {record.uid}
        self._released.add(key)

    def waits_in_vain(self, uid: str) -> bool:
        """Whether the wait of this member has ended with that of another one."""
        return uid in self._in_vain

    def leave(self, uid: str) -> None:
        """The call about this member has ended, or its Binding begins. The pod may be gone."""
        key = self._gang_of.pop(uid, None)
        self._told.discard(uid)
        self._in_vain.discard(uid)
        for members in (self._waiting, self._open):
            if key in members:
                members[key].discard(uid)
                if not members[key]:
                    del members[key]

    def take_released(self) -> set[GangKey]:
        """The gangs whose waiting calls should ask again: they may go, or their plans are lost."""
        for key in [key for key in self._came if key not in self._cache.gangs]:
            del self._came[key]
        for key, waiting in self._waiting.items():
            gang = self._registry.gangs.get(key)
            if gang is not None and gang.pilots and self._pilot(key) is None:
                others = (self._cache.pods.get(uid) for uid in waiting)
                if any(each is not None and self._has_begun(each, key) for each in others):
                    self._released.add(key)  # it is bound: the others follow
            lost = {uid for uid in waiting if uid not in self._cache.plans} - self._told
            if lost:
                self._told |= lost  # their calls end, and are not waked again
                self._released.add(key)
        released, self._released = self._released, set()
        return released

    def waiting(self, key: GangKey) -> frozenset[str]:
        """The uids of the members that have come and wait."""
        return frozenset(self._waiting.get(key, ()))

    def _release(self, key: GangKey) -> None:
        self._came.pop(key, None)
        if self._waiting.pop(key, None) is not None:
            self._released.add(key)

    def _pilot(self, key: GangKey) -> str | None:
        """The member, by uid, that goes before all others and is not bound yet: the API server
        refused its Binding before, and would leave the others half a gang."""
        gang = self._registry.gangs.get(key)
        if gang is None or not gang.pilots:
            return None
        members = (self._cache.pods[uid] for uid in self._cache.gangs.get(key, ()))
        return min(
            (m.uid for m in members if m.live and not m.node and seat_of(m) in gang.pilots),
            default=None,
        )

    def _has_begun(self, record: PodRecord, key: GangKey) -> bool:
        """Whether another member that requires as many others has its GPUs for good, or is about
        to. That this one's own Binding may be in flight, without an answer, starts no gang."""
        least = minimum_of(record)
        pods, assumed = self._cache.pods, self._cache.assumed
        return any(
            uid != record.uid
            and (pods[uid].node or uid in assumed)
            and pods[uid].live
            and pods[uid].demand.gpus
            and minimum_of(pods[uid]) >= least
            for uid in self._cache.gangs.get(key, ())
        )

    def _may_go(self, record: PodRecord, key: GangKey, waiting: set[str], now: float) -> bool:
        """Whether with those that wait there are as many members as this one requires."""
        gang, least = self._registry.gangs.get(key), minimum_of(record)
        ask = record.ask.gang
        if gang is None or ask is None:
            return True
        # A glance at the number suffices nearly always; to sort a large gang takes milliseconds.
        others = sum(not self._comes_to_bind(uid) for uid in self._cache.gangs.get(key, ()))
        came = self._came.get(key, {})
        if len(waiting) + len(came) + others + ask.done < least:
            return False
        members = self._registry.members_of(gang)
        able = sum(self._cache.keeps_plan(uid) for uid in waiting)
        able += sum(
            uid not in waiting
            and self._cache.plans.get(uid) == plan
            and self._cache.keeps_plan(uid)
            and now < at + _REMEMBERED_SECONDS
            for uid, (plan, at) in came.items()
        )
        there = len(members.bound) + len(members.flying) + len(members.idle) + members.done
        return there + able >= least

    def _comes_to_bind(self, uid: str) -> bool:
        member = self._cache.pods[uid]
        return member.live and not member.node and bool(member.demand.gpus)
