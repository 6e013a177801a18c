"""The cache and the planner at one moment, for explanations.

An explanation of 4,000 waiting pods on 5,000 nodes takes seconds, and the core's lock must not be
held so long. Under the lock, SnapshotCamera copies only references and a few arrays; the Explainer
works afterwards. The values behind the references never change in place: records, gang members
and plans are frozen, and NodeInfo builds new dictionaries each time that it settles.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from linkwise.extender.next.core_settings import MovePolicy
from linkwise.extender.next.cycle.planner import Planner
from linkwise.extender.next.cycle.reserve import InVain
from linkwise.extender.next.gangs.gang import Gang, Phase
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.moves.kept_waiting import KeptWaiting
from linkwise.extender.next.moves.plan import MovePlan, MoveUnderWay
from linkwise.extender.next.queue.reservations import Claimant, Reservation, claimant_of_gang
from linkwise.extender.next.queue.run_times import KnownRunTimes
from linkwise.extender.next.queue.scheduling_queue import Ordering, Urgency
from linkwise.extender.next.queue.waiting_events import WaitReason, why_gang_waits
from linkwise.extender.place.request import NoRoom
from linkwise.extender.place.room import Room
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.claims.book import ClaimedGpus
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.extender.state.cache.node_info import Closed, InUsePods, NodeInfo
from linkwise.extender.state.cache.resources import ResourcesLeft
from linkwise.extender.state.cache.shares.book import ShareBook
from linkwise.extender.state.decisions import Decision
from linkwise.extender.state.records import GangKey, NodeRecord, PodRecord, Template, WrittenPlan
from linkwise.extender.state.views import CountView
from linkwise.pods.annotations import PodRequest
from linkwise.topology.annotations.plan import ContainerShares
from linkwise.topology.machine.model import Machine


class NodeState(NamedTuple):
    """One node's info; a tuple, because 5,000 of them are created under the lock."""

    name: str
    row: int
    record: NodeRecord | None
    machine: Machine | None
    kind: MachineKind | None
    closed: Closed | None  # why nothing new is placed there; None: something may be
    owned: Mapping[str, int]  # holder -> bitmask
    used: int
    free: int  # free and not reserved
    reserved: int  # free, but reserved for waiting gangs
    in_use: InUsePods
    listed_as: Mapping[str, str]
    shares: ShareBook
    shares_listed: Mapping[str, ContainerShares]  # by the uid of the pod
    strays: Mapping[str, int]  # those of `owned` that only shares keep, though not divided any more
    by_count: CountView | None  # where pods are placed by count
    claimed: ClaimedGpus  # its GPUs that a DRA driver gives out

    def indices_of(self, gpus: Mapping[str, Sequence[str]]) -> dict[str, int]:
        """*gpus*: container -> uuids. uuid -> index, of those that the machine has."""
        uuids = {uuid for share in gpus.values() for uuid in share}
        known = self.machine.gpus if self.machine is not None else ()
        return {gpu.uuid: gpu.index for gpu in known if gpu.uuid in uuids}

    def name_of(self, uid: str) -> str:
        """The namespace/name of a holder that the API server does not show."""
        listed = (name for name, holder in self.listed_as.items() if holder == uid)
        return self.claimed.name_of(uid) or next(listed, uid)


class GangState(NamedTuple):
    key: GangKey
    alone: bool
    phase: Phase
    reason: str
    uncreated: str
    why: WaitReason | None  # as in `filter`'s answers; None: it does not wait, or is a single pod
    plan_id: str
    made: float | None
    refusals: int
    refused: bool
    no_room: NoRoom | None
    in_vain: InVain | None  # if a search has said it
    deadline: float | None
    lost_since: float | None  # since when it has too few bound members, and had enough before
    found: GangMembers
    urgency: Urgency | None  # only if it has a `why`
    rests_until: float | None  # until then nothing is reserved for its namespace


class Own(NamedTuple):
    """The extender's own settings and start."""

    namespaces: tuple[str, ...]  # whose pods it places; empty: of all
    began: float  # when it began to decide
    may_be_evicted: Callable[[str, PodRequest], bool]  # a pod of this namespace


@dataclass(frozen=True)
class Snapshot:
    at: float
    nodes: Sequence[NodeState]
    left: ResourcesLeft  # [rows]
    pods: Sequence[PodRecord]
    to_come: Sequence[PodRecord]  # members of gangs that do not exist yet
    plans: Mapping[str, WrittenPlan]  # uid -> plan of each pod that is not bound, or only assumed
    gangs: Sequence[GangState]
    reservations: Sequence[Reservation]  # the most urgent first
    levels: tuple[str, ...]  # of domains above the node, nearest first
    refusing: Mapping[Template, frozenset[str]]  # nodes that kube-scheduler refused recently
    # node whose kubelet refused such a pod -> which, and why
    turned_away: Mapping[Template, Mapping[str, str]]
    ordering: Ordering
    run_times: KnownRunTimes
    calls: Mapping[str, float]  # scheduler -> its last call; 0: unknown
    activity: Mapping[str, str]  # node -> the annotation of what its pods do with their GPUs
    reclaim_from: Mapping[str, float]  # uid of an idle pod -> from when on it may be evicted
    decisions: Sequence[Decision]  # that the leader has kept, the oldest first
    dropped: int  # decisions of its term that it has not kept
    policy: MovePolicy
    moves_under_way: Sequence[MoveUnderWay]
    next_whole: MovePlan | None  # what moves away from a node so that it is whole, as advice
    advice: Mapping[GangKey, MovePlan]  # by the gang for which the moves would make room
    kept_waiting: Sequence[KeptWaiting]  # by pods that do not consent to moves
    own: Own
    resources: tuple[str, ...]  # those that are GPUs
    room: Room  # by which the damage of single pods is judged

    @cached_property
    def by_uid(self) -> Mapping[str, PodRecord]:
        return {record.uid: record for record in (*self.pods, *self.to_come)}

    @cached_property
    def node_named(self) -> Mapping[str, NodeState]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def gang_by_key(self) -> Mapping[GangKey, GangState]:
        return {gang.key: gang for gang in self.gangs}

    def plan_of(self, record: PodRecord) -> WrittenPlan | None:
        """The plan that is valid for this pod; None if it has none."""
        return record.plan_for(record.node) if record.node else self.plans.get(record.uid)

    def claimant_of(self, gang: GangState) -> Claimant | None:
        """None: the gang does not wait."""
        if gang.urgency is None:
            return None
        return claimant_of_gang(gang.urgency, gang.found, self.run_times)

    def shares_of(self, record: PodRecord) -> ContainerShares:
        """The shares that the pod has by the kubelet's report, or else by its plan."""
        node = self.node_named.get(record.node)
        if node is not None and record.uid in node.shares_listed:
            return node.shares_listed[record.uid]
        written = self.plan_of(record)
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for planned in written.plan.shares if written is not None and not record.ended else ():
            found.setdefault(planned.container, {})[planned.resource] = planned.ids
        return found


_AT_ONCE = 1000  # nodes whose states are made again under one lock


class _Seen(NamedTuple):
    info: NodeInfo
    settled: int  # `info.settled` as the state was made
    state: NodeState


class SnapshotCamera:
    """Takes snapshots. It reuses the state of a node until the node's info settles again."""

    def __init__(self, cache: Cache, planner: Planner) -> None:
        self._cache, self._planner = cache, planner
        self._seen: dict[str, _Seen] = {}

    def take(self, now: float, own: Own, activity: Mapping[str, str]) -> Snapshot | None:
        """None: more than _AT_ONCE nodes need new states, and that many have them now.

        After a day without a snapshot all nodes of a large cluster need one, and the core's lock
        must not be held for all of them at once.
        """
        cache, planner = self._cache, self._planner
        nodes = self._nodes()
        if nodes is None:
            return None
        plans = dict(cache.plans)
        for uid, reservations in cache.assumed.items():
            plans.update((uid, written) for written in reservations.values())
        return Snapshot(
            at=now,
            nodes=nodes,
            left=cache.rows.left.of_rows(slice(len(cache.rows))),
            pods=[record for record in cache.pods.values() if not record.coming],
            to_come=planner.to_come.records(),
            plans=plans,
            gangs=[_gang(planner, gang, now) for gang in planner.registry.gangs.values()],
            reservations=planner.reservations.all(),
            levels=planner.levels,
            refusing=planner.feedback.refusing(),
            turned_away=cache.turned_away.all(),
            ordering=planner.queue.ordering,
            run_times=planner.run_times.known(planner.reservations.unproven()),
            calls=dict(cache.schedulers),
            activity=dict(activity),
            reclaim_from=planner.idle_pods.times,
            decisions=planner.history.decisions,
            dropped=planner.history.dropped,
            policy=planner.moves.policy,
            moves_under_way=planner.targets.under_way(),
            advice=planner.moves.advice,
            next_whole=planner.whole_nodes.advice,
            kept_waiting=planner.moves.kept_waiting(now),
            own=own,
            resources=cache.resources,
            room=self._planner.best_node.room(),
        )

    def _nodes(self) -> list[NodeState] | None:
        states: list[NodeState] = []
        seen, made = self._seen, 0
        for name, info in self._cache.nodes.items():
            if info.record is None:
                continue
            known = seen.get(name)
            if known is None or known.info is not info or known.settled != info.settled:
                if made == _AT_ONCE:
                    return None
                known = seen[name] = _Seen(info, info.settled, _node(info))
                made += 1
            states.append(known.state)
        if len(seen) > len(states):  # some nodes are gone
            self._seen = {state.name: seen[state.name] for state in states}
        return states


def _node(info: NodeInfo) -> NodeState:
    return NodeState(
        info.name,
        info.row,
        info.record,
        info.machine,
        info.kind,
        info.closed,
        info.owned,
        info.used,
        info.free,
        info.set_aside,
        info.in_use,
        info.listed_as,
        info.shares,
        info.sharing.listed,
        info.sharing.strays,
        _count(info),
        info.claimed,
    )


def _count(info: NodeInfo) -> CountView | None:
    if not info.by_count:
        return None
    return CountView(info.left.gpus + info.spent.gpus, info.spent.gpus)


def _gang(planner: Planner, gang: Gang, now: float) -> GangState:
    members = planner.registry.members_of(gang)
    # Single pods, of which there may be thousands, need no text: their records suffice.
    no_room = planner.queue.no_room(gang.key)
    why = None if gang.alone else why_gang_waits(gang, members, no_room)
    return GangState(
        gang.key,
        gang.alone,
        gang.phase,
        gang.reason,
        gang.uncreated,
        why,
        gang.plan_id,
        gang.made,
        gang.refusals,
        gang.refused,
        no_room,
        planner.reserve.in_vain(gang.key, members),
        planner.to_come.until(gang.key) or planner.lifecycle.deadline(gang),
        gang.lost_since,
        members,
        planner.queue.urgency(gang.key) if why else None,
        planner.reserve.rests_until(gang.key, now),
    )
