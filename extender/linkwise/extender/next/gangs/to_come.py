"""The members of gangs that do not exist yet, each with a place that is kept for it.

An owner may create some members only after others run (a later *wave*), and it creates a lost
member again after a while. Until then the member is a record in the cache without a pod. The search
places it beside the others, and its plan keeps GPUs and room from others, as the plan of a pod
does. So a gang is planned as a whole before its last members exist, and a gang that loses a member
keeps its place.

1. `look` adds the members to come of a gang, and hands each place to the pod that comes for it.
2. `note` has the places written to the API server before the first member is bound, where no
   kubelet can write. The pod that comes has its place in the note until its own plan is written.
   A new leader reads the notes (`restore`), and reserves the places until it has read the gang's
   owner (`forget_noted`).
3. A place of a later wave is kept while the earlier members get ready, and for a time after that
   (`ends`). Then the gang expires, as one that was never whole.
4. A place that was lost is kept for its owner's back-off and a time after that, while the gang has
   too few members. A gang that was deleted as a whole, to be restarted, keeps all for a moment, and
   none if its owner is known to have ended.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from linkwise.extender.next.gangs.gang import Gang, Phase
from linkwise.extender.next.gangs.growing_pauses import GrowingPauses
from linkwise.extender.next.gangs.members import GangMembers, has_succeeded, is_past_us, minimum_of
from linkwise.extender.next.gangs.registry import GangBooks, GangPart
from linkwise.extender.place.request import Spot
from linkwise.extender.state.actions import PodRef
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.plans import plan_id, written_plan
from linkwise.extender.state.noted_places import NotedPlace, NotedPlaces, read_places, write_places
from linkwise.extender.state.records import (
    GangKey,
    PodRecord,
    Seat,
    WrittenPlan,
    name_to_come,
    uid_to_come,
)
from linkwise.topology.annotations.plan import Plan

# How long a new pod waits for the GPUs that its predecessor is leaving.
LEAVING_SECONDS = 3.0
# How long a gang without any pod keeps its places: its owner deletes all to create all again.
WHOLE_SECONDS = 20.0
# Of the Job controller (kubernetes pkg/controller/job/job_controller.go): doubled by each failure.
_BACK_OFF_SECONDS, _MOST_BACK_OFF_SECONDS = 10.0, 600.0
_MOST_DOUBLINGS = 6
# A member may take as long to get ready, beyond its gang's timeout; its image may be large.
_MOST_TURN_SECONDS = 3600.0
# A new process keeps what an earlier leader has noted until it has read the owners of all pods of
# the namespace, but not forever; and at first for long enough to see all of these pods.
_NOTED_SECONDS, _MOST_NOTED_SECONDS = 60.0, 600.0
_MOST_GRACE_SECONDS = 3600.0  # of a terminating pod; a tenant may write any number
_HOLDS = frozenset({Phase.RUNNING, Phase.REPAIRING, Phase.BINDING})


@dataclass(slots=True)
class _Lost:
    """A member that a gang has lost, as it is to come again."""

    record: PodRecord
    since: float  # when the old pod went, or has to be gone


class MembersToCome(GangPart):
    def __init__(
        self, books: GangBooks, *, wave_seconds: float, replacement_seconds: float
    ) -> None:
        super().__init__(books)
        self._wave_seconds, self._replacement_seconds = wave_seconds, replacement_seconds
        self._lost: dict[GangKey, dict[Seat, _Lost]] = {}
        self._ended: set[GangKey] = set()  # those of `_lost` whose owner creates no pods now
        self._coming: dict[GangKey, set[str]] = {}  # their uids, of gangs that have some
        # By the uid of the pod that has come: its place, which is noted until its plan is written.
        self._handed: dict[GangKey, dict[str, tuple[WrittenPlan, NotedPlace]]] = {}
        self._noted: dict[GangKey, NotedPlaces] = {}  # by an earlier leader, and not yet used
        self._restored_at, self._forget_noted_at = 0.0, math.inf
        books.agenda.ask(lambda: (self._forget_noted_at,) if self._noted else ())
        # A member to come needs no pod, so no quota of its namespace bounds it: one pod could keep
        # a whole cluster idle, and the next one after it. So a namespace whose later wave did not
        # come in time keeps no place for as long as that had lasted, and longer each further time:
        # at most half of the time.
        self.for_nothing = GrowingPauses()

    # Members come and go.

    def lost(
        self,
        before: PodRecord,
        after: PodRecord | None,
        planned: WrittenPlan | None,
        now: float,
    ) -> None:
        """A pod leaves, has failed or is gone (*after* is None); it was bound, or *planned*. Keep
        its place for its replacement, unless its GPUs were taken from it for others."""
        key = before.gang
        gang = self._registry.gangs.get(key) if key is not None else None
        if key is None or gang is None or gang.alone or gang.expired or not before.demand.gpus:
            return
        if is_past_us(before) and before.scheduler not in self._cache.schedulers:
            return  # its scheduler places its gangs itself, and may bind no pod that has a plan
        known = self._lost.get(key, {}).get(before.seat)
        if known is not None:
            if known.record.follows == before.uid:  # it was leaving, and is gone by now
                known.since = now
            return
        spot = self._place_of(gang, before, planned)
        if spot is None or not self._is_to_replace(gang, before, after):
            return
        leaving_until = 0.0 if after is None else after.leaving_until
        since = max(now, min(leaving_until, now + _MOST_GRACE_SECONDS)) if before.node else now
        record = replace(_to_come_again(before, key, before.seat), follows=before.uid)
        self._lost.setdefault(key, {})[before.seat] = _Lost(record, since)
        self._add(key, record)
        written = self._plan(gang, record, spot)
        if written is not None:
            self._cache.plan(record.uid, written)

    def _is_to_replace(self, gang: Gang, before: PodRecord, after: PodRecord | None) -> bool:
        has_run = bool(before.node) or gang.key in self._lost
        holds = gang.phase in _HOLDS or (gang.phase is Phase.PLANNED and has_run)
        if not holds or self._pending_writes.was_evicted(before.uid):
            return False
        if not before.live or before.disrupted or (after is not None and after.disrupted):
            return False
        # It has done its part, or its kubelet would refuse the next one too.
        is_over = after is not None and after.ended and (not after.failed or after.refusal)
        return not is_over

    def _place_of(self, gang: Gang, pod: PodRecord, planned: WrittenPlan | None) -> Spot | None:
        spot = gang.spots.get(pod.seat)
        if pod.node and spot is not None and spot.node == pod.node:
            return spot
        planned = pod.plan_for(pod.node) if pod.node else planned  # it was bound a moment ago
        info = self._cache.nodes.get(planned.plan.node) if planned is not None else None
        if planned is None or info is None or info.machine is None:
            return None
        return Spot(info.name, info.machine.mask_of(planned.uuids))

    def owner_ended(self, uid: str, *, has_ended: bool) -> set[GangKey]:
        """The owner of this uid was read. Return the gangs of which this may end places."""
        keys = {key for key in self._lost if key.source == uid}
        self._ended = self._ended & self._lost.keys() - keys | (keys if has_ended else set())
        return keys

    def concerns(self, key: GangKey, members: GangMembers) -> bool:
        """Whether the gang has members to come, or had some."""
        has_notes = key in self._noted or self._pending_writes.has_places(key)
        return members.in_waves or has_notes or key in self._coming

    def look(self, gang: Gang, now: float) -> None:
        """Add the members to come of *gang* to the cache, hand over the places of those that have
        come, and drop those whose time is over."""
        key = gang.key
        pods = [self._cache.pods[uid] for uid in self._cache.gangs.get(key, ())]
        live = [pod for pod in pods if pod.live and not pod.coming]
        self._take_up_noted(gang, live)
        self._begin_again(key, live)
        self._end_lost(gang, pods, live, now)
        takers = {pod.seat: pod for pod in live if not pod.node}
        kept = {self._cache.pods[uid].seat for uid in self._coming.get(key, ())}
        waiting = [pod for pod in live if pod.seat not in kept and self._waits(pod)]
        wanted = self._wanted(gang, pods, live, waiting)
        for uid in [*self._coming.get(key, ())]:
            record = self._cache.pods[uid]
            taker = takers.get(record.seat)
            if uid not in wanted and not (taker and self._awaits_place(gang, taker, record, now)):
                self._hand_over(gang, record, taker or self._stand_in(record, waiting), now)
        for uid, record in wanted.items():
            if self._cache.pods.get(uid) != record:
                self._add(key, record)

    def _begin_again(self, key: GangKey, live: Sequence[PodRecord]) -> None:
        """If the gang runs no more and its first pods have come again, those that its owner creates
        later are a later wave again, and no lost members."""
        lost = self._lost.get(key)
        if not lost or not live or any(pod.node for pod in live):
            return
        for seat in {each.seat for each in live[0].to_come} & lost.keys():
            del lost[seat]
        if not lost:
            del self._lost[key]

    def _wanted(
        self,
        gang: Gang,
        pods: Sequence[PodRecord],
        live: Sequence[PodRecord],
        waiting: Sequence[PodRecord],
    ) -> dict[str, PodRecord]:
        """The members to come, by uid. Members that wait have the places of lost ones. Once the
        gang has started, none but lost ones are needed."""
        key = gang.key
        newest = max(live, key=lambda pod: (pod.created, pod.uid), default=None)
        if newest is None:
            return {lost.record.uid: lost.record for lost in self._lost.get(key, {}).values()}
        there = {pod.seat for pod in live} | {pod.seat for pod in pods if has_succeeded(pod)}
        lost = {seat: each.record for seat, each in self._lost.get(key, {}).items()}
        ask = newest.ask.gang
        done = 0 if ask is None else max(ask.done, sum(map(has_succeeded, pods)))
        left = 0 if ask is None else max(ask.size - done - len(live), 0)
        again = [each for seat, each in lost.items() if seat not in there]
        found = {each.uid: each for each in again[len(waiting) : len(waiting) + left]}
        if self._registry.members_of(gang).started:
            return found
        nameless = Counter(each.ask.role for each in live if each.ask.rank is None)
        roles = {each.ask.role for each in live}
        for each in newest.to_come:
            if each.ask.rank is not None:
                wanted = each.seat not in there and each.uid not in found
            else:
                # If all pods are alike, the first of them are none that come later.
                nameless[each.ask.role] -= 1
                wanted = nameless[each.ask.role] < 0 or roles == {each.ask.role}
            if wanted and len(found) < left:
                found[each.uid] = each
        return found

    def _waits(self, pod: PodRecord) -> bool:
        is_placed = pod.node or pod.uid in self._cache.plans or self._cache.is_being_bound(pod.uid)
        return not (is_placed or pod.held_back)

    def _stand_in(self, record: PodRecord, waiting: list[PodRecord]) -> PodRecord | None:
        """A member that waits, for the place of one that was lost or has no rank."""
        key = record.gang
        is_lost = key is not None and record.seat in self._lost.get(key, {})
        if record.ask.rank is not None and not is_lost:
            return None
        alike = (p for p in waiting if p.demand == record.demand)
        found = next((p for p in alike if is_lost or p.ask.role == record.ask.role), None)
        if found is not None:
            waiting.remove(found)
        return found

    def _awaits_place(self, gang: Gang, taker: PodRecord, record: PodRecord, now: float) -> bool:
        """Whether the new pod waits for GPUs that its predecessor is about to leave."""
        written = self._cache.plans.get(record.uid)
        if written is None or taker.uid in self._cache.plans or taker.held_back:
            return False
        info = self._cache.nodes[written.plan.node]
        if now >= gang.came + LEAVING_SECONDS or info.machine is None or info.keeps(record.uid):
            return False
        return self.is_being_left(record)

    def is_being_left(self, record: PodRecord) -> bool:
        """Whether all pods that still have the GPUs of this member's place are terminating or
        gone."""
        written = self._cache.plans.get(record.uid)
        info = self._cache.nodes.get(written.plan.node) if written is not None else None
        if written is None or info is None or info.problem or info.machine is None:
            return False
        gpus = info.machine.mask_of(written.uuids)
        others = [uid for uid, mask in info.owned.items() if mask & gpus and uid != record.uid]
        pods = [self._cache.pods.get(uid) for uid in others]
        return bool(others) and not any(pod is not None and pod.live for pod in pods)

    def _hand_over(
        self, gang: Gang, record: PodRecord, taker: PodRecord | None, now: float
    ) -> None:
        """The member to come is no more. Its place is for *taker*; None: for no pod."""
        written = self._cache.plans.get(record.uid)
        kept = written is not None and self._cache.keeps_plan(record.uid)
        lost = self._lost.get(gang.key, {}).get(record.seat)
        self._drop(gang.key, record)
        if taker is None or written is None or not kept or taker.node or taker.held_back:
            return
        info = self._cache.nodes[written.plan.node]
        assert info.machine is not None, "it kept its plan"
        gpus = info.machine.mask_of(written.uuids)
        if taker.uid in self._cache.plans or not self._suits(taker, Spot(info.name, gpus)):
            return
        # Its own time begins now; the plan's id is that of the gang.
        plan = msgspec.structs.replace(written.plan, made=now)
        handed = written_plan(self._cache, taker, plan, gpus)
        self._cache.plan(taker.uid, handed)
        if self._pending_writes.has_places(gang.key):
            place = _noted_place(record, Spot(info.name, gpus), lost)
            self._handed.setdefault(gang.key, {})[taker.uid] = handed, place
        members = (self._cache.pods[uid] for uid in self._cache.gangs.get(gang.key, ()))
        if not any(member.live and member.node for member in members):
            gang.grace = now  # a new run begins: its timeout does not count from the old plan

    def _suits(self, pod: PodRecord, spot: Spot) -> bool:
        """Whether the place, which is free now, is good for the pod that has come, as far as other
        pods matter. Plans on nodes that do not take the pod are withdrawn anyway."""
        info = self._cache.nodes[spot.node]
        request = GpuRequest(pod.demand, pod.ask.requirement)
        around = self._node_filters.beside(pod)
        return (
            info.kind is not None
            and not info.closed
            and info.has_idle(spot.gpus)  # a reservation waits for what members have
            and info.kind.take(request, spot.gpus) == spot.gpus
            and (around is None or bool(around[info.row]))
            and self._cache.rows.left.fits_on(info.row, pod.needs)
        )

    def _add(self, key: GangKey, record: PodRecord) -> None:
        self._cache.put_pod(record)
        self._coming.setdefault(key, set()).add(record.uid)

    def _drop(self, key: GangKey, record: PodRecord) -> None:
        self._cache.plan(record.uid, None)
        self._cache.drop_pod(record.uid)
        self._coming[key].discard(record.uid)
        if not self._coming[key]:
            del self._coming[key]
        lost = self._lost.get(key, {})
        lost.pop(record.seat, None)
        if not lost:
            self._lost.pop(key, None)

    # How long a place is kept.

    def _end_lost(
        self, gang: Gang, pods: Sequence[PodRecord], live: Sequence[PodRecord], now: float
    ) -> None:
        for lost in [*self._lost.get(gang.key, {}).values()]:
            old = self._leaver(lost.record)
            if old is not None and old.gang == gang.key:
                lost.since = max(lost.since, now)  # it takes longer than its grace period
            if now >= self._until(lost, pods, live):
                self._drop(gang.key, lost.record)

    def _until(self, lost: _Lost, pods: Sequence[PodRecord], live: Sequence[PodRecord]) -> float:
        return lost.since + self._kept_for(lost, pods, live)

    def _kept_for(self, lost: _Lost, pods: Sequence[PodRecord], live: Sequence[PodRecord]) -> float:
        """For how many seconds a lost member's place is kept. If the gang has enough without it, or
        no owner, only as long as operators take that create a pod at once."""
        has_owner = bool(lost.record.owner_kind)
        if not live:
            return WHOLE_SECONDS * (has_owner and lost.record.gang not in self._ended)
        minimum = max(minimum_of(pod) for pod in live)
        done = sum(map(has_succeeded, pods))
        if not has_owner or sum(bool(pod.node) for pod in live) + done >= minimum:
            return LEAVING_SECONDS
        if lost.record.owner_kind != "Job":
            return self._replacement_seconds
        failures = sum(pod.failed for pod in pods)
        doubled = _BACK_OFF_SECONDS * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS)
        return self._replacement_seconds + min(doubled, _MOST_BACK_OFF_SECONDS)

    def next_look(self, key: GangKey, now: float) -> float | None:
        """When a place of the gang is given back, or a new pod no longer waits for its own."""
        lost = self._lost.get(key)
        if lost is None:
            return None
        pods = [self._cache.pods[uid] for uid in self._cache.gangs.get(key, ())]
        live = [pod for pod in pods if pod.live and not pod.coming]
        ends = [self._until(each, pods, live) for each in lost.values()]
        ends += [self._registry.gangs[key].came + LEAVING_SECONDS]
        return min((end for end in ends if end > now), default=None)

    def _leaver(self, record: PodRecord) -> PodRecord | None:
        """The pod that still has the place of this lost member."""
        old = self._cache.pods.get(record.follows)
        return old if old is not None and old.has_yet_to_leave else None

    def records(self) -> list[PodRecord]:
        """All members to come."""
        return [self._cache.pods[uid] for uids in self._coming.values() for uid in uids]

    def kept_by_namespace(self) -> dict[str, Counter[str]]:
        """How many GPUs on which nodes each namespace keeps for members to come, and none has."""
        kept: dict[str, Counter[str]] = defaultdict(Counter)
        for member in self.records():
            written = self._cache.plans.get(member.uid)
            if written is not None and self._leaver(member) is None:
                kept[member.ref.namespace][written.plan.node] += member.demand.gpus
        return kept

    def until(self, key: GangKey) -> float | None:
        """Until when the last lost place of the gang is kept; None: it has none."""
        lost = self._lost.get(key)
        if lost is None:
            return None
        pods = [self._cache.pods[uid] for uid in self._cache.gangs.get(key, ())]
        live = [pod for pod in pods if pod.live and not pod.coming]
        return max(self._until(each, pods, live) for each in lost.values())

    def note_turn(self, gang: Gang, members: GangMembers, now: float) -> None:
        """Note since when the members that exist are ready, as the owner of a later wave waits for
        that."""
        if not members.coming:
            gang.turn_since = None
        elif all(member.ready for member in members.bound):
            gang.turn_since = now if gang.turn_since is None else gang.turn_since
        else:
            gang.turn_since = None

    def ends(self, gang: Gang, members: GangMembers, timeout_seconds: float) -> float:
        """When a gang with members to come, which has not started, gives all its GPUs back."""
        if members.first is None:
            return math.inf  # `_until` has its end
        since = max(gang.made or 0.0, gang.grace, gang.came)
        all_exist = not members.coming
        if not members.bound or (all_exist and members.open):
            return since + timeout_seconds  # no pod waits for others to get ready
        if gang.turn_since is None:
            return since + timeout_seconds + _MOST_TURN_SECONDS
        return max(gang.turn_since, gang.came) + self._wave_seconds

    # The notes, for the next leader.

    def note(self, gang: Gang, members: GangMembers, now: float) -> bool:
        """Have the places of the members to come written to the API server; False: that is to be
        tried again."""
        places = [
            *self._places(gang.key, members.coming),
            *self._not_yet_written(gang.key, members.planned),
        ]
        wanted = NotedPlaces(
            namespace=gang.key.namespace,
            name=gang.key.name,
            source=gang.key.source,
            plan=gang.plan_id,
            made=gang.made or now,
            places=tuple(sorted(places, key=lambda place: str(place.seat))),
        )
        text = write_places(wanted) if places else None
        plans = self._cache.plans
        made_of = {pod.uid: plans[pod.uid] for pod in members.coming if pod.uid in plans}
        return self._pending_writes.note_places(gang.key, text, made_of, now)

    def _not_yet_written(self, key: GangKey, planned: Sequence[PodRecord]) -> list[NotedPlace]:
        """The places whose pods have come, and have no plan on the API server that keeps them."""
        handed, plans = self._handed.pop(key, {}), self._cache.plans
        left = {
            pod.uid: handed[pod.uid]
            for pod in planned
            if pod.uid in handed
            and plans[pod.uid] == handed[pod.uid][0]
            and not self._pending_writes.has_brought(pod, plans[pod.uid])
        }
        if left:
            self._handed[key] = left
        return [place for _, place in left.values()]

    def _places(self, key: GangKey, coming: Sequence[PodRecord]) -> Iterator[NotedPlace]:
        lost = self._lost.get(key, {})
        pods = [self._cache.pods[uid] for uid in self._cache.gangs.get(key, ())]
        live = [pod for pod in pods if pod.live and not pod.coming]
        for member in coming:
            gone = lost.get(member.seat)
            if gone is not None and self._kept_for(gone, pods, live) <= LEAVING_SECONDS:
                continue
            written = self._cache.plans.get(member.uid)
            info = self._cache.nodes.get(written.plan.node) if written is not None else None
            if written is None or info is None or info.machine is None:
                continue
            gpus = info.machine.mask_of(written.uuids)
            yield _noted_place(member, Spot(info.name, gpus), gone)

    def tidy(self, now: float) -> None:
        """Have the notes of gangs removed that exist no more."""
        for key in [*self._pending_writes.noted_gangs()]:
            if key not in self._cache.gangs and key not in self._noted:
                self._pending_writes.note_places(key, None, {}, now)
                self._lost.pop(key, None)
                self._coming.pop(key, None)
                self._handed.pop(key, None)

    def restore(self, texts: Mapping[str, str], now: float) -> None:
        """Use what an earlier leader has noted; *texts*: as the API server has them. Until the
        owner of a gang is read, what is noted for it is reserved."""
        for text in texts.values():
            if (noted := read_places(text)) is None:
                continue
            key = GangKey(noted.namespace, noted.name, source=noted.source)
            self._pending_writes.places_are_noted(key, text)
            self._noted[key] = noted
            gpus: dict[str, int] = {}
            for place in noted.places:
                gpus[place.node] = gpus.get(place.node, 0) | int(place.gpus, 16)
            self._cache.reserve(key, gpus)
        self._restored_at, self._forget_noted_at = now, now + _NOTED_SECONDS

    def forget_noted(self, now: float) -> None:
        """Give back what is noted for gangs that are gone."""
        if not self._noted or now < self._forget_noted_at:
            return
        self._forget_noted_at = now + _NOTED_SECONDS
        unread: set[str] = set()
        if now < self._restored_at + _MOST_NOTED_SECONDS:
            unread = {pod.ref.namespace for pod in self._cache.pods.values() if pod.awaits}
        for key in [key for key in self._noted if key.namespace not in unread]:
            self._take_noted(key)

    def _take_noted(self, key: GangKey) -> NotedPlaces | None:
        noted = self._noted.pop(key, None)
        if noted is not None:
            self._cache.reserve(key, {})
        return noted

    def _take_up_noted(self, gang: Gang, live: Sequence[PodRecord]) -> None:
        noted = self._take_noted(gang.key)
        if noted is None or not live:
            return
        newest = max(live, key=lambda pod: (pod.created, pod.uid))
        known = {each.seat: each for each in newest.to_come}
        there = {pod.seat for pod in live if pod.node}
        gang.plan_id = gang.plan_id or noted.plan
        for place in noted.places:
            record = known.get(place.seat)
            if place.lost is not None:
                like = next((pod for pod in live if pod.ask.role == place.role), None)
                record = None if like is None else _to_come_again(like, gang.key, place.seat)
            if record is None or place.seat in there:
                continue
            if place.lost is not None:
                self._lost.setdefault(gang.key, {})[place.seat] = _Lost(record, place.lost)
            self._add(gang.key, record)
            info, gpus = self._cache.nodes.get(place.node), int(place.gpus, 16)
            if info is None or not info.has_idle(gpus):
                continue
            plan = self._plan(gang, record, Spot(place.node, gpus), made=noted.made)
            if plan is not None:
                self._cache.plan(record.uid, plan)

    def _plan(
        self, gang: Gang, record: PodRecord, spot: Spot, made: float | None = None
    ) -> WrittenPlan | None:
        """The plan that keeps *spot* for the member; None: it is no place for it."""
        info = self._cache.nodes.get(spot.node)
        if info is None or info.machine is None or spot.gpus.bit_count() != record.demand.gpus:
            return None
        if spot.gpus & ~info.machine.all_gpus:
            return None  # the node was another machine when the pod came
        epoch, made = 1, gang.made or 0.0 if made is None else made
        if not gang.plan_id:  # it was bound without the extender
            gang.plan_id = plan_id(gang.key.namespace, gang.key.name, epoch, made, [record.uid])
        plan = Plan(
            id=gang.plan_id,
            node=spot.node,
            leader=self._pending_writes.leader,
            epoch=epoch,
            made=made,
        )
        return written_plan(self._cache, record, plan, spot.gpus)


def _noted_place(member: PodRecord, spot: Spot, lost: _Lost | None) -> NotedPlace:
    since = None if lost is None else lost.since
    return NotedPlace(member.seat, member.ask.role, spot.node, f"{spot.gpus:x}", since)


def _to_come_again(like: PodRecord, key: GangKey, seat: Seat) -> PodRecord:
    """A pod like this one, for this seat, before it exists."""
    return replace(
        like,
        ref=PodRef(key.namespace, name_to_come(key.name, seat), uid_to_come(key, seat)),
        node="",
        ended=False,
        failed=False,
        leaving=False,
        created=math.inf,
        nominated="",
        gated=False,
        held_back=False,
        written=None,
        started=False,
        running=False,
        admitted=False,
        ready=False,
        refusal=None,
        queue=None,
        leaving_until=0.0,
        claim=None,
        to_come=(),
        coming=True,
        ask=replace(like.ask, rank=seat if isinstance(seat, int) else None),
    )
