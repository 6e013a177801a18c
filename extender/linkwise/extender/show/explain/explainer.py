"""Explains pods and gangs to users: why they are where they are, or why they wait.

An explanation of a wait has what was wanted, what is available, the nearest miss and its holders.
The Explainer reads a snapshot only, so scheduling never waits for it.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from linkwise.drawing.words import pods_in_words
from linkwise.extender.next.cycle.reserve import InVain
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.queue.reservations import Claimant, claimant_of_single
from linkwise.extender.next.queue.scheduling_queue import MOST_RUN_SECONDS, QueueOrder, Urgency
from linkwise.extender.show.explain.empty_cluster import EmptyCluster
from linkwise.extender.show.explain.funnel import Funnel, alike, wanted_of
from linkwise.extender.show.explain.holders import holders_of, owners_of
from linkwise.extender.show.explain.idle.reclaims import Reclaims
from linkwise.extender.show.explain.names_said import gang_said
from linkwise.extender.show.explain.runner_up_view import Alternatives
from linkwise.extender.show.explain.snapshot import GangState, NodeState, Snapshot
from linkwise.extender.show.explain.texts.reasons import (
    and_one_of,
    gang_reason,
    in_vain_in_words,
    is_by_count,
    is_never,
    pod_summary,
    why_gang_waits,
)
from linkwise.extender.show.explain.usage import closed_nodes, gpus_by_state
from linkwise.extender.show.explain.worth_view import communicator_of, domain_of, levels_of
from linkwise.extender.state.records import PodRecord, natural
from linkwise.extender.state.views import (
    BrokenOff,
    ClusterExplanation,
    Explanation,
    GangExplanation,
    GangView,
    LevelView,
    MemberView,
    NearestMiss,
    PodState,
    ReasonCount,
    ReservationView,
    SearchView,
    SeniorityView,
)
from linkwise.pods.spans import SEPARATOR
from linkwise.topology.annotations.plan import held_of
from linkwise.topology.machine.model import LinkClass
from linkwise.topology.vendors.known import vendor_of


class QueuePlace(NamedTuple):
    ahead: int = 0  # gangs and pods without room that are more urgent
    behind: str = ""  # the last of these; empty: there is none
    seniority: SeniorityView | None = None  # None: the order is by age


class QueuePlaces:
    """Where gangs and pods without room are in the scheduling queue, and why there."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def of(self, gang: GangState | None) -> QueuePlace:
        urgency = None if gang is None or gang.no_room is None else self._urgency(gang)
        if gang is None or urgency is None:
            return QueuePlace()
        ahead = bisect_left(self._urgencies, urgency)
        behind = self._urgencies[ahead - 1][2].title if ahead else ""
        return QueuePlace(ahead, behind, self._seniority(gang))

    def _seniority(self, gang: GangState) -> SeniorityView | None:
        ordering = self._snapshot.ordering
        if ordering.order is QueueOrder.AGE:
            return None
        live = _live(gang)
        gpus, expected = ordering.size_and_run_time(live)
        counts_as = None if math.isinf(expected) else min(expected, MOST_RUN_SECONDS)
        return SeniorityView(ordering.shift(live), gpus, counts_as)

    @cached_property
    def _urgencies(self) -> Sequence[Urgency]:
        waiting = (gang for gang in self._snapshot.gangs if gang.no_room is not None)
        return sorted(each for gang in waiting if (each := self._urgency(gang)) is not None)

    def _urgency(self, gang: GangState) -> Urgency | None:
        """None: the gang does not wait."""
        if gang.urgency is not None:
            return gang.urgency
        if gang.alone and gang.found.open:
            return self._snapshot.ordering.of_single(gang.found.open[0])
        return None


def _live(gang: GangState) -> list[PodRecord]:
    return [member for member in gang.found.all if member.live]


WAITING = frozenset({PodState.WAITING, PodState.INVALID})


def state_of(snapshot: Snapshot, record: PodRecord) -> PodState:
    if record.coming:
        return PodState.TO_COME
    if record.ended:
        return PodState.ENDED
    if record.node:
        return PodState.BOUND
    if record.invalid:
        return PodState.INVALID
    if not (record.demand.gpus or record.shares):
        return PodState.NOT_OURS
    if record.left_alone:
        return PodState.LEFT_ALONE
    return PodState.PLANNED if record.uid in snapshot.plans else PodState.WAITING


class Explainer:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._funnel = Funnel(snapshot)
        self._queue_places = QueuePlaces(snapshot)

    def pod(self, namespace: str, name: str, *, runner_up: bool = False) -> Explanation | None:
        """None if there is no such pod. With *runner_up*, a pod with GPUs also gets the best other
        placement of it or of its gang, and one that waits the idle pods that will be evicted for
        it, which takes a search."""
        key = f"{namespace}/{name}"
        found = [record for record in self._snapshot.pods if record.key == key]
        # Of two pods of one name the newer counts: the watch may not have shown the older's end.
        if not found:
            return None
        record = max(found, key=lambda record: record.created)
        return self._pod(record, runner_up=runner_up)

    def gang(self, namespace: str, name: str, *, runner_up: bool = False) -> GangExplanation | None:
        """None if there is no such gang, or if *name* may mean several."""
        found = gang_said(self._snapshot, namespace, name)
        return self._gang(found, runner_up=runner_up) if found is not None else None

    def gangs(self, namespace: str = "", *, runner_up: bool = False) -> tuple[GangView, ...]:
        """The gangs of one *namespace*; empty: of all."""
        known = sorted(
            (gang.key, gang)
            for gang in self._snapshot.gangs
            if not gang.alone and namespace in ("", gang.key.namespace)
        )
        return tuple(
            self._view_gang(self._empty_cluster.judged(gang), runner_up=runner_up)
            for _, gang in known
        )

    def everything(self, namespace: str = "") -> ClusterExplanation:
        """All waiting gangs and pods of one *namespace*; empty: of all."""
        snapshot = self._snapshot
        waiting: list[tuple[Urgency, GangState | PodRecord]] = [
            (gang.urgency, gang)
            for gang in snapshot.gangs
            if not gang.alone and gang.urgency is not None and namespace in ("", gang.key.namespace)
        ]
        waiting += [
            (snapshot.ordering.of_single(record), record)
            for record in snapshot.pods
            if record.ask.gang is None
            and namespace in ("", record.ref.namespace)
            and record.live
            and state_of(snapshot, record) in WAITING
        ]
        waiting.sort(key=itemgetter(0))
        return ClusterExplanation(
            snapshot.at,
            gpus_by_state(self._funnel.field.nodes),
            len(self._funnel.field.nodes),
            tuple(self._gang(each) for _, each in waiting if isinstance(each, GangState)),
            tuple(self._pod(each) for _, each in waiting if isinstance(each, PodRecord)),
            tuple(
                each.key.title if isinstance(each, GangState) else f"pod {each.key}"
                for _, each in waiting
            ),
            closed_nodes(self._funnel.field.nodes),
            _broken_off(snapshot, namespace),
        )

    # Pods.

    def _pod(self, record: PodRecord, *, runner_up: bool = False) -> Explanation:
        snapshot = self._snapshot
        written = snapshot.plan_of(record)
        state = state_of(self._snapshot, record)
        search = None
        gang = snapshot.gang_by_key.get(record.gang) if record.gang is not None else None
        gang = self._empty_cluster.judged(gang) if gang is not None else None
        if state is PodState.WAITING:
            # A member searches as its gang does: the gang's own reservation is open to it.
            own = snapshot.claimant_of(gang) if gang is not None else None
            search = self._funnel.search(
                [record],
                own or claimant_of_single(record, snapshot.ordering, snapshot.run_times),
            )
        in_vain = _in_vain(gang, search) if state is PodState.WAITING else None
        in_gang = record.ask.gang is not None
        place = self._queue_places.of(None if in_gang else gang)
        node = record.node or (written.plan.node if written else "")
        gpus, at = self._gpus(record), snapshot.node_named.get(node)
        on = snapshot.node_named.get(record.node)
        claims = on.claimed.of_pod(record.uid) if on is not None else {}
        link, gbytes_per_s = _worth_of(on, claims)
        if written is not None and len(written.uuids) > 1:
            link, gbytes_per_s = written.plan.link, written.plan.gbytes_per_s
        return Explanation(
            namespace=record.ref.namespace,
            name=record.ref.name,
            uid=record.uid,
            state=state,
            summary=pod_summary(record, state, gang, search, in_vain, on),
            wanted=wanted_of(record) if record.demand.gpus or record.shares else None,
            node=node,
            gpus=gpus,
            link=link,
            gbytes_per_s=gbytes_per_s,
            search=search,
            gang=self._gang(gang, runner_up=runner_up) if gang is not None and in_gang else None,
            priority=record.priority,
            since=None if record.coming else record.created or None,
            because=record.ask.because,
            indices=at.indices_of({**gpus, **claims}) if at is not None else {},
            communicator=written.plan.communicator if written else None,
            by_count=is_by_count(record, on),
            runner_up=self._alternatives.runner_up([record]) if runner_up and not in_gang else None,
            shares=snapshot.shares_of(record),
            ahead=place.ahead,
            behind=place.behind,
            seniority=place.seniority,
            in_vain=in_vain_in_words(in_vain),
            claims=claims,
            advised=self._advised(gang) if gang is not None and not in_gang else (),
            reclaim=self._reclaims.of_single(record)
            if runner_up and state is PodState.WAITING and gang is not None and gang.alone
            else None,
        )

    def _gpus(self, record: PodRecord) -> Mapping[str, tuple[str, ...]]:
        node = self._snapshot.node_named.get(record.node)
        written = self._snapshot.plan_of(record)
        planned = {} if written is None or record.ended else written.gpus
        key = record.key
        if node is not None and key in node.in_use and node.listed_as.get(key) == record.uid:
            return held_of(node.in_use, key, planned, by_claim=record.claim is not None)
        return planned

    # Gangs.

    def _gang(self, gang: GangState, *, runner_up: bool = False) -> GangExplanation:
        gang = self._empty_cluster.judged(gang)
        waits, place = gang.why is not None, self._queue_places.of(gang)
        claimant = self._snapshot.claimant_of(gang)
        searches = self._searches(gang.found.open, claimant) if claimant is not None else ()
        reservation = self._reservation(gang)
        is_evicting = reservation is not None and reservation.evicts
        return GangExplanation(
            gang=self._view_gang(gang, runner_up=runner_up),
            waits=waits,
            in_vain=in_vain_in_words(gang.in_vain),
            summary=f"Gang {gang.key.name}{why_gang_waits(gang)}." if waits else "",
            levels=(_members_level(gang.found), *self._room_level(gang)) if waits else (),
            searches=searches,
            nearest=self._nearest_domain(gang),
            ahead=place.ahead,
            behind=place.behind,
            seniority=place.seniority,
            reservation=reservation,
            rests_until=gang.rests_until if gang.no_room is not None else None,
            advised=self._advised(gang),
            reclaim=self._reclaims.of_gang(gang)
            if runner_up and waits and not is_evicting
            else None,
        )

    def _advised(self, gang: GangState) -> tuple[str, ...]:
        plan = self._snapshot.advice.get(gang.key)
        return () if plan is None else tuple(move.pod.key for move in plan.moves)

    def _reservation(self, gang: GangState) -> ReservationView | None:
        reservation = next(
            (each for each in self._snapshot.reservations if each.key == gang.key), None
        )
        if reservation is None:
            return None
        nodes = self._snapshot.node_named
        idle = {
            name: nodes[name].free | nodes[name].reserved
            for name in reservation.gpus
            if name in nodes
        }
        is_known = reservation.earliest.known and reservation.start < math.inf
        return ReservationView(
            nodes=tuple(sorted(reservation.gpus, key=natural)),
            gpus=sum(mask.bit_count() for mask in reservation.gpus.values()),
            free=sum(
                (mask & idle.get(name, 0)).bit_count() for name, mask in reservation.gpus.items()
            ),
            start=reservation.start if is_known else None,
            sure=reservation.earliest.sure,
            evicts=reservation.by_preemption,
            holders=owners_of(self._snapshot, reservation.gpus),
        )

    def _searches(self, members: Sequence[PodRecord], claimant: Claimant) -> tuple[SearchView, ...]:
        groups: dict[object, list[PodRecord]] = {}
        for member in members:
            if member.demand.gpus:
                groups.setdefault(alike(member), []).append(member)
        found = (self._funnel.search(group, claimant) for group in groups.values())
        return tuple(sorted(found, key=lambda search: (-search.wanted.gpus, -search.pods)))

    def _view_gang(self, gang: GangState, *, runner_up: bool) -> GangView:
        found = gang.found
        live = [member for member in found.all if member.live]
        return GangView(
            namespace=gang.key.namespace,
            name=gang.key.name,
            phase=gang.phase.value,
            reason=gang_reason(gang),
            size=found.size,
            minimum=found.minimum,
            members=tuple(self._member(member) for member in found.all),
            plan=gang.plan_id if gang.made is not None else "",
            made=gang.made,
            deadline=gang.deadline,
            refusals=gang.refusals,
            started=found.started,
            priority=max((member.priority for member in live), default=0),
            since=None if math.isinf(found.since) else found.since or None,
            lost_since=gang.lost_since,
            missing_ranks=found.missing_ranks,
            communicator=communicator_of(self._snapshot, self._levels, found),
            runner_up=self._alternatives.runner_up(found.seats) if runner_up else None,
        )

    @cached_property
    def _empty_cluster(self) -> EmptyCluster:
        return EmptyCluster(self._snapshot)

    @cached_property
    def _alternatives(self) -> Alternatives:
        return Alternatives(self._funnel.field)

    @cached_property
    def _reclaims(self) -> Reclaims:
        return Reclaims(self._funnel.field)

    @cached_property
    def _levels(self) -> tuple[str, ...]:
        return levels_of(self._snapshot)

    def _member(self, record: PodRecord) -> MemberView:
        written = self._snapshot.plan_of(record)
        gpus = [uuid for share in self._gpus(record).values() for uuid in share]
        return MemberView(
            pod=record.ref.name,
            rank=record.ask.rank,
            state=PodState.LEAVING
            if record.leaving and not record.ended
            else state_of(self._snapshot, record),
            node=record.node or (written.plan.node if written else ""),
            gpus=tuple(dict.fromkeys(gpus)),  # later containers reuse an init container's GPUs
            role=record.ask.role,
        )

    def _room_level(self, gang: GangState) -> Iterable[LevelView]:
        room = gang.no_room
        if not gang.found.open or room is None:
            return
        where, nowhere = "", False
        if room.level:
            where = f" in one domain of {and_one_of(room.level)}"
            nowhere = not any(_in_domains(node, room.level) for node in self._funnel.field.nodes)
        missing = (ReasonCount("no node has this label", room.wanted),) if nowhere else ()
        wanted = f"have room at once{where}"
        yield LevelView(room.level or "room", wanted, "pods", room.had, room.wanted, missing)

    def _nearest_domain(self, gang: GangState) -> NearestMiss | None:
        room = gang.no_room
        claimant = self._snapshot.claimant_of(gang)
        if claimant is None or room is None or not room.level or not room.nearest:
            return None
        nodes = self._funnel.field.nodes
        inside = [node for node in nodes if _domains(node, room.level) == room.nearest]
        lacks = f"lacks room for {room.wanted - room.nearest_had} of {pods_in_words(room.wanted)}"
        mine = self._funnel.field.open_to(claimant)
        holders = holders_of(self._snapshot, inside, mine)
        return NearestMiss(room.nearest, room.level, lacks, holders)


def _worth_of(on: NodeState | None, claims: Mapping[str, tuple[str, ...]]) -> tuple[str, float]:
    """The closest link and the bandwidth of the GPUs that a pod has from claims on its node."""
    if on is None or on.machine is None or on.kind is None:
        return "", 0.0
    gpus = on.machine.mask_of([uuid for uuids in claims.values() for uuid in uuids])
    if gpus.bit_count() < 2:
        return "", 0.0
    link = LinkClass(int(on.kind.table.ring_classes[gpus]))
    return vendor_of(on.machine).word_of(link), float(on.kind.table.values[gpus])


def _broken_off(snapshot: Snapshot, namespace: str) -> tuple[BrokenOff, ...]:
    found: dict[tuple[str, str], list[str]] = {}
    for record in snapshot.pods:
        if record.broken_off and record.live and namespace in ("", record.ref.namespace):
            found.setdefault((record.scheduler, record.broken_off), []).append(record.key)
    return tuple(
        BrokenOff(scheduler, error, tuple(sorted(pods, key=natural)))
        for (scheduler, error), pods in sorted(found.items())
    )


def _members_level(members: GangMembers) -> LevelView:
    there, coming = len(members.seats) + members.done, len(members.coming)
    held_back = len(members.held_back)
    missing = (
        ReasonCount("do not exist yet", max(members.size - there, 0)),
        ReasonCount("created later by their owner", coming),
        ReasonCount("behind another scheduling gate", held_back),
    )
    enough = f"; {members.minimum} are enough to start" if members.minimum < members.size else ""
    return LevelView(
        "members",
        f"exist and may be scheduled{enough}",
        "pods",
        there - held_back - coming,
        members.size,
        tuple(reason for reason in missing if reason.nodes),
    )


def _in_domains(node: NodeState, levels: str) -> bool:
    return all(domain_of(node, level) for level in levels.split(SEPARATOR))


def _domains(node: NodeState, levels: str) -> str:
    return SEPARATOR.join(domain_of(node, level) for level in levels.split(SEPARATOR))


def _in_vain(gang: GangState | None, search: SearchView | None) -> InVain | None:
    """Of a pod; *gang*: that it is alone in, or its gang."""
    if gang is not None and gang.in_vain is not None:
        return gang.in_vain
    return InVain.NEVER_FITS if search is not None and is_never(search) else None
