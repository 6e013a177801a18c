"""A gang's members, grouped by how far each one is, and how many of them start at once. Computed
for each look, so always current.

All open members start if they fit, else as many as do. Ranks decide which: the first ones. Until a
gang has its minimum, it gets all of that or nothing. From then on, each group of equal members is
placed on its own, so that a member without room does not delay the others.

If a gang accepts fewer members than its size, it is not planned as soon as so many exist: the
others mostly follow within a moment, and are placed better together. So the gang waits until no
member was created for a moment, and not for long in all. Members beyond the minimum reserve nothing
while they wait, and no other member waits for them.

The last functions are about plans that no pod carries yet: the gang's Bindings carry them.
"""

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from linkwise.extender.next.gangs.gang import Gang, Standing
from linkwise.extender.place.nodes.scheduler_feedback import names_all
from linkwise.extender.place.request import NoRoom, Spot
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.pending_writes import PendingWrites
from linkwise.extender.state.cache.plans import Deal
from linkwise.extender.state.records import GangKey, PodRecord, WrittenPlan
from linkwise.kube.pod_conditions import GROUP_REFUSED
from linkwise.pods.spans import spans_of
from linkwise.topology.annotations.plan import Plan, PlannedMember

Members = tuple[PodRecord, ...]

# A controller creates the pods of a job one after the other, some 20 to 50 per second.
MOMENT_SECONDS = 1.0
LONGEST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class GangMembers:
    """All tuples are in the order of ranks. `seats` are the live members that make up the gang: as
    many as its size, those with the most progress first; the rest are `extra`."""

    all: Members
    size: int
    minimum: int  # enough for each of the seats
    timeout_seconds: float | None  # the shortest that any of its pods declares
    clash: str  # why these pods cannot be one gang; empty: they can
    untried: bool  # only kube-scheduler's first try shows whether that holds
    seats: Members
    extra: Members
    bound: Members
    flying: Members  # a Binding is in flight, or the planned GPUs are allocated to its claim
    planned: Members  # GPUs are reserved
    idle: Members  # not bound, and in no need of GPUs
    open: Members  # not bound, and without reserved GPUs
    coming: Members  # do not exist yet
    # Whether its owner creates some members only after others run, or has yet to replace one.
    in_waves: bool
    held_back: Members  # behind another scheduling gate: cannot be bound, so get no GPUs yet
    done: int  # succeeded in this gang's present run
    started: bool

    def standing(self, gang: Gang) -> Standing:
        return Standing(
            minimum=self.minimum,
            live=len(self.seats),
            bound=len(self.bound),
            planned=self.placed - len(self.bound) - self.done,
            done=self.done,
            started=self.started,
            refused=gang.refused or bool(self.clash),
            expired=gang.expired,
        )

    @property
    def placed(self) -> int:
        """How many members have their places, or succeeded there."""
        return sum(map(len, (self.bound, self.flying, self.planned, self.idle))) + self.done

    @property
    def exist(self) -> Members:
        """The members that exist by now."""
        return tuple(member for member in self.seats if not member.coming)

    @property
    def first(self) -> PodRecord | None:
        """The first of those, which gets the Events; None: there is none."""
        return next((member for member in self.seats if not member.coming), None)

    @property
    def keep_gpus(self) -> bool:
        """Whether members keep whole GPUs from others. Those that have none, or shares alone, may
        wait for the rest of the gang as long as they like."""
        return bool(self.planned) or any(member.needs.gpus for member in self.bound)

    @property
    def enough_placed(self) -> bool:
        return self.placed >= self.minimum

    @property
    def complete(self) -> bool:
        """Whether enough members exist that may be bound once they have GPUs."""
        return self._there >= self.minimum

    @property
    def all_there(self) -> bool:
        """Whether no member is missing."""
        return self._there >= self.size

    @property
    def _there(self) -> int:
        return len(self.seats) + self.done - len(self.held_back)

    @property
    def runs_whole(self) -> bool:
        """Whether each member runs on GPUs of its own, and none has left or is about to."""
        return (
            len(self.bound) == len(self.seats) >= max(self.size, 1)
            and not (self.extra or self.done)
            and all(member.demand.gpus and not member.shares for member in self.bound)
            and all(member.live or member.failed for member in self.all)
        )

    @property
    def spare(self) -> Members:
        """The members that a running gang can do without: those of the highest ranks."""
        least = max(self.minimum - self.done, 0)
        return self.bound[least:] if self.started else ()

    @property
    def may_go_alone(self) -> Members:
        """The members that may go without loss to the others: those that it can do without, if each
        pod is a communicator of its own. Else the others would have to restart too."""
        spans = spans_of(member.ask.spans for member in self.seats)
        return self.spare if spans.apart else ()

    @property
    def since(self) -> float:
        """When the oldest live pod was created; 0 if there is none."""
        return min((member.created for member in self.all if member.live), default=0.0)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Empty if enough members exist, or if not every pod declares its rank."""
        ranks = [member.ask.rank for member in self.all if member.live or member.ended]
        if self.complete or not ranks or any(rank is None for rank in ranks):
            return ()
        return tuple(rank for rank in range(self.size) if rank not in ranks)

    def together(self) -> list[int]:
        """How many of `open`, in the order of their ranks, may be planned together: those counts
        with which each of them has as many members placed as it requires. Ascending; empty: none
        yet."""
        least = min((minimum_of(member) for member in self.seats), default=0)
        counts, wanted, placed = [], 0, self.placed
        for count, member in enumerate(self.open, 1):
            # A running gang is repaired one by one. A member that requires more placed members than
            # the others do, such as a worker that exists only once its leader runs, still waits.
            if not self.started or minimum_of(member) > least:
                wanted = max(wanted, minimum_of(member))
            if placed + count >= wanted:
                counts.append(count)
        return counts


def members_of(cache: Cache, gang: Gang) -> GangMembers:
    if gang.alone:
        return _alone(cache, gang)
    members = tuple(cache.members(gang.key))
    live = [member for member in members if member.live]
    started = _has_started(members, gang)
    asks = [ask for member in live or members if (ask := member.ask.gang) is not None]
    # The owner may enlarge a running gang, and older members do not show it.
    size = max((ask.size for ask in asks), default=0)
    done = max(sum(_done(member, gang) for member in members), *(ask.done for ask in asks), 0)
    open_ended = any(ask.open_ended for ask in asks)
    seats: Members = tuple(live)
    extra: Members = ()
    if not open_ended and len(live) > (wanted := max(size - done, 0)):
        furthest = sorted(live, key=lambda member: _progress(cache, member))
        taken = {member.uid for member in furthest[:wanted]}
        seats = tuple(member for member in live if member.uid in taken)
        extra = tuple(member for member in live if member.uid not in taken)
    unbound = [member for member in seats if not member.node]
    flying = tuple(member for member in unbound if cache.is_being_bound(member.uid))
    flying_uids = {member.uid for member in flying}
    untried = "" if gang.called else _other_priority(unbound)
    return GangMembers(
        all=members,
        size=size,
        minimum=max((minimum_of(member) for member in seats), default=size),
        timeout_seconds=min((s for ask in asks if (s := ask.timeout_seconds)), default=None),
        clash=_refused_group(unbound) or untried or ("" if started else _clash(live)),
        untried=bool(untried),
        seats=seats,
        extra=extra,
        bound=tuple(member for member in seats if member.node),
        flying=flying,
        planned=_those(unbound, flying_uids, cache, planned=True),
        idle=tuple(m for m in unbound if not (m.needs.gpus or m.held_back)),
        open=_those(unbound, flying_uids, cache, planned=False),
        coming=tuple(member for member in unbound if member.coming),
        in_waves=any(member.coming or member.to_come for member in seats),
        held_back=tuple(member for member in unbound if member.held_back),
        done=done,
        started=started,
    )


def _alone(cache: Cache, gang: Gang) -> GangMembers:
    """The same for a single pod, which is not bound: there are thousands of them."""
    record = cache.pods.get(gang.key.uid)
    members: Members = () if record is None or record.gang != gang.key else (record,)
    seats = members if record is not None and record.live else ()
    flying = seats if cache.is_being_bound(gang.key.uid) else ()
    planned = seats if not flying and gang.key.uid in cache.plans else ()
    held_back = seats if record is not None and record.held_back else ()
    return GangMembers(
        all=members,
        size=len(members),
        minimum=len(members),
        timeout_seconds=None,
        clash="",
        untried=False,
        seats=seats,
        extra=(),
        bound=(),
        flying=flying,
        planned=planned,
        idle=(),
        open=() if flying or planned or held_back else seats,
        coming=(),
        in_waves=False,
        held_back=held_back,
        done=0,
        started=False,
    )


def placed_at_most(cache: Cache, key: GangKey) -> int:
    """No fewer than the members that are bound, need no GPUs, are done or to come. A glance: to
    sort the members of a large gang takes milliseconds."""
    there = done = 0
    for uid in cache.gangs.get(key, ()):
        member = cache.pods[uid]
        there += not member.live or bool(member.node) or not member.demand.gpus or member.coming
        if member.ask.gang is not None:
            done = max(done, member.ask.gang.done)
    return there + done


def plan_of(cache: Cache, member: PodRecord) -> WrittenPlan | None:
    """The plan that counts for this member, in whichever state the member is."""
    if member.node:
        return member.plan_for(member.node)
    for reservation in cache.assumed.get(member.uid, {}).values():
        return reservation
    return cache.plans.get(member.uid)


def spots_of(cache: Cache, members_of: GangMembers) -> list[Spot]:
    """The spots of the members that have GPUs."""
    spots = []
    for member in (*members_of.bound, *members_of.flying, *members_of.planned):
        plan = plan_of(cache, member)
        node = member.node or (plan.plan.node if plan else "")
        info = cache.nodes.get(node)
        if info is not None:
            spots.append(Spot(node, info.owned.get(member.uid, 0)))
    return spots


def _those(
    unbound: Sequence[PodRecord], flying: Container[str], cache: Cache, *, planned: bool
) -> Members:
    return tuple(
        member
        for member in unbound
        if member.needs.gpus
        and member.uid not in flying
        and (member.uid in cache.plans) is planned
        and (planned or not member.held_back)
    )


def _progress(cache: Cache, member: PodRecord) -> tuple[bool, bool, bool, bool]:
    """Less is further."""
    is_bound, has_plan = cache.is_being_bound(member.uid), member.uid in cache.plans
    return not member.node, not is_bound, not has_plan, member.coming


def _has_started(members: Sequence[PodRecord], gang: Gang) -> bool:
    """Whether a live member was in the whole gang, or has to be treated as if it was.

    Evidence: its own mark; the extender's memory; a bind without the extender; or, without such a
    memory, the mark of a member of the same run that is terminating or has ended.
    """
    bound = [member for member in members if member.live and member.node]
    if any(member.started or member.uid in gang.marked for member in bound):
        return True
    if any(is_past_us(member) for member in bound):
        return True  # it ran before the extender, or another scheduler placed it: do not end it
    if not bound or gang.marked:  # those that are there came after the run
        return False
    return any(m.started and not m.live and _of_run(m, gang) for m in members)


def is_past_us(member: PodRecord) -> bool:
    """Whether a member of a gang that the extender recognised was bound without a plan."""
    ask = member.ask.gang
    return bool(member.node and ask is not None and ask.source) and member.written is None


def _done(member: PodRecord, gang: Gang) -> bool:
    return has_succeeded(member) and _of_run(member, gang)


def has_succeeded(member: PodRecord) -> bool:
    """Whether it has done its part. One that is deleted may end well too: its owner restarts it."""
    return member.ended and not member.failed and not member.leaving


def _of_run(member: PodRecord, gang: Gang) -> bool:
    """Pods of an earlier run may have the same gang's name; the plan's id tells the runs apart."""
    written = member.written
    return written is not None and bool(gang.plan_id) and written.plan.id == gang.plan_id


def minimum_of(member: PodRecord) -> int:
    """How many members must be placed for this one to start."""
    return member.ask.gang.minimum if member.ask.gang is not None else 1


def _refused_group(unbound: Sequence[PodRecord]) -> str:
    """Why kube-scheduler tries no member of a native group; empty: it does. It writes this on each
    waiting member, and goes on trying."""
    for member in unbound:
        if member.broken_off.startswith(GROUP_REFUSED):
            return f"{member.scheduler} refuses its PodGroup: {member.broken_off}"
    return ""


def _other_priority(unbound: Sequence[PodRecord]) -> str:
    """Why kube-scheduler will try no member of a native group; empty: it will. It does try them
    before 1.37, or without the feature gate of such groups, and then it calls."""
    for member in unbound:
        if member.of_other_priority:
            assert member.ask.gang is not None
            wanted = member.ask.gang.native.priority
            return (
                f"its PodGroup has priority {wanted}, pod {member.ref.name} has {member.priority}: "
                f"kube-scheduler 1.37 tries no such group; write one priorityClassName on both"
            )
    return ""


def _clash(live: Sequence[PodRecord]) -> str:
    """Compares what pods declare themselves; what their owners say was read at different times."""
    told = [(member, ask) for member in live if (ask := member.ask.gang) and not ask.source]
    for (first, one), (member, other) in pairwise(told):
        for word, ours, theirs in (
            ("gang-size", one.size, other.size),
            ("gang-min", one.minimum, other.minimum),
        ):
            if ours != theirs:
                return (
                    f"pod {first.ref.name} says {word} {ours}, pod {member.ref.name} says {theirs}"
                )
    return ""


Seek = Callable[[GangMembers], list[Spot] | NoRoom]
"""Finds room for the `open` members."""


def waits_until(gang: Gang, members: GangMembers) -> float | None:
    """Until when the gang waits for more members; None: not at all."""
    has_begun = members.placed > len(members.idle)
    if members.all_there or has_begun or gang.able_since is None:
        return None
    return min(gang.came + MOMENT_SECONDS, gang.able_since + LONGEST_SECONDS)


def parts(members: GangMembers) -> Iterator[Members]:
    """The groups of `open` of which as many as possible are placed, each on its own; a single group
    if they have to start together."""
    if not (members.started or members.enough_placed):
        yield members.open
        return
    alike: dict[object, list[PodRecord]] = {}
    for member in members.open:
        requests = (member.demand, member.ask.requirement, member.needs, member.template)
        alike.setdefault(requests, []).append(member)
    yield from map(tuple, alike.values())


def most(members: GangMembers, seek: Seek) -> tuple[list[Spot], NoRoom | None]:
    """Spots for as many of the first `open` members as possible, and why not for all. Never for
    fewer than may start."""
    counts = members.together()
    if not counts:
        return [], None
    of_all = seek(_first(members, counts[-1]))
    if not isinstance(of_all, NoRoom):
        return of_all, None
    best: list[Spot] = []
    low, high = 0, len(counts) - 2
    # The count in the refusal is mostly exact: try that many, and one more to be sure.
    guess = sum(count <= of_all.had for count in counts) - 1
    while low <= high:
        guesses = (each for each in (guess, guess + 1) if low <= each <= high)
        probe = next(guesses, (low + high + 1) // 2)
        spots = seek(_first(members, counts[probe]))
        if isinstance(spots, NoRoom):
            high = probe - 1
        else:
            best, low = spots, probe + 1
    return best, of_all


def least(members: GangMembers) -> Members:
    """The fewest of `open` that may start."""
    counts = members.together()
    return members.open[: counts[0]] if counts else members.open


def needed(members: GangMembers) -> GangMembers:
    """*members* with only those `open` that the gang needs to start or to continue."""
    return replace(members, open=() if members.enough_placed else least(members))


def _first(members: GangMembers, count: int) -> GangMembers:
    return members if count == len(members.open) else replace(members, open=members.open[:count])


# Plans that no pod carries: kube-scheduler needs the nominations of a gang only if it looks at a
# sample of the nodes. If the call that waits for the plan names all nodes, the plan stays in
# memory, which saves a write for each member. The first Binding could then be the last act of this
# leader. So each Binding carries the places of all members, and the next leader plans them there
# before it answers any call.

# A gang that is not bound by then has its plan written: its calls may not come, or name a sample.
UNWRITTEN_SECONDS = 0.1
_MOST_NAMED = 16  # pods of a gang: each Binding names all of them


def may_stay_unwritten(members: GangMembers, cache: Cache, names: Sequence[str]) -> bool:
    """Whether Bindings can carry the plan: kube-scheduler is about to try all members, and looked
    at all nodes, of which those with these *names* passed its own filters."""
    nodes = {cache.plans[member.uid].plan.node for member in members.planned}
    return (
        names_all(names)
        and nodes.issubset(names)
        and len(members.all) <= _MOST_NAMED
        and not members.coming
        and not any(member.gated or member.claim is not None for member in members.planned)
    )


def with_others(
    chosen: WrittenPlan, record: PodRecord, cache: Cache, writes: PendingWrites
) -> WrittenPlan:
    """The plan for the Binding of this member, with the places that are on no other pod. With one
    that takes only shares the gang does not begin: the others may get other places later."""
    uids: Collection[str] = ()
    if record.gang is not None and record.demand.gpus:
        uids = cache.gangs.get(record.gang, ())
    others = []
    for uid in uids if len(uids) <= _MOST_NAMED else ():
        member = cache.pods[uid]
        written = None if member.node or uid == record.uid else plan_of(cache, member)
        if written is None or writes.is_written(uid, written):
            continue
        machine = cache.nodes[written.plan.node].machine
        if gpus := machine.mask_of(written.uuids) if machine is not None else 0:
            others.append(PlannedMember(uid, written.plan.node, gpus))
    plan = msgspec.structs.replace(chosen.plan, others=tuple(others))
    return WrittenPlan(plan, chosen.gpus)


def plan_others(cache: Cache) -> None:
    """Plan the members whose places only the Bindings of others name. What a Binding says is the
    word of a node too, so a place counts only for a pod of the same gang, on GPUs that are free.
    Once the gang has started, it no longer counts: older gangs may wait for these GPUs by now."""
    bound = [record for record in cache.pods.values() if record.node and record.live]
    started = {_gang_of(record) for record in bound if record.started}
    for record in bound:
        written = record.plan_for(record.node)
        if written is not None and written.plan.others and _gang_of(record) not in started:
            plan = msgspec.structs.replace(written.plan, others=(), shares=())
            for uid, place in _places(cache, record, plan, written.plan.others):
                cache.plan(uid, place)


def _places(
    cache: Cache, record: PodRecord, plan: Plan, others: Iterable[PlannedMember]
) -> Iterable[tuple[str, WrittenPlan]]:
    for place in others:
        member, info = cache.pods.get(place.uid), cache.nodes.get(place.node)
        if member is None or info is None or info.machine is None or info.kind is None:
            continue
        waits = member.live and not member.node and member.uid not in cache.plans
        fits = place.gpus.bit_count() == member.demand.gpus and not place.gpus & ~info.free
        if waits and fits and _gang_of(member) == _gang_of(record) is not None:
            yield member.uid, Deal.of(cache, member, place.node, place.gpus).written(plan)


def _gang_of(record: PodRecord) -> object:
    """Pods are of one gang too if the same must be read before it is known."""
    return (record.ref.namespace, record.awaits) if record.awaits else record.gang
