"""Everything that explanations are made of, as it was at one moment.

To explain 4,000 waiting pods on 5,000 nodes takes seconds, and the lock must not be held so long:
it is held while references to values and a few arrays are copied, and the rest is worked out after
that. What is referred to is never changed in place: records, musters and plans are frozen, and a
node's account makes its dictionaries anew each time that it is settled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from linkwise.extender.api.records import GangKey, NodeRecord, PodRecord, Template, WrittenPlan
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import MachineKind
from linkwise.extender.cache.node_info import InUsePods, NodeInfo, plan_on
from linkwise.extender.cache.node_table import Ints
from linkwise.extender.cycle.planner import Planner
from linkwise.extender.gangs.gang import Gang, Phase
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.gangs.waiting_events import why_waiting
from linkwise.extender.placement.result import Refusal
from linkwise.extender.queue.reservations import Claimant, Reservation
from linkwise.extender.queue.run_times import PodKind
from linkwise.topology.model import Machine


class NodeState(NamedTuple):
    """One node's account; a tuple, since 5,000 of them are made under the lock."""

    name: str
    row: int
    record: NodeRecord | None
    machine: Machine | None
    kind: MachineKind | None
    problem: str
    owned: Mapping[str, int]  # holder -> bitmask
    used: int
    free: int  # to everybody
    reserved: int  # nobody has them, and they are kept for gangs that wait
    in_use: InUsePods
    listed_as: Mapping[str, str]


class GangState(NamedTuple):
    key: GangKey
    alone: bool
    phase: Phase
    reason: str
    why: str  # as `filter` tells it; empty: it does not wait, or is a single pod
    plan_id: str
    made: float | None
    refusals: int
    refused: bool
    no_room: Refusal | None
    in_vain: str  # what was seen not to help it; empty: that others end helps
    deadline: float | None
    found: GangMembers
    claimant: Claimant | None  # where `why` says that it waits
    rests_until: float | None  # till then nothing over the share is kept for its namespace


class Left(NamedTuple):
    """[rows] what is left of everything but GPUs."""

    milli_cpu: Ints
    memory: Ints
    gpus: Ints  # as kube-scheduler counts them
    pods: Ints


@dataclass(frozen=True)
class Snapshot:
    at: float
    nodes: Sequence[NodeState]
    left: Left
    pods: Sequence[PodRecord]
    plans: Mapping[str, WrittenPlan]  # of pods not bound, also where a Binding is on its way
    gangs: Sequence[GangState]
    reservations: Sequence[Reservation]  # the most urgent first
    levels: tuple[str, ...]  # of domains above the node, nearest first
    refusing: Mapping[Template, frozenset[str]]  # nodes that kube-scheduler refused of late
    nine_of_ten: Mapping[PodKind, float]  # seconds within which so many of a kind have ended

    @cached_property
    def by_uid(self) -> Mapping[str, PodRecord]:
        return {record.uid: record for record in self.pods}

    @cached_property
    def node_named(self) -> Mapping[str, NodeState]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def gang_by_key(self) -> Mapping[GangKey, GangState]:
        return {gang.key: gang for gang in self.gangs}

    def plan_of(self, record: PodRecord) -> WrittenPlan | None:
        """The plan that counts for this pod."""
        return plan_on(record, record.node) if record.node else self.plans.get(record.uid)


class SnapshotCamera:
    """Takes snapshots; what it saw of a node it keeps until something happens to the node."""

    def __init__(self, cache: Cache, planner: Planner) -> None:
        self._cache, self._planner = cache, planner
        self._seen: dict[str, tuple[NodeInfo, int, NodeState]] = {}

    def take(self, now: float) -> Snapshot:
        cache, planner = self._cache, self._planner
        rows, count = cache.rows, len(cache.rows)
        plans = dict(cache.plans)
        for uid, reservations in cache.assumed.items():
            plans.update((uid, written) for written in reservations.values())
        return Snapshot(
            at=now,
            nodes=self._nodes(),
            left=Left(
                rows.milli_cpu[:count].copy(),
                rows.memory[:count].copy(),
                rows.gpus[:count].copy(),
                rows.pods[:count].copy(),
            ),
            pods=list(cache.pods.values()),
            plans=plans,
            gangs=[_gang(planner, gang, now) for gang in planner.gangs.values()],
            reservations=planner.reservations.all(),
            levels=planner.levels,
            refusing=planner.feedback.refusing(),
            nine_of_ten=planner.run_times.all_nine_of_ten(),
        )

    def _nodes(self) -> list[NodeState]:
        before, self._seen = self._seen, {}
        for name, info in self._cache.nodes.items():
            if info.record is not None:
                known = before.get(name)
                if known is None or known[0] is not info or known[1] != info.settled:
                    known = (info, info.settled, _node(info))
                self._seen[name] = known
        return [state for _, _, state in self._seen.values()]


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
        info.held,
        info.in_use,
        info.listed_as,
    )


def _gang(planner: Planner, gang: Gang, now: float) -> GangState:
    members = planner.muster(gang)
    # Of a single pod, of which there may be thousands, its record says it all.
    why = "" if gang.alone else why_waiting(gang, members)
    return GangState(
        gang.key,
        gang.alone,
        gang.phase,
        gang.reason,
        why,
        gang.plan_id,
        gang.made,
        gang.refusals,
        gang.refused,
        gang.no_room,
        planner.reserve.in_vain(gang.key, members),
        planner.deadline(gang),
        members,
        planner.reservations.claimant(gang, members) if why else None,
        planner.reserve.rests_until(gang.key, now),
    )
