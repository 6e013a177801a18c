"""The targets of planned moves: reserved GPUs, each for the replacement of a pod that moves.

1. A target is reserved, and noted on the gang or pod that gets the room, or on the pod that moves
   if a node is emptied (`QueueNote`). The pod is evicted once the API server has the note.
2. The controller of that pod makes a new one. It is known by its owner and its request, and a
   StatefulSet's by its name too, as each has its own volumes. It is planned exactly on the target.
3. A target for which no pod comes is given back after COME_SECONDS.

A target may have shares of divided GPUs, reserved by their ids. The new pod gets them as any pod
gets shares: kube-scheduler asks about it (`with_shares`) and binds it (`take_shares`).

The members of a gang move together. Nothing is planned for the new ones until each of them is
there; then the gang is planned on its targets, as a whole (`take_gang`). If a member does not come
or is another one, all targets of the gang are given back, and it is placed like any other. So it is
with the one target of a gang of which only a member moves that it can spare.

A new leader reads the notes, and keeps the targets of the pods that were evicted, and those of
gangs that were evicted as a whole. Of the note on a bound pod it believes only moves of that pod
and its gang: a node may write the annotations of its pods.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, MutableSet, Sequence
from dataclasses import dataclass, replace

from linkwise.extender.next.core_settings import MovePolicy, Moves
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.moves.plan import Move, MovePlan, MoveUnderWay, most_moves
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.place.request import Spot
from linkwise.extender.state.cache.plans import plan_id, written_plan
from linkwise.extender.state.records import GangKey, NotedMove, PodRecord
from linkwise.extender.state.views import MoveCounts
from linkwise.topology.annotations.plan import Plan, PlannedShares

# How long a target is kept once the pod that moves has ended, or should have: its controller may be
# slow. Its grace period may be as long as this; beyond, GPUs would idle for a tenant's word.
COME_SECONDS, _MOST_GRACE_SECONDS = 300.0, 3600.0
_BY_NAME = "StatefulSet"  # its pods keep their names


@dataclass(slots=True)
class Target:
    noted: NotedMove
    for_whom: GangKey  # who carries the note
    began: float
    like: PodRecord | None  # the pod that moves; None: it was gone when this leader began
    plan: MovePlan | None = None  # None: an earlier leader made it
    left: float | None = None  # since when the pod that moves is gone, or on its way out
    is_awaited: bool = True  # that it ends: somebody needs its GPUs

    @property
    def spot(self) -> Spot:
        return Spot(self.noted.node, int(self.noted.gpus, 16))

    @property
    def shares(self) -> tuple[PlannedShares, ...]:
        return self.noted.shares

    @property
    def key(self) -> GangKey:
        """Of the reservation."""
        namespace, _, name = self.noted.pod.partition("/")
        return GangKey(namespace, name, self.noted.uid, "move")

    @property
    def empties(self) -> str:
        """The node that is being emptied; empty: the pod moves for a gang or pod."""
        return "" if self.plan is None else self.plan.empties

    @property
    def gang(self) -> GangKey | None:
        """The gang with which the pod moves, or which spares it; None: it is a single pod."""
        noted = self.noted
        if not noted.gang:
            return None
        return GangKey(noted.pod.partition("/")[0], noted.gang, source=noted.source)

    @property
    def move(self) -> Move | None:
        moves = () if self.plan is None else self.plan.moves
        return next((move for move in moves if move.pod.uid == self.noted.uid), None)

    def suits(self, record: PodRecord) -> bool:
        """Whether *record* takes the place of the pod that moves. It may have shares in place of
        whole GPUs."""
        if record.owner_uid != self.noted.owner or record.ref.namespace != self.key.namespace:
            return False
        asked = {record.resource: record.demand.gpus} if record.demand.gpus else {}
        asked |= {resource: demand.gpus for resource, demand in record.shares}
        if asked != self._devices(record.resource):
            return False
        if record.owner_kind == _BY_NAME and record.key != self.noted.pod:
            return False
        gang = None if record.ask.gang is None else record.gang
        if gang != self.gang or (gang is not None and record.ask.rank != self.noted.rank):
            return False
        # The template has namespace and requests. What else the pods ask for depends on whether
        # their owner has been read.
        return self.like is None or (
            record.template is self.like.template
            and record.ask.requirement == self.like.ask.requirement
            and record.ask.sharing is self.like.ask.sharing
        )

    def _devices(self, whole: str) -> dict[str, int]:
        """How many of each resource; *whole* is that of whole GPUs."""
        ids: dict[str, set[str]] = {}
        for of in self.shares:  # a container may get what an init container had
            ids.setdefault(of.resource, set()).update(of.ids)
        gpus = self.spot.gpus.bit_count()
        found = {whole: gpus} if gpus else {}
        return found | {resource: len(each) for resource, each in ids.items()}


class Targets(Part):
    """*awaited*: the uids of the owners whose new single pods get a target, and of the new pods
    that have got one, until they are bound. They are planned ahead (`state.cache.ingest`)."""

    def __init__(self, books: Books, *, policy: MovePolicy, awaited: MutableSet[str]) -> None:
        super().__init__(books)
        self._policy, self._awaited = policy, awaited
        self._targets: dict[str, Target] = {}  # by the uid of the pod that moves
        # By the gang that moves, in the order of ranks.
        self._of_gangs: dict[GangKey, list[Target]] = {}
        self._changed: set[GangKey] = set()  # since `take_changed`
        self._released: set[GangKey] = set()  # since `take_released`
        # uid of a new pod -> that of the pod whose target, with shares, it gets at its bind.
        self._takers: dict[str, str] = books.cache.memory.dict()
        self._is_restored = False
        self.counts = MoveCounts()

    def of(self, uid: str) -> Target | None:
        """The target of the pod that moves."""
        return self._targets.get(uid)

    def not_left(self) -> list[Target]:
        """Those whose pods have not begun to leave."""
        return [target for target in self._targets.values() if target.left is None]

    def under_way(self) -> list[MoveUnderWay]:
        """The moves that this leader has planned."""
        return [
            MoveUnderWay(target.move, target.plan, target.for_whom, self._end_of(target))
            for target in self._targets.values()
            if target.move is not None and target.plan is not None
        ]

    def ends(self) -> Iterator[float]:
        """When targets are given back if no pod comes."""
        ends = map(self._end_of, self._targets.values())
        return (at for at in ends if at is not None)

    # Targets come and go.

    def keep(self, plan: MovePlan, for_whom: GangKey, now: float) -> None:
        for move in plan.moves:
            pod, spot = move.pod, move.spot
            place = pod.owner_uid, spot.node, f"{spot.gpus:x}"
            name, source, rank = "", "", None
            if move.gang is not None:
                name, source, rank = move.gang.name, move.gang.source, pod.ask.rank
            noted = NotedMove(pod.key, pod.uid, *place, name, source, rank, move.shares)
            self._keep(Target(noted, for_whom, now, pod, plan))

    def kept_by_namespace(self) -> dict[str, Counter[str]]:
        """How many GPUs on which nodes each namespace keeps for pods that move."""
        kept: dict[str, Counter[str]] = defaultdict(Counter)
        for target in self._targets.values():
            kept[target.key.namespace][target.spot.node] += target.spot.gpus.bit_count()
        return kept

    def over(self, for_whom: GangKey) -> None:
        """Pods move for that one no longer, as it has its place, has gone or waits for others."""
        for target in self._targets.values():
            if target.for_whom == for_whom:
                target.is_awaited = False

    def helped(self, plan: MovePlan) -> None:
        """The gang or pod for which these moved has its place."""
        self._count(helped=1, saved_gpu_seconds=plan.saved if plan.saved < math.inf else 0.0)

    def give_back(
        self, now: float, wanted: Container[GangKey], halves: Container[GangKey] = ()
    ) -> None:
        """Those for which no pod comes. *wanted*: the gangs for which pods still move. *halves*:
        those for which a gang moves on if some of its members have left."""
        for together in [*self._together()]:
            if self._is_over(together, now, wanted, halves):
                self._give_back(together)

    def give_up(self, uid: str) -> None:
        """No pod gets the target of this pod, which moves."""
        self._give_back([self._targets[uid]])

    def _together(self) -> Iterator[list[Target]]:
        yield from ([each] for each in self._targets.values() if each.gang is None)
        yield from self._of_gangs.values()

    def _give_back(self, together: Iterable[Target]) -> None:
        for target in [*together]:
            self._end(target)
            self._count(given_back=1)

    def _keep(self, target: Target) -> None:
        self._targets[target.noted.uid] = target
        spot, ids = target.spot, (each for of in target.shares for each in of.ids)
        self._cache.reserve(target.key, {spot.node: spot.gpus} if spot.gpus else {})
        if target.shares:
            self._cache.reserve_shares(target.key, spot.node, frozenset(ids))
        elif target.gang is None:
            self._awaited.add(target.noted.owner)
        else:
            self._of_gangs.setdefault(target.gang, []).append(target)
        self._changed.add(target.for_whom)
        self._count(begun=1)

    def _count(self, **more: float) -> None:
        now = {name: getattr(self.counts, name) + each for name, each in more.items()}
        self.counts = replace(self.counts, **now)

    def _end(self, target: Target) -> None:
        del self._targets[target.noted.uid]
        self._cache.reserve(target.key, {})
        if target.shares:
            self._cache.reserve_shares(target.key, target.spot.node, frozenset())
            for new in [new for new, old in self._takers.items() if old not in self._targets]:
                del self._takers[new]
        elif target.gang is None:
            self._await_no_more(target.noted.owner)
        else:
            self._of_gangs[target.gang].remove(target)
            if not self._of_gangs[target.gang]:
                del self._of_gangs[target.gang]
                self._released.add(target.gang)
        self._changed.add(target.for_whom)

    def _is_over(
        self,
        together: Sequence[Target],
        now: float,
        wanted: Container[GangKey],
        halves: Container[GangKey],
    ) -> bool:
        ends = [self._end_of(target) for target in together]
        known = [end for end in ends if end is not None]
        if len(known) == len(ends):
            return now >= max(known)
        pods = (self._cache.pods.get(target.noted.uid) for target in together)
        if any(pod is not None and pod.ended and not pod.leaving for pod in pods):
            return True  # that member may have no replacement
        if any(self._pending_writes.is_evicting(target.noted.uid) for target in together):
            return False
        for_whom, empties = together[0].for_whom, together[0].empties
        if for_whom in wanted or empties in self._cache.emptied:
            return False
        return not (known and for_whom in halves)

    def _end_of(self, target: Target) -> float | None:
        """Until when the target is kept; None: the pod that moves has not begun to leave. Some
        controllers make a new pod only once the old one is gone."""
        left = target.left
        if left is None:
            return None
        record = self._cache.pods.get(target.noted.uid)
        # A pod that takes its time has these GPUs too, which is for who waits for its old ones.
        grace_ends = record.leaving_until if record is not None and target.is_awaited else 0.0
        return max(left, min(grace_ends, left + _MOST_GRACE_SECONDS)) + COME_SECONDS

    # Gangs that move.

    def half_way(self, key: GangKey) -> set[str]:
        """The uids of the members of gangs that move for *key*, and of which some have left."""
        return {
            target.noted.uid
            for together in self._of_gangs.values()
            if together[0].for_whom == key and len({each.left is None for each in together}) > 1
            for target in together
        }

    def moves_gang(self, key: GangKey) -> bool:
        """Whether the gang has targets: nothing else is planned for it."""
        return key in self._of_gangs

    def take_gang(self, key: GangKey, members: GangMembers) -> tuple[Spot, ...] | None:
        """The targets of the gang, one for each open member; they are the caller's to plan. None:
        some members are still to come. Empty: the targets were no good, and are given back."""
        targets = [*self._of_gangs[key]]
        there = [member for member in members.open if not member.coming]
        spots = _spots_for(there, targets)
        if spots is not None and len(spots) < len(targets):
            return None
        if any(target.left is None for target in targets):
            spots = None  # another member was lost, and this is its replacement
        for target in targets:
            self._end(target)
        if spots is None or not all(self._is_usable(spot) for spot in spots):
            self._count(given_back=len(targets))
            return ()
        self._count(arrived=len(targets))
        return spots

    def _is_usable(self, spot: Spot, shares: Sequence[PlannedShares] = ()) -> bool:
        """Whether a target that has just ended is as good as it was."""
        info = self._cache.nodes.get(spot.node)
        is_open = info is not None and info.kind is not None and not info.closed
        has_gpus = info is not None and is_open and info.has_unused(spot.gpus)
        return info is not None and has_gpus and info.shares.has_unused(shares)

    def take_released(self) -> set[GangKey]:
        """The gangs that have no targets any more, since the last call."""
        released, self._released = self._released, set()
        return released

    # The notes, for the next leader.

    def noted(self, key: GangKey) -> tuple[NotedMove, ...]:
        """What is to be noted on this gang."""
        if not self._targets:
            return ()
        return tuple(each.noted for each in self._targets.values() if each.for_whom == key)

    def noted_at(self, key: GangKey) -> float | None:
        began = (each.began for each in self._targets.values() if each.for_whom == key)
        return max(began, default=None)

    def may_be_evicted(self, key: GangKey) -> set[str]:
        """The uids of the pods whose targets the API server has noted on this gang; of a gang that
        moves, those of all members."""
        carriers = self._cache.members(key) or filter(None, [self._cache.pods.get(key.uid)])
        notes = (carrier.queue for carrier in carriers if carrier.queue)
        noted = {each for note in notes for each in note.moves}
        return {
            target.noted.uid
            for together in self._together()
            if all(target.noted in noted for target in together)
            for target in together
        }

    def take_changed(self) -> set[GangKey]:
        """The gangs whose note has changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def restore(self, now: float) -> None:
        """Keep the targets that an earlier leader noted for pods that it evicted; only once."""
        if self._is_restored or self._policy.moves is Moves.NEVER:
            return
        self._is_restored = True
        for carrier in [*self._cache.pods.values()]:
            if carrier.queue is not None and carrier.queue.moves:
                members = 1 if carrier.gang is None else len(self._cache.gangs[carrier.gang])
                noted = carrier.queue.moves[: most_moves(members)]
                for together in _by_gang(noted):
                    if not carrier.node or self._are_its_own(together, carrier):
                        self._restore(together, carrier, carrier.queue.moves_at or 0.0, now)
        for record in [*self._cache.pods.values()]:
            if record.node or not record.live:
                continue
            if any(self._suits(target, record) for target in self._targets.values()):
                planned_ahead = replace(record, gang=record.gang or key_of(record))
                self._cache.put_pod(planned_ahead)
                self._take(planned_ahead, now)

    def _are_its_own(self, together: Sequence[NotedMove], carrier: PodRecord) -> bool:
        """Whether the *carrier* of a note, or its gang, makes these moves itself, and its pods show
        it. The node of a bound pod may write any note on it, so nothing else in it counts."""
        for_whom = carrier.gang or key_of(carrier)
        pods = [self._cache.pods.get(noted.uid) for noted in together]
        return all(
            pod is not None
            and (pod.uid == carrier.uid or pod.gang == carrier.gang is not None)
            and bool(pod.node)
            and pod.key == noted.pod
            and Target(noted, for_whom, 0.0, None).suits(pod)
            for noted, pod in zip(together, pods, strict=True)
        )

    def _restore(
        self, together: Sequence[NotedMove], carrier: PodRecord, began: float, now: float
    ) -> None:
        """All of these, or none."""
        for_whom = carrier.gang or key_of(carrier)
        self._changed.add(for_whom)
        moved = [self._cache.pods.get(noted.uid) for noted in together]
        since = max([began, *(pod.leaving_until for pod in moved if pod is not None)])
        if any(pod is not None and pod.live for pod in moved) or now > since + 2 * COME_SECONDS:
            return  # not all were evicted, or so long ago that nothing is kept for them
        kept = []
        for noted, pod in zip(together, moved, strict=True):
            target = Target(noted, for_whom, began, pod, left=now)
            info = self._cache.nodes.get(noted.node)
            if noted.uid in self._targets or info is None:
                break
            if not (info.has_unused(target.spot.gpus) and info.shares.has_unused(target.shares)):
                break  # its replacement is there
            self._keep(target)
            kept.append(target)
        if len(kept) < len(together):
            self._give_back(kept)

    def _await_no_more(self, owner: str) -> None:
        left = (each.noted.owner for each in self._targets.values() if not each.shares)
        if owner not in left:
            self._awaited.discard(owner)

    # Pods

    def pod_changed(self, record: PodRecord, now: float) -> None:
        """A pod came or changed; the cache has it already."""
        if record.uid in self._targets:
            if not record.live:
                self.leaves(record.uid, now)
        elif record.owner_uid in self._awaited and not record.node and record.live:
            self._take(record, now)
        elif record.node:
            self._awaited.discard(record.uid)
            if record.uid in self._takers:  # it is elsewhere
                self.give_up(self._takers[record.uid])

    def pod_gone(self, uid: str, now: float) -> None:
        self._awaited.discard(uid)
        self.leaves(uid, now)
        if uid in self._targets:
            self._targets[uid].left = now

    def leaves(self, uid: str, now: float) -> None:
        """The pod that moves is on its way out; the watch may show it later."""
        target = self._targets.get(uid)
        if target is not None and target.left is None:
            target.left = now
            self._count(lost_gpu_seconds=target.move.lost if target.move else 0.0)

    def _take(self, record: PodRecord, now: float) -> None:
        """Plan the pod on its target, if it has one."""
        cache = self._cache
        if record.uid in cache.plans or record.gang is None or not record.gang.uid:
            return
        if record.held_back:  # it would hold the GPUs for as long as its other gate stays
            return
        suitable = (each for each in self._targets.values() if each.left is not None)
        target = next((each for each in suitable if self._suits(each, record)), None)
        if target is None:
            return
        self._end(target)
        spot = target.spot
        if not self._is_usable(spot):
            self._count(given_back=1)
            return
        self._count(arrived=1)
        epoch = self._pending_writes.next_epoch([record.uid])
        ident = plan_id(record.ref.namespace, record.ref.name, epoch, now, [record.uid])
        leader = self._pending_writes.leader
        plan = Plan(id=ident, node=spot.node, leader=leader, epoch=epoch, made=now, moved=now)
        cache.plan(record.uid, written_plan(cache, record, plan, spot.gpus))
        self._awaited.add(record.uid)  # it may change before the watch shows its plan

    def _suits(self, target: Target, record: PodRecord) -> bool:
        """Whether the pod is planned on this target."""
        return not target.shares and target.suits(record)

    # Targets with shares: these are chosen at the bind, so no pod that gets some is planned ahead.

    def with_shares(self, record: PodRecord, names: Sequence[str]) -> Target | None:
        """The target of a new pod, which stays reserved until the pod is bound. It is given back if
        it is no good any more, or on none of the nodes *names* that kube-scheduler offers."""
        target = self._open_for(record)
        if target is None:
            return None
        spot, away = target.spot, self._cache.turned_away
        is_open = spot.node in names and not away.takes_none(record.template, spot.node)
        if is_open and self._is_usable(Spot(spot.node, 0), target.shares):
            self._takers[record.uid] = target.noted.uid
            return target
        self.give_up(target.noted.uid)
        return None

    def _open_for(self, record: PodRecord) -> Target | None:
        if record.uid in self._takers:
            return self._targets[self._takers[record.uid]]
        taken = {*self._takers.values()}
        for target in self._targets.values():
            is_open = target.shares and target.left is not None and target.noted.uid not in taken
            if is_open and target.suits(record):
                return target
        return None

    def take_shares(self, uid: str, node: str) -> Target | None:
        """The target of this new pod, if it is on *node*; it is the caller's to assume. None: there
        is none, or it was no good and is given back."""
        target = self._targets.get(self._takers.get(uid, ""))  # empty: of no pod
        if target is None or target.spot.node != node:
            return None
        self._end(target)
        is_usable = self._is_usable(target.spot, target.shares)
        self._count(arrived=int(is_usable), given_back=int(not is_usable))
        return target if is_usable else None


def _spots_for(members: Sequence[PodRecord], targets: Sequence[Target]) -> tuple[Spot, ...] | None:
    """A target for each; None: one of them has none."""
    left, spots = [*targets], []
    for member in members:
        target = next((each for each in left if each.suits(member)), None)
        if target is None:
            return None
        left.remove(target)
        spots.append(target.spot)
    return tuple(spots)


def _by_gang(moves: Iterable[NotedMove]) -> Iterable[list[NotedMove]]:
    """Those of each gang; each single pod is alone."""
    found: dict[object, list[NotedMove]] = {}
    for noted in moves:
        namespace = noted.pod.partition("/")[0]
        alone = None if noted.gang else len(found)
        found.setdefault((namespace, noted.gang, noted.source, alone), []).append(noted)
    return found.values()


def key_of(single: PodRecord) -> GangKey:
    return GangKey(single.ref.namespace, single.ref.name, single.ref.uid)
