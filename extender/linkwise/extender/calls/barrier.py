"""Holds the Bindings of a gang until every member that must start with them has come.

kube-scheduler calls `bind` for a pod once all of its filters, Reserve and PreBind have let the pod
through to its planned node. So the last of these calls is the moment at which the whole gang can
start, whatever else its pods need. Before it, nothing is bound: a gang that cannot start whole
holds no node, and is never evicted for having started by half.

A new process lets no member go before it has looked at the gang.

A member waits only for as many others as its own minimum says. Once a member that requires as many
is bound, or its Binding is in flight, it waits no more: it can only follow.

The members of a large gang may need longer to come than a call can wait. So one that has come, and
gave up only because of the time, counts for some more. Its plan and nomination keep its room.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from linkwise.extender.next.cycle.planner import Planner
from linkwise.extender.next.gangs.members import minimum_of, placed_at_most
from linkwise.extender.next.queue.books import Part
from linkwise.extender.state.records import GangKey, PodRecord, WrittenPlan

# One that gave up comes again within 10 s, kube-scheduler's longest back-off.
_LARGE = 64
_REMEMBERED_SECONDS = 30.0


class Turn(Enum):
    WAIT = auto()
    GO = auto()
    IN_VAIN = auto()  # it has waited for as long as it can, or its plan is lost


@dataclass(slots=True)
class _Call:
    node: str
    turn: Turn = Turn.WAIT


class Barrier(Part):
    def __init__(self, planner: Planner) -> None:
        super().__init__(planner)
        self._calls: dict[GangKey, dict[str, _Call]] = {}  # gang -> uid of a member that has come
        self._gang_of: dict[str, GangKey] = {}  # of the same members
        self._released: set[GangKey] = set()
        self._unseen: set[GangKey] = set()  # that a new process has not looked at yet
        # Members of large gangs that came and gave up: by which plan, and when.
        self._came: dict[GangKey, dict[str, tuple[WrittenPlan, float]]] = {}

    def ask(self, record: PodRecord, node: str, now: float) -> Turn:
        """Whether this member, which has a plan for *node*, may be bound. It counts as come until
        `leave`."""
        key = record.gang
        if self._gang_of.get(record.uid, key) != key:
            self.leave(record.uid)
        if key is None or key.uid or not record.demand.gpus:
            return Turn.GO
        self._gang_of[record.uid] = key
        calls = self._calls.setdefault(key, {})
        call = calls.setdefault(record.uid, _Call(node))
        if call.node != node:  # kube-scheduler has given the other call up
            call.node, call.turn = node, Turn.WAIT
        if call.turn is Turn.WAIT:
            for uid in self._who_go(key, now):
                calls[uid].turn = Turn.GO
                self._released.add(key)
        return call.turn

    def gave_up(self, uid: str, now: float) -> bool:
        """The call about this member has waited for as long as it can; `leave` follows. The calls
        that wait for it end now too: each member comes again within kube-scheduler's back-off,
        which is shorter than a wait, so then they meet. One by one, three could miss each other
        forever.

        False: it has just been allowed to go, with the others, so it must not give up."""
        key = self._gang_of.get(uid)
        if key is None:
            return True
        if self._calls[key][uid].turn is Turn.GO:
            return False
        waiting = self._waiting(key)
        if len(self._cache.gangs.get(key, ())) >= _LARGE:
            for each in waiting:
                if (plan := self._cache.plans.get(each)) is not None:
                    self._came.setdefault(key, {})[each] = plan, now
        self._end(key, waiting)
        return True

    def leave(self, uid: str) -> None:
        """The call about this member has ended, or its Binding begins. The pod may be gone."""
        key = self._gang_of.pop(uid, None)
        if key is not None:
            del self._calls[key][uid]
            if not self._calls[key]:
                del self._calls[key]

    def look(self) -> None:
        """Plans may have been withdrawn, and pods bound, since the last look."""
        seen = self._unseen & self._registry.gangs.keys()
        self._released |= seen & self._calls.keys()
        self._unseen = (self._unseen - seen) & self._calls.keys()
        for key in [key for key in self._came if key not in self._cache.gangs]:
            del self._came[key]
        for key in self._calls:
            waiting = self._waiting(key)
            lost = {uid for uid, call in waiting.items() if not self._is_its_place(uid, call.node)}
            self._end(key, lost)
            if self._has_sent_its_pilot(key, waiting.keys() - lost):
                self._released.add(key)

    def take_released(self) -> set[GangKey]:
        """The gangs whose waiting calls should ask again: they may go, or wait for nothing."""
        released, self._released = self._released, set()
        return released

    def _waiting(self, key: GangKey) -> dict[str, _Call]:
        return {uid: call for uid, call in self._calls[key].items() if call.turn is Turn.WAIT}

    def _end(self, key: GangKey, waiting: Collection[str]) -> None:
        for uid in waiting:
            self._calls[key][uid].turn = Turn.IN_VAIN
            self._released.add(key)

    def _is_its_place(self, uid: str, node: str) -> bool:
        """Whether the member's plan, or its Binding without an answer, is for *node*."""
        planned = self._cache.plans.get(uid)
        return node in self._cache.assumed.get(uid, ()) or (
            planned is not None and planned.plan.node == node
        )

    def _who_go(self, key: GangKey, now: float) -> Collection[str]:
        """Those of the members that wait that may be bound now."""
        pilot, waiting = self._pilot(key), self._waiting(key)
        begun = self._begun(key, waiting, bound_only=pilot is not None)
        least_of = self._least_of(waiting)
        follow = {uid for uid, least in least_of.items() if least <= begun}
        if follow:
            return follow
        enough = self._enough(key, waiting, least_of, now)
        together = {uid for uid, least in least_of.items() if least <= enough}
        return together if pilot is None else {pilot} & together

    def _has_sent_its_pilot(self, key: GangKey, waiting: Collection[str]) -> bool:
        """Whether the member that goes first is bound, and others still wait for it."""
        gang = self._registry.gangs.get(key)
        if not waiting or gang is None or not gang.pilots or self._pilot(key) is not None:
            return False
        begun = self._begun(key, waiting)
        return any(least <= begun for least in self._least_of(waiting).values())

    def _least_of(self, waiting: Collection[str]) -> dict[str, int]:
        """How many members each of them requires. The pod of a call may be gone."""
        pods = self._cache.pods
        return {uid: minimum_of(pods[uid]) for uid in waiting if uid in pods}

    def _pilot(self, key: GangKey) -> str | None:
        """The member, by uid, that is bound first and is not bound yet: the API server
        refused its Binding before, and would leave the others half a gang. One without a plan
        cannot start, so no member waits for it."""
        gang = self._registry.gangs.get(key)
        if gang is None or not gang.pilots:
            return None
        members = (self._cache.pods[uid] for uid in self._cache.gangs.get(key, ()))
        return min(
            (
                m.uid
                for m in members
                if m.live
                and not m.node
                and (m.uid in self._cache.plans or m.uid in self._cache.assumed)
                and m.seat in gang.pilots
            ),
            default=None,
        )

    def _begun(self, key: GangKey, waiting: Collection[str], *, bound_only: bool = False) -> int:
        """The largest minimum of the members that are bound, or whose Binding is in flight; 0 if
        there are none. *bound_only*: those in flight do not count. That the Binding of one that
        waits may be in flight, without an answer, starts no gang. Nor does the first wave of one
        that comes in several: those of the next one wait for each other again."""
        pods, assumed = self._cache.pods, self._cache.assumed
        gang = self._registry.gangs.get(key)
        in_waves = any(pods[uid].to_come for uid in waiting if uid in pods)
        if in_waves and gang is not None and not self._registry.members_of(gang).started:
            return 0
        return max(
            (
                minimum_of(pods[uid])
                for uid in self._cache.gangs.get(key, ())
                if (pods[uid].node or (uid in assumed and uid not in waiting and not bound_only))
                and pods[uid].live
                and pods[uid].demand.gpus
            ),
            default=0,
        )

    def _enough(
        self,
        key: GangKey,
        waiting: Mapping[str, _Call],
        least_of: Mapping[str, int],
        now: float,
    ) -> int:
        """The largest minimum that is met by the members that are there, together with those that
        come and require no more than that; 0 if none is."""
        gang = self._registry.gangs.get(key)
        if gang is None:
            self._unseen.add(key)
            return 0
        came = self._came.get(key, {})
        most = len(waiting) + len(came) + placed_at_most(self._cache, key)
        most += sum(uid in self._cache.assumed for uid in self._cache.gangs.get(key, ()))
        if most < min(least_of.values()):  # a glance, as most calls of a large gang end here
            return 0
        members = self._registry.members_of(gang)
        flying = {member.uid for member in members.flying}
        plans, pods = self._cache.plans, self._cache.pods
        able = [
            least
            for uid, least in least_of.items()
            if uid not in flying
            and self._is_its_place(uid, waiting[uid].node)
            and self._cache.keeps_plan(uid)
        ]
        able += [
            minimum_of(pods[uid])
            for uid, (plan, at) in came.items()
            if uid not in waiting
            and uid not in flying
            and plans.get(uid) == plan
            and self._cache.keeps_plan(uid)
            and now < at + _REMEMBERED_SECONDS
        ]
        there = len(members.bound) + len(members.flying) + len(members.idle) + members.done
        # A member to come counts once the API server has its place, for the next leader too.
        there += sum(
            self._pending_writes.has_brought(member, plans[member.uid])
            for member in members.planned
            if member.coming
        )
        met = (
            least
            for least in {*least_of.values()}
            if there + sum(each <= least for each in able) >= least
        )
        return max(met, default=0)
