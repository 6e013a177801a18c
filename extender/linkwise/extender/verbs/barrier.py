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

from collections.abc import Collection, Mapping
from enum import Enum, auto

from linkwise.extender.api.records import GangKey, PodRecord, WrittenPlan
from linkwise.extender.cache.cache import Cache
from linkwise.extender.gangs.members import minimum_of, placed_at_most
from linkwise.extender.gangs.registry import GangRegistry
from linkwise.extender.gangs.repair import seat_of

# One that gave up comes again within 10 s, kube-scheduler's longest back-off.
_LARGE = 64
_REMEMBERED_SECONDS = 30.0


class Turn(Enum):
    WAIT = auto()
    GO = auto()
    IN_VAIN = auto()  # it has waited for as long as it can, or its plan is lost


class Barrier:
    def __init__(self, cache: Cache, registry: GangRegistry) -> None:
        self._cache, self._registry = cache, registry
        self._calls: dict[GangKey, dict[str, Turn]] = {}  # gang -> uid of a member that has come
        self._gang_of: dict[str, GangKey] = {}  # of the same members
        self._released: set[GangKey] = set()
        # Members of large gangs that came and gave up: by which plan, and when.
        self._came: dict[GangKey, dict[str, tuple[WrittenPlan, float]]] = {}

    def ask(self, record: PodRecord, now: float) -> Turn:
        """Whether this member, which has a plan, may be bound. It counts as come until `leave`."""
        key = record.gang
        if key is None or key.uid or not record.demand.gpus:
            return Turn.GO
        self._gang_of[record.uid] = key
        calls = self._calls.setdefault(key, {})
        if calls.setdefault(record.uid, Turn.WAIT) is Turn.WAIT:
            goes = self._who_goes(record, key, calls, now)
            if goes:
                calls.update(dict.fromkeys(goes, Turn.GO))
                self._released.add(key)
        return calls[record.uid]

    def gave_up(self, uid: str, now: float) -> None:
        """The call about this member has waited for as long as it can; `leave` follows. The calls
        that wait for it end now too: each member comes again within kube-scheduler's back-off,
        which is shorter than a wait, so then they meet. One by one, three could miss each other
        forever."""
        key = self._gang_of.get(uid)
        if key is None:
            return
        waiting = self._waiting(key)
        if len(self._cache.gangs.get(key, ())) >= _LARGE:
            for each in waiting:
                if (plan := self._cache.plans.get(each)) is not None:
                    self._came.setdefault(key, {})[each] = plan, now
        self._end(key, waiting)

    def leave(self, uid: str) -> None:
        """The call about this member has ended, or its Binding begins. The pod may be gone."""
        key = self._gang_of.pop(uid, None)
        if key is not None:
            del self._calls[key][uid]
            if not self._calls[key]:
                del self._calls[key]

    def look(self) -> None:
        """Plans may have been withdrawn, and pods bound, since the last look."""
        for key in [key for key in self._came if key not in self._cache.gangs]:
            del self._came[key]
        for key in self._calls:
            waiting = self._waiting(key)
            self._end(key, {uid for uid in waiting if uid not in self._cache.plans})
            if self._has_sent_its_pilot(key, waiting):
                self._released.add(key)

    def take_released(self) -> set[GangKey]:
        """The gangs whose waiting calls should ask again: they may go, or wait in vain."""
        released, self._released = self._released, set()
        return released

    def _waiting(self, key: GangKey) -> set[str]:
        return {uid for uid, turn in self._calls[key].items() if turn is Turn.WAIT}

    def _end(self, key: GangKey, waiting: Collection[str]) -> None:
        if waiting:
            self._calls[key].update(dict.fromkeys(waiting, Turn.IN_VAIN))
            self._released.add(key)

    def _who_goes(
        self, record: PodRecord, key: GangKey, calls: Mapping[str, Turn], now: float
    ) -> Collection[str]:
        """Those of the members that wait that may be bound now."""
        pilot, waiting = self._pilot(key), self._waiting(key)
        if pilot is None and self._has_begun(record, key):
            return waiting
        if not self._may_go(record, key, waiting, now):
            return ()
        return waiting if pilot is None else {pilot} & calls.keys()

    def _has_sent_its_pilot(self, key: GangKey, waiting: Collection[str]) -> bool:
        """Whether the member that goes first is bound, and others still wait for it."""
        gang = self._registry.gangs.get(key)
        if not waiting or gang is None or not gang.pilots or self._pilot(key) is not None:
            return False
        records = (self._cache.pods.get(uid) for uid in waiting)
        return any(each is not None and self._has_begun(each, key) for each in records)

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

    def _may_go(
        self, record: PodRecord, key: GangKey, waiting: Collection[str], now: float
    ) -> bool:
        """Whether with those that wait there are as many members as this one requires."""
        gang, least = self._registry.gangs.get(key), minimum_of(record)
        if gang is None:
            return True
        came = self._came.get(key, {})
        if len(waiting) + len(came) + placed_at_most(self._cache, key) < least:
            return False
        members = self._registry.members_of(gang)
        flying = {member.uid for member in members.flying}
        able = sum(self._cache.keeps_plan(uid) for uid in waiting if uid not in flying)
        able += sum(
            uid not in waiting
            and uid not in flying
            and self._cache.plans.get(uid) == plan
            and self._cache.keeps_plan(uid)
            and now < at + _REMEMBERED_SECONDS
            for uid, (plan, at) in came.items()
        )
        there = len(members.bound) + len(members.flying) + len(members.idle) + members.done
        return there + able >= least
