"""The life of a gang between its plans.

- Plans that are lost, refused or too late are withdrawn.
- A gang with enough bound members is marked as started.
- A gang that had too few for too long is evicted.
- A running gang that has lost a member is repaired.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from linkwise.extender.next.gangs.gang import Gang, News, phase_of
from linkwise.extender.next.gangs.growing_pauses import GrowingPauses
from linkwise.extender.next.gangs.members import (
    UNWRITTEN_SECONDS,
    GangMembers,
    Members,
    is_past_us,
    may_stay_unwritten,
    plan_of,
    waits_until,
)
from linkwise.extender.next.gangs.registry import GangBooks, GangPart
from linkwise.extender.next.gangs.scheduling_gates import SchedulingGates
from linkwise.extender.next.gangs.to_come import MembersToCome
from linkwise.extender.place.request import Spot
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.timers import Pause, Timers
from linkwise.pods.podgrouper.recreated import COUNTS_AS_FAILURE
from linkwise.topology.annotations.plan import Plan

CANNOT_REPAIR = "GangCannotBeRepaired"
# Most repairs take less, and need no Event: the operator creates the pod, the kubelet cleans up.
PATIENCE_SECONDS = 10.0
_MOST_NAMES = 5  # in one sentence


class Repair(GangPart):
    """Repairs a running gang that has lost a member.

    1. The recreated member gets the same GPUs of the same node, which `to_come` keeps for it: its
       neighbours in rank and the data on the disk are there.
    2. If that is impossible, it is planned next to the others, like any late member.
    3. If that is impossible, an Event reports the gang. The gang is evicted as a whole only if all
       its members declare themselves preemptible, and only after it has held its GPUs for as long
       as a partial gang may.
    """

    def __init__(self, books: GangBooks) -> None:
        super().__init__(books)

    def note_spots(self, gang: Gang, members: GangMembers) -> None:
        """Remember the places of the members, for their replacements."""
        for member in members.bound:
            info = self._cache.nodes.get(member.node)
            gpus = info.owned.get(member.uid, 0) if info is not None else 0
            if gpus:
                gang.spots.pop(member.seat, None)  # the latest are last
                gang.spots[member.seat] = Spot(member.node, gpus)
        while len(gang.spots) > 2 * max(members.size, len(members.seats)):
            del gang.spots[next(iter(gang.spots))]  # names that were never reused

    def judge(
        self,
        gang: Gang,
        members: GangMembers,
        now: float,
        timeout_seconds: float,
        *,
        has_no_room: bool,
    ) -> float | None:
        """Report a gang that misses members it needs, or give it up. Return when to look again.
        *has_no_room*: the last search found no GPUs for these members."""
        why = self._why(gang, members, has_no_room=has_no_room)
        if not why:
            gang.stuck_since = None
            return None
        gang.stuck_since = now if gang.stuck_since is None else gang.stuck_since
        patience_ends = gang.stuck_since + PATIENCE_SECONDS
        if now < patience_ends:
            return patience_ends
        gang.reason = why
        self._pending_writes.say(
            members.bound[0].ref, CANNOT_REPAIR, f"{gang.key.title}: {why}", now
        )
        if not (members.open and all(member.ask.preemptible for member in members.seats)):
            return None
        gives_up = gang.stuck_since + timeout_seconds
        if now < gives_up:
            return gives_up
        if members.flying:
            return now + PATIENCE_SECONDS
        gang.expired, gang.stuck_since = True, None
        return None

    def _why(self, gang: Gang, members: GangMembers, *, has_no_room: bool) -> str:
        """Why the gang is not whole; empty: no member is missing, or it is being repaired."""
        if not members.started or gang.expired or members.enough_placed or not members.bound:
            return ""
        if members.open and gang.refused:
            return "kube-scheduler did not take the plans of the missing members"
        if members.open and has_no_room:
            names = ", ".join(member.ref.name for member in members.open[:_MOST_NAMES])
            return f"there is no room for the missing members ({names})"
        if members.complete or members.held_back:
            return ""
        dead = [member.ref.name for member in members.all if member.failed][:_MOST_NAMES]
        gone = f" ({', '.join(dead)} failed)" if dead else ""
        return f"members are missing, and their controller has created no replacements{gone}"


_CLOCKS_DIFFER_SECONDS = 60.0
_MOST_LEAVING_SECONDS = 3600.0  # that a new pod waits for one that hangs
_AT_ONCE = 512  # members whose plans are judged, or published, before others may use the core
# A gang whose plans failed is tried again after a pause, which doubles each time. Plans that were
# too late have reserved GPUs for their whole timeout, and so will the next one: then the first
# pause is as long as that timeout.
REFUSED_SECONDS = 60.0
# A member needs about as long from its plan to its Binding; a shorter timeout only makes writes.
LEAST_TIMEOUT_SECONDS = 10.0
# For so long the gang of a pod that asks for it keeps GPUs from others without a start.
MOST_TIMEOUT_SECONDS = 3600.0
_MOST_DOUBLINGS = 3
KEPT_FOR_NOTHING = (
    "its namespace keeps no places for a while: the pods for which it kept some did not come"
)
# A plan that ends because the gang's own pods changed: the first pause before the next one, how
# often it doubles, and after how long without one it is forgotten. Each plan of a gang is a write
# for each member, so one who changes one pod again and again would cause thousands.
_ALTERED_SECONDS, _ALTERED_DOUBLINGS, _ALTERED_FORGOTTEN_SECONDS = 1.0, 6, 600.0
ALTERED = "its pods changed after they were planned, so it waits for a moment"
PAUSES = KEPT_FOR_NOTHING, ALTERED  # reasons of gangs that have room and get no plan yet
_NOTE_AGAIN_SECONDS = 1.0  # the places of members to come, if their note could not be written


class GangLifecycle(GangPart):
    def __init__(
        self,
        books: GangBooks,
        *,
        gates: SchedulingGates,
        to_come: MembersToCome,
        gang_timeout_seconds: float,
        max_refusals: int,
    ) -> None:
        super().__init__(books)
        self.refusals = 0
        self.refusals_ended = 0  # how often nodes that were refused may have become suitable
        self._gates, self._to_come, self._repair = gates, to_come, Repair(books)
        self._timeout_seconds = gang_timeout_seconds
        self._most_seconds = max(gang_timeout_seconds, MOST_TIMEOUT_SECONDS)
        self._max_refusals = max_refusals
        self._deadlines: Timers[GangKey] = Timers(books.agenda)
        self._altered = GrowingPauses(_ALTERED_DOUBLINGS, _ALTERED_FORGOTTEN_SECONDS)
        self._looks: Timers[GangKey] = Timers(books.agenda)  # when to look again for other reasons

    def altered(self, key: GangKey | None) -> None:
        """A pod of the gang came, or changed what it says or requests."""
        gang = self._registry.gangs.get(key) if key is not None else None
        if gang is not None:
            gang.altered = True

    def _pause_altered(self, gang: Gang, now: float) -> None:
        namespace = gang.key.namespace
        if self._altered.until(namespace, now) is None:
            self._altered.pause(namespace, _ALTERED_SECONDS, now)
        gang.altered_until = self._altered.until(namespace, now) or now

    def begin_round(self, now: float) -> None:
        self._to_come.forget_noted(now)

    def deadline(self, gang: Gang) -> float | None:
        return self._deadlines.get(gang.key)

    def take_late(self, now: float) -> tuple[set[GangKey], set[GangKey]]:
        """The gangs whose deadline has come, and those whose next look is due. The latter waited
        for something else than room."""
        looks = {*self._looks.take(now)}
        for key in looks:
            gang = self._registry.gangs.get(key)
            if gang is not None and now >= gang.tried_at(self.news()):
                gang.forgive()
        return {*self._deadlines.take(now)}, looks

    def news(self) -> News:
        return News(self._cache.versions.generation, self.refusals_ended)

    def look_again(self, gang: Gang, at: float) -> None:
        """Let `take_late` return *gang* at that time, unless it changes before."""
        before = self._looks.get(gang.key)
        self._looks[gang.key] = at if before is None else min(at, before)

    def reconcile(self, key: GangKey, now: float, pause: Pause) -> bool:
        """Update the gang from its pods; return whether some of them need a plan. *pause* lets
        others use the core after some hundred members."""
        self._deadlines.drop(key)
        self._looks.drop(key)
        if key not in self._cache.gangs:
            self._registry.forget(key)
            return False
        is_new = key not in self._registry.gangs
        gang = self._registry.gangs.setdefault(key, Gang(key))
        members = self._registry.members_of(gang)
        self._note_who_came(gang, members, now)
        if self._to_come.concerns(key, members):
            self._to_come.look(gang, now)
            if key not in self._cache.gangs:  # its last members were to come
                self._registry.forget(key)
                return False
            members = self._registry.members_of(gang)
        if not any(member.live for member in members.all):
            gang.plan_id = ""  # that run is over; new pods belong to another
            gang.spots.clear()
        self._to_come.note_turn(gang, members, now)
        lacks_members = members.started and not members.standing(gang).enough
        gang.lost_since = (gang.lost_since or now) if lacks_members else None
        if members.clash:
            gang.reason = members.clash
            self.withdraw(members.planned, members.clash)
        self._drop_lost_plans(gang, self._registry.members_of(gang), pause)
        lost = any(member.uid not in self._cache.plans for member in members.planned)
        if gang.altered and lost and not members.started:
            self._pause_altered(gang, now)
        gang.altered = False
        self._read_plans(gang, now)
        if is_new:
            self._give_grace(gang, now)
        self._count_refusal(gang, now)
        self._expire(gang, now)
        self._start_or_evict(gang, now)
        self._repair.note_spots(gang, self._registry.members_of(gang))
        return self._wants_plan(gang, now)

    def _note_who_came(self, gang: Gang, members: GangMembers, now: float) -> None:
        there = frozenset(m.uid for m in members.all if m.live and not m.coming)
        if there - gang.members:
            gang.came = now
        for uid in gang.passed.keys() - there:
            del gang.passed[uid]
        gang.members = there

    def _drop_lost_plans(self, gang: Gang, members: GangMembers, pause: Pause) -> None:
        """Withdraw plans that can no longer be carried out, or are for a surplus pod."""
        extra = (member for member in members.extra if not self._cache.is_being_bound(member.uid))
        self.withdraw(extra, "its gang has enough pods without it")
        for number, member in enumerate(members.planned, 1):
            if self.has_lost_plan(member):
                node = self._cache.plans[member.uid].plan.node
                gang.reason = f"the plan of pod {member.ref.name} on node {node} came to nothing"
                self.withdraw([member], gang.reason)
            if number % _AT_ONCE == 0:
                pause()

    def has_lost_plan(self, member: PodRecord) -> bool:
        """Whether a member has a plan that can no longer be carried out."""
        written = self._cache.plans.get(member.uid)
        if written is None:
            return False  # it was bound, or went, during a pause
        keeps = self._cache.keeps_plan(member.uid)
        if not keeps and member.coming and self._to_come.is_being_left(member):
            return False
        return not (keeps and self._node_filters.on(member.template, written.plan.node))

    def _read_plans(self, gang: Gang, now: float) -> None:
        """Read the gang's plan from its members. If a new plan is incomplete, the plan of the bound
        members counts."""
        members = self._registry.members_of(gang)
        real = [member for member in members.planned if not member.coming]
        copied = (self._is_copied(member, now) for member in real)
        if real and not (members.bound or members.flying) and all(copied):
            self.withdraw(members.planned, "it came with a copied manifest")
            members = self._registry.members_of(gang)
        # Members that have no whole GPUs keep none from others, and their plans are their own.
        bound = [member for member in members.bound if member.needs.gpus]
        flying = [member for member in members.flying if member.needs.gpus]
        waiting = self._plans_of((*flying, *members.planned))
        plans = self._plans_of(bound) or waiting
        if plans:
            # The times of two leaders are from two clocks.
            newest = max(plans, key=lambda plan: (plan.leader, plan.made, plan.id))
            # A time in the future, from a wrong clock or a copied plan, counts as now.
            seen = gang.made if gang.made is not None and gang.plan_id == newest.id else now
            gang.plan_id = newest.id
            made = min(plan.made for plan in plans if plan.id == newest.id)
            gang.made = max(0.0, min(seen, made))
            gang.refusals = max([gang.refusals, *(plan.refusals for plan in waiting)])
        elif bound:  # without the extender; the time runs from when it first saw that
            gang.made = now if gang.made is None else gang.made
        else:
            gang.made = None
        if not members.started:
            other = [
                member
                for member in members.planned
                if self._cache.plans[member.uid].plan.id != gang.plan_id
            ]
            self.withdraw(other, "its gang has a newer plan")

    def _is_copied(self, member: PodRecord, now: float) -> bool:
        """Whether the plan is older than the pod, by two clocks: then it came with a manifest. For
        a single member it may also mean that the member was recreated."""
        created = min(member.created, now)  # the API server's clock may have been set back
        return self._cache.plans[member.uid].plan.made < created - _CLOCKS_DIFFER_SECONDS

    def _give_grace(self, gang: Gang, now: float) -> None:
        """Give a partial gang found past its deadline more time. While no extender ran it may have
        been whole, and the member with the mark may be gone. So it is not evicted before it could
        be whole again."""
        members = self._registry.members_of(gang)
        if members.bound and gang.made is not None and now >= self._ends(gang, members):
            gang.grace = now

    def _plans_of(self, members: Iterable[PodRecord]) -> list[Plan]:
        found = (plan_of(self._cache, member) for member in members)
        return [written.plan for written in found if written is not None]

    def _count_refusal(self, gang: Gang, now: float) -> None:
        if not gang.was_refused:
            return
        gang.was_refused = False
        if gang.is_hopeless:
            gang.is_hopeless, gang.refusals = False, max(gang.refusals, self._max_refusals)
        gang.has_learnt = not gang.is_denied
        self._refuse(gang, now)
        self.withdraw(self._registry.members_of(gang).planned, gang.reason)

    def _refuse(self, gang: Gang, now: float, *, pause_seconds: float = REFUSED_SECONDS) -> None:
        self.refusals += 1
        gang.refusals += 1
        if gang.refusals >= self._max_refusals or gang.is_often_refused(self.news()):
            seconds = pause_seconds * 2 ** min(gang.times_refused, _MOST_DOUBLINGS)
            gang.pause(now, now + seconds, self.news())
            self._registry.refused.add(gang.key)
            if (first := self._registry.members_of(gang).first) is not None:
                self._pending_writes.say(first.ref, *_told(gang, "Refused"), now)

    def _expire(self, gang: Gang, now: float) -> None:
        members = self._registry.members_of(gang)
        if members.started or members.standing(gang).enough:
            self._give_back_late(gang, members, now)
            return
        if members.flying or gang.expired or gang.made is None or not members.keep_gpus:
            return
        leaving = any(member.has_yet_to_leave for member in members.all)
        if leaving and not members.coming and now < gang.came + _MOST_LEAVING_SECONDS:
            gang.grace = now  # its own earlier pods still have the GPUs that the new ones wait for
        if now < self._ends(gang, members):
            return
        gang.reason, gang.has_learnt = _too_late(gang, members), False
        if members.coming:
            self._to_come.for_nothing.pause(gang.key.namespace, now - gang.made, now)
        self.withdraw(members.planned, gang.reason)
        gang.expired = bool(members.bound)
        if members.first is not None:
            event, told = _told(gang, "Expired")
            if any(member.ask.eviction_fails_job for member in members.bound):
                told = f"{told}; {COUNTS_AS_FAILURE}"
            self._pending_writes.say(members.first.ref, event, told, now)
        self._refuse(gang, now, pause_seconds=self._timeout_of(members))

    def _give_back_late(self, gang: Gang, members: GangMembers, now: float) -> None:
        """A running gang keeps its GPUs, but reserves none forever for members that follow."""
        late = [member for member in members.planned if now >= self._ends_of(member, members)]
        if late:
            gang.reason = f"pod {late[0].ref.name} was not bound in time"
            gang.has_learnt = False
            self.withdraw(late, gang.reason)
            self._refuse(gang, now, pause_seconds=self._timeout_of(members))

    def _start_or_evict(self, gang: Gang, now: float) -> None:
        members = self._registry.members_of(gang)
        enough = members.standing(gang).enough
        if gang.expired and (enough or not (members.bound or members.flying)):
            gang.expired = False
            if not enough:
                gang.plan_id = ""  # that run is over: an evicted member that succeeded is missing
                members = self._registry.members_of(gang)
        if gang.expired:
            self._evict(gang, members, now)
        elif members.started or enough:
            if not gang.refused:
                gang.reason = ""
            bound = frozenset(member.uid for member in members.bound)
            if bound - gang.marked:
                gang.count_start()
                if members.in_waves:
                    self._to_come.for_nothing.reset(gang.key.namespace)
            gang.marked = bound
            # The Binding that made them enough has mostly set the mark; one mark suffices.
            ours = [member for member in members.bound if not is_past_us(member)]
            if ours and not any(member.started for member in ours):
                self._pending_writes.mark_started(ours[0], now)

    def _evict(self, gang: Gang, members: GangMembers, now: float) -> None:
        for member in members.bound:
            self._pending_writes.evict(member, f"gang {gang.name}: {gang.reason}", now)

    def _wants_plan(self, gang: Gang, now: float) -> bool:
        members = self._registry.members_of(gang)
        gang.unasked = self._unasked(members)
        if gang.refused and not gang.expired:
            self.look_again(gang, min(gang.refused_until, gang.tried_at(self.news())))
        able = not (members.clash or gang.refused or gang.expired or gang.unasked)
        if able and now < gang.altered_until:
            able, gang.reason = False, ALTERED
            self.look_again(gang, gang.altered_until)
        elif gang.reason == ALTERED:
            gang.reason = ""
        if not (able and members.together()):
            gang.able_since = None
            return False
        if gang.able_since is None:
            gang.able_since = now
        until = waits_until(gang, members)
        if until is None or now >= until:
            return True
        self.look_again(gang, until)
        return False

    def may_keep_places(self, gang: Gang, now: float) -> bool:
        """Whether the gang, if it needs places for members to come, may have some now."""
        members = self._registry.members_of(gang)
        if not members.coming or members.bound or members.flying or members.planned:
            return True
        until = self._to_come.for_nothing.until(gang.key.namespace, now)
        if until is None:
            if gang.reason == KEPT_FOR_NOTHING:
                gang.reason = ""
            return True
        gang.reason = KEPT_FOR_NOTHING
        self.look_again(gang, until)
        return False

    def _unasked(self, members: GangMembers) -> str:
        """The scheduler of a member that does not call the extender; empty: there is none. Other
        schedulers place their gangs themselves and ignore plans. Pods that are gated, or name their
        gang in linkwise's annotations, want a plan, so their scheduler may call later; but not if
        it differs from that of other members, which calls. A claim carries out a plan without any
        call. Members to come have the scheduler of those that exist, and no gate yet."""
        known = self._cache.schedulers
        strange = [
            member
            for member in members.open
            if member.scheduler not in known and member.claim is None and not member.coming
        ]
        if all(_wants_a_plan(m) for m in strange) and known.keys().isdisjoint(
            member.scheduler for member in members.seats
        ):
            return ""
        return next((member.scheduler for member in strange), "")

    def withdraw(self, members: Iterable[PodRecord], why: str) -> None:
        for member in members:
            self._cache.plan(member.uid, None)
            self._pending_writes.note_why(member.uid, why)

    def publish(
        self, gang: Gang, now: float, pause: Pause, *, has_no_room: bool, asked: Sequence[str]
    ) -> None:
        """Queue the writes of all decisions about the gang, and set its phase. *pause* lets others
        use the core after some hundred members. *has_no_room*: the last search found no GPUs for
        its open members. *asked*: the nodes that a call names which waits for the plan."""
        members = self._registry.members_of(gang)
        timeout = self._timeout_of(members)
        look = self._repair.judge(gang, members, now, timeout, has_no_room=has_no_room)
        if look is not None:
            self.look_again(gang, look)
        if self._to_come.concerns(gang.key, members):
            self._keep_places(gang, members, now)
        if gang.expired and members.started:  # repair has just given it up
            self.withdraw(members.planned, gang.reason)
            members = self._registry.members_of(gang)
            self._evict(gang, members, now)
        is_new = gang.made is not None and gang.made >= gang.unwritten_until
        if asked and is_new and may_stay_unwritten(members, self._cache, asked):
            gang.unwritten_until = now + UNWRITTEN_SECONDS
        at_once = not 0 < gang.unwritten_until - now <= UNWRITTEN_SECONDS
        if not at_once:
            self.look_again(gang, gang.unwritten_until)
        for number, member in enumerate((*members.planned, *members.open, *members.extra), 1):
            if self._cache.pods.get(member.uid) is member:  # a member to come has nothing to write
                plan = self._cache.plans.get(member.uid)
                self._pending_writes.bring_plan(member, plan, now, at_once=at_once)
            if number % _AT_ONCE == 0:
                pause()
        members = self._registry.members_of(gang)
        self._gates.look_at(gang, members, now, has_no_room=has_no_room)
        gang.enter(phase_of(members.standing(gang)))
        deadline = self._deadline_of(gang, members)
        if deadline is not None and deadline < math.inf:
            self._deadlines[gang.key] = deadline

    def _keep_places(self, gang: Gang, members: GangMembers, now: float) -> None:
        """Have the places of members to come noted, and look again when one of them ends."""
        next_look = self._to_come.next_look(gang.key, now)
        if next_look is not None:
            self.look_again(gang, next_look)
        if not self._to_come.note(gang, members, now):
            self.look_again(gang, now + _NOTE_AGAIN_SECONDS)

    def _deadline_of(self, gang: Gang, members: GangMembers) -> float | None:
        """When a partial gang returns everything, or a running gang the GPUs reserved for members
        that follow."""
        if members.started or members.standing(gang).enough:
            return min((self._ends_of(member, members) for member in members.planned), default=None)
        if gang.made is None or not members.keep_gpus or gang.expired or members.flying:
            return None
        return self._ends(gang, members)

    def _ends(self, gang: Gang, members: GangMembers) -> float:
        if members.in_waves:
            return self._to_come.ends(gang, members, self._timeout_of(members))
        made = gang.made if gang.made is not None else 0.0
        return max(made, gang.grace) + self._timeout_of(members)

    def _ends_of(self, member: PodRecord, members: GangMembers) -> float:
        """Of a member that follows; the place of one that is to come has its own end."""
        if member.coming:
            return math.inf
        return self._cache.plans[member.uid].plan.made + self._timeout_of(members)

    def _timeout_of(self, members: GangMembers) -> float:
        said = members.timeout_seconds
        if said is None:
            return self._timeout_seconds
        return min(max(said, LEAST_TIMEOUT_SECONDS), self._most_seconds)


def _wants_a_plan(member: PodRecord) -> bool:
    ask = member.ask.gang
    return member.gated or (ask is not None and not ask.source)


def _too_late(gang: Gang, members: GangMembers) -> str:
    if gang.alone:
        return "it was not bound in time"
    unbound = ", ".join(m.ref.name for m in members.seats if not m.node and not m.coming)
    if members.coming and not unbound:
        return f"its owner did not create {_in_words(members.coming)} in time"
    how_many = "all" if members.minimum == members.size else "enough"
    return f"not {how_many} members were bound in time ({unbound or 'some are missing'})"


def _in_words(coming: Members) -> str:
    roles = Counter(member.ask.role or "member" for member in coming)
    return " and ".join(f"{count} {role}" for role, count in sorted(roles.items()))


def _told(gang: Gang, what: str) -> tuple[str, str]:
    """The reason and the message of an Event."""
    return f"{'Plan' if gang.alone else 'Gang'}{what}", f"{gang.key.title}: {gang.reason}"
