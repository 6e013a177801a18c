"""Lifts the scheduling gate of pods that have a plan, and says why the others wait.

The order is essential: a plan and its nomination are on the API server before the gate is lifted,
and a gang's gates are lifted after all its nominations
(docs/decisions/gangs-and-queue.md#8-the-gate). kube-scheduler never tries a gated pod, so Events
report why it waits: this module sends them for a single pod, `queue.waiting_events` for a gang.
"""

from collections.abc import Iterable, Sequence

from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.gangs.registry import GangBooks, GangPart
from linkwise.extender.place.cluster_view import as_it_is
from linkwise.extender.place.nodes.best_node import BestNode
from linkwise.extender.place.nodes.by_count import (
    belongs_to_by_count,
    fits_by_count,
    nodes_by_count,
)
from linkwise.extender.place.nodes.reasons import of_other_resource, rooms
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_table import BY_CLAIMS, BY_KUBELET
from linkwise.extender.state.cache.pending_writes import EVENT_SECONDS, LEFT_ALONE
from linkwise.extender.state.records import PodRecord, ResourceList

# Most plans take milliseconds, and need no Event.
PATIENCE_SECONDS = 5.0


class SchedulingGates(GangPart):
    def __init__(self, books: GangBooks) -> None:
        super().__init__(books)
        self._strays = (
            books.cache.memory.set()
        )  # behind linkwise's gate, and nothing plans for them
        # Gated pods that no node with a topology has room for.
        self._without_room = books.cache.memory.set()
        self._seen = (-1, 0)  # the cache's room and how many these were, at the last look
        # In this round: thousands wait, few differ.
        self._no_room: dict[tuple[str, GpuRequest, int], str] = {}

    def pod_changed(self, record: PodRecord) -> None:
        if _is_stray(record):
            self._strays.add(record.uid)
        if not record.gated:
            self._without_room.discard(record.uid)

    def look_at_strays(self, now: float) -> None:
        """Handle gated pods that need no GPU or cannot be parsed: nothing plans for them. And pods
        that are left alone lose gate and plan. Ends a round."""
        self._no_room.clear()
        self._look_by_count(now)
        strays = sorted(self._strays)
        self._strays.clear()
        for uid in strays:
            record = self._cache.pods.get(uid)
            if record is None or not _is_stray(record):
                continue
            if record.left_alone and record.written is not None:
                # Of an earlier configuration. The plugin would follow the plan.
                self._pending_writes.note_why(record.uid, LEFT_ALONE)
                self._pending_writes.bring_plan(record, None, now)
            if not record.gated:
                continue
            if record.invalid:
                self._tell(record, f"pod {record.key}: {record.invalid}", now)
            else:
                self._pending_writes.lift_gate(record, now)

    def look_at(
        self, gang: Gang, members: GangMembers, now: float, *, has_no_room: bool = False
    ) -> None:
        """Lift the gates of the members that have what they need, or report why they wait. A
        single pod without room (*has_no_room*) may be one that kube-scheduler places by count."""
        gated = [m for m in (*members.seats, *members.extra) if m.gated and not m.node]
        self._lift((member for member in gated if not member.in_planned_gang), now)
        gated = kept = [member for member in gated if member.in_planned_gang]
        if gated and (members.started or (members.enough_placed and self._all_brought(members))):
            ready = {m.uid for m in (*members.planned, *members.idle) if self._brought(m)}
            self._lift((member for member in gated if member.uid in ready), now)
            kept = [member for member in gated if member.uid not in ready]
        if members.untried and members.complete:
            # Without a plan: kube-scheduler writes that it refuses them, or calls.
            self._lift(kept, now)
        if gang.alone and has_no_room:
            self._without_room.update(member.uid for member in kept)
            self._seen = (-1, 0)  # a gate that could not be lifted is tried again
        elif has_no_room and kept and all(belongs_to_by_count(self._cache, m) for m in kept):
            self._lift(kept, now)
        if gang.alone:  # for the others `queue.waiting_events` reports it
            self._tell_in_time(gang, members, kept, now)

    def _lift(self, pods: Iterable[PodRecord], now: float) -> None:
        for record in pods:
            self._pending_writes.lift_gate(record, now)

    def _look_by_count(self, now: float) -> None:
        """Lift the gates of single pods that kube-scheduler can place by count, and no plan can."""
        state = (self._cache.room, len(self._without_room))
        if not self._without_room or state == self._seen:
            return
        self._seen = state
        nodes = nodes_by_count(self._cache)
        fits: dict[object, bool] = {}  # thousands wait, few differ
        for uid in sorted(self._without_room) if nodes else ():
            record = self._cache.pods.get(uid)
            if record is None or not record.gated or record.node or uid in self._cache.plans:
                self._without_room.discard(uid)
            elif not record.held_back:
                alike = (record.template, record.needs, record.ask.requirement)
                if alike not in fits:
                    fits[alike] = any(fits_by_count(self._cache, info, record) for info in nodes)
                if fits[alike]:
                    self._pending_writes.lift_gate(record, now)

    def _tell_in_time(
        self, gang: Gang, members: GangMembers, kept: Sequence[PodRecord], now: float
    ) -> None:
        if not members.open and members.complete:  # the writes of the decision are in flight
            kept = []
        if not kept:
            gang.gated_since = None
            return
        gang.gated_since = now if gang.gated_since is None else gang.gated_since
        if now < gang.gated_since + PATIENCE_SECONDS:
            self._pending_writes.look_again(kept[0].uid, gang.gated_since + PATIENCE_SECONDS)
            return
        for member in kept:
            self._tell(member, f"{gang.key.title}{self._why(gang, member)}", now)

    def _why(self, gang: Gang, member: PodRecord) -> str:
        if member.awaits:
            return f": {member.awaits}"
        if member.held_back:
            return ": waits behind another scheduling gate"
        if gang.refused:  # maybe without kube-scheduler, as when no gate can be lifted
            return f": its plans came to nothing ({gang.reason})"
        request = GpuRequest(member.demand, member.ask.requirement)
        way = BY_KUBELET if member.claim is None else BY_CLAIMS
        alike = member.resource, request, way
        if alike not in self._no_room:
            self._no_room[alike] = why_no_node(self._cache, self._best_node, *alike)
        explain = f"kubectl linkwise explain -n {member.ref.namespace} {member.ref.name}"
        return f"{self._no_room[alike]}; see `{explain}`"

    def _all_brought(self, members: GangMembers) -> bool:
        return all(self._brought(member) for member in members.planned)

    def _brought(self, member: PodRecord) -> bool:
        """Whether the member's plan, if it has one, is on the API server."""
        plan = self._cache.plans.get(member.uid)
        return plan is None or self._pending_writes.has_brought(member, plan)

    def _tell(self, record: PodRecord, message: str, now: float) -> None:
        self._pending_writes.say(record.ref, "WaitsForPlan", message, now)
        self._pending_writes.look_again(record.uid, now + EVENT_SECONDS)


def _is_stray(record: PodRecord) -> bool:
    """Behind linkwise's gate and in no gang; while a pod's gang is unknown it is no stray. Or with
    a plan, and left alone."""
    if record.node or not record.live or record.gang is not None or record.awaits:
        return False
    return record.gated or (record.left_alone and record.written is not None)


def why_no_node(
    cache: Cache, best_node: BestNode, resource: str, request: GpuRequest, way: int
) -> str:
    """Why there is no plan for a single pod: each distinct reason once, no numbers."""
    there = [info.name for info in cache.nodes.values() if info.record is not None]
    foreign = of_other_resource(cache, resource, there)
    nodes = [name for name in there if name not in foreign]
    answer = rooms(cache, best_node, as_it_is(cache), request, ResourceList(), nodes, way=way)
    reasons = {*answer.failed.values(), *answer.unresolvable.values(), *foreign.values()}
    if answer.node_names:
        reasons.add("linkwise: nodes with suitable GPUs reject the pod for other reasons")
    told = "; ".join(sorted(reason.removeprefix("linkwise: ") for reason in reasons))
    return f": no node has room for it ({told or 'there are no nodes'})"
