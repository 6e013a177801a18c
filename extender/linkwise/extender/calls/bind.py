"""The bind verb: it chooses the GPUs of a single pod, and confirms those of a gang's member.

A pod that asks for shares of divided GPUs gets them here too, each by its device id.

The GPUs of a Binding stay reserved until its outcome is known. If the API server does not respond,
they stay reserved too: the Binding may have happened, or may still happen. The pod's next event
shows it; else the doubt ends after DOUBT_SECONDS. Until then the pod may go to that node alone, so
the extender nominates it there: in a large cluster kube-scheduler would call with a sample, mostly
without that node.
"""

from collections import Counter

import msgspec

from linkwise.extender.calls.barrier import Barrier, Turn
from linkwise.extender.calls.shares import take_shares
from linkwise.extender.next.cycle.planner import Planner
from linkwise.extender.next.gangs.members import minimum_of, placed_at_most, with_others
from linkwise.extender.next.queue.books import Part
from linkwise.extender.place.nodes.by_count import goes_by_count
from linkwise.extender.place.nodes.reasons import SUCH_REFUSED, why_closed_exactly
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_info import NOT_SEEN, NodeInfo
from linkwise.extender.state.cache.pending_writes import annotations_of, start_mark
from linkwise.extender.state.cache.plans import in_term, plan_id, written_plan
from linkwise.extender.state.extender_calls import (
    AlreadyBound,
    BindCall,
    BindOrder,
    BindRefusal,
    BindWaits,
    Outcome,
)
from linkwise.extender.state.records import PodRecord, WrittenPlan
from linkwise.topology.annotations.plan import Plan, PlannedShares

# By then, a Binding without a response has happened and was seen, or it never will. More than twice
# the time to notice a dead watch (`Reflector`: 120 s); from then on, the doubt is prolonged.
DOUBT_SECONDS = 300.0
# Without numbers: kube-scheduler writes each new text into the pod's condition.
NOT_ALL_CAME = "kube-scheduler has not let all members through that start together"


_Key = tuple[str, str]  # uid, node


class Binder(Part):
    def __init__(self, planner: Planner, barrier: Barrier) -> None:
        super().__init__(planner)
        planner.agenda.ask(lambda: self._doubts.values())
        self._barrier, self._refused_plans = barrier, planner.refused_plans
        self._changes, self._targets = planner.changes, planner.targets
        self._flying: Counter[_Key] = Counter()  # orders without an outcome
        self._bound: set[_Key] = set()  # done, but the pod's event has not arrived
        self._doubts: dict[_Key, float] = {}  # without a response -> when the doubt ends

    def begin(
        self, call: BindCall, now: float
    ) -> BindOrder | AlreadyBound | BindRefusal | BindWaits:
        record = self._cache.pods.get(call.uid)
        if record is None:
            reason = f"linkwise: pod {call.namespace}/{call.name} is not known yet"
            return BindRefusal(reason, passing=True)
        if record.node == call.node:
            return AlreadyBound()
        if (refusal := _cannot_be_bound(record)) is not None:
            return refusal
        if not (record.demand.gpus or record.shares) or record.left_alone:
            return _not_let_through(call, record) or _order(call, {})
        if record.awaits:
            return BindRefusal(f"linkwise: {record.awaits}", passing=True)
        if self._pending_writes.busy(call.uid):
            # It may be an older plan, which must not overwrite the Binding's annotations.
            return BindRefusal("linkwise: a plan is being written on the pod", passing=True)
        if self._goes_by_count(record, call.node):
            return _not_let_through(call, record) or _order(call, {})
        held = self._held(call)
        chosen = held or self._choose(record, call, now)
        if isinstance(chosen, BindRefusal):
            return chosen
        if (waits := self._held_back(call, record, now)) is not None:
            return waits
        completes = self._completes(record)
        self._barrier.leave(record.uid)
        chosen = in_term(chosen, self._pending_writes.leader)
        chosen = with_others(chosen, record, self._cache, self._pending_writes)
        self._cache.assume(call.uid, chosen)
        self._reservations.note_passing(record)
        self._flying[call.uid, call.node] += 1
        mark = start_mark(call.uid) if completes else {}
        return _order(call, annotations_of(chosen, call.uid) | mark)

    def _held_back(
        self, call: BindCall, record: PodRecord, now: float
    ) -> BindWaits | BindRefusal | None:
        """The answer if the Binding has to wait for other members, or has waited too long."""
        turn = self._barrier.ask(record, call.node, now)
        if turn is Turn.WAIT and record.gang is not None:
            return BindWaits(record.gang)
        return self._not_all_came(call, record) if turn is Turn.IN_VAIN else None

    def _goes_by_count(self, record: PodRecord, node: str) -> bool:
        has_plan = record.uid in self._cache.plans or record.uid in self._cache.assumed
        return not has_plan and goes_by_count(self._cache, record, node)

    def _held(self, call: BindCall) -> WrittenPlan | None:
        """What an earlier Binding of this pod to this node names; None if there was none, or if the
        kubelet has given some of it to another pod since, or would give it to none."""
        held = self._cache.assumed.get(call.uid, {}).get(call.node)
        if held is None:
            return None
        info = self._cache.nodes[call.node]
        shares = {each for planned in held.plan.shares for each in planned.ids}
        gone = {
            uuid
            for key, containers in info.in_use.items()
            if info.listed_as.get(key) != call.uid
            for uuids in containers.values()
            for uuid in uuids
        }
        gone |= {each for each in shares if info.shares.holders.get(each, call.uid) != call.uid}
        if info.machine is not None:
            gone |= held.uuids - {gpu.uuid for gpu in info.machine.gpus if gpu.healthy}
            parts = (place.part for place in info.shares.places if place.part.healthy)
            gone |= shares.difference(*(part.ids for part in parts))
        return held if gone.isdisjoint(held.uuids | shares) else None

    def _completes(self, record: PodRecord) -> bool:
        """Whether this Binding completes the gang's minimum; then it also sets the start mark.

        Bindings of other members in flight do not count: they may fail.
        """
        gang = self._registry.of(record)
        if gang is None or gang.alone or not record.demand.gpus or self._lacks_many(record):
            return False
        members = self._registry.members_of(gang)
        bound = {
            member.uid for member in members.seats if member.node or self._is_bound(member.uid)
        }
        bound.add(record.uid)
        return not members.started and len(bound) + members.done >= members.minimum

    def _lacks_many(self, record: PodRecord) -> bool:
        """Whether a glance shows that the gang's minimum needs more Bindings than this one: nearly
        always true of a large gang, whose members are expensive to sort."""
        if record.gang is None:
            return False
        most = placed_at_most(self._cache, record.gang) + len(self._bound)
        return most + 1 < minimum_of(record)

    def _is_bound(self, uid: str) -> bool:
        """Whether the API server has confirmed the Binding, even before the pod's event arrives."""
        return any((uid, node) in self._bound for node in self._cache.assumed.get(uid, ()))

    def end(self, order: BindOrder, outcome: Outcome, now: float, why: str) -> None:
        key = (order.uid, order.node)
        self._flying -= Counter([key])
        if outcome is Outcome.DONE:
            self._bound.add(key)
        elif outcome is Outcome.UNKNOWN:
            if order.node in self._cache.assumed.get(order.uid, ()):
                self._doubts[key] = now + DOUBT_SECONDS
        elif not (self._flying[key] or key in self._bound or key in self._doubts):
            # Else another order for the same Binding may be the reason for this refusal.
            self._cache.forget_assumed(*key)
        record = self._cache.pods.get(order.uid)
        if outcome is not Outcome.DONE:
            self._given_back(record, order.node)
        if outcome is Outcome.DENIED:
            self._refused_plans.binding(order, why)
        self._changes.note(record, is_progress=outcome is Outcome.DONE)

    def gave_up(self, call: BindCall, now: float) -> BindRefusal | None:
        """The call has waited for other members for as long as it can. Its plan stays, and
        kube-scheduler tries the pod again. None: it has just been allowed to go, with the
        others."""
        record = self._cache.pods.get(call.uid)
        if not self._barrier.gave_up(call.uid, now):
            return None
        return self._not_all_came(call, record)

    @staticmethod
    def _not_all_came(call: BindCall, record: PodRecord | None) -> BindRefusal:
        gang = None if record is None else record.ask.gang
        who = f"gang {gang.name}" if gang is not None else f"pod {call.namespace}/{call.name}"
        return BindRefusal(f"linkwise: {who}: {NOT_ALL_CAME}")

    def refused(self, call: BindCall) -> None:
        """kube-scheduler gets this refusal, and does not call again for this Binding."""
        record = self._cache.pods.get(call.uid)
        self._barrier.leave(call.uid)
        self._given_back(record, call.node)

    def _given_back(self, record: PodRecord | None, node: str) -> None:
        if record is None:
            self._cache.given_back(node)
        else:
            self._refused_plans.given_back(record, node)

    def end_doubts(self, now: float) -> None:
        """Drop outcomes and doubts that no event can change any more."""
        for key in list(self._bound):
            if self._settled(key):
                self._bound.discard(key)
        for key, until in list(self._doubts.items()):
            if self._settled(key):
                del self._doubts[key]
            elif now >= until and not self._flying[key] and key not in self._bound:
                del self._doubts[key]
                self._cache.forget_assumed(*key)
                gang = self._cache.pods[key[0]].gang
                if gang is not None:
                    self._changes.due.add(gang)

    def doubted(self) -> dict[str, str]:
        """uid -> node of pods that may go to that node alone, without an order in flight."""
        return {uid: node for uid, node in self._doubts if not self._flying[uid, node]}

    def unheard(self, now: float) -> None:
        """The watch is broken: no pod event can arrive, so time alone ends no doubt."""
        self._doubts = dict.fromkeys(self._doubts, now + DOUBT_SECONDS)

    def _settled(self, key: _Key) -> bool:
        """Whether the pod's own record shows the outcome."""
        record = self._cache.pods.get(key[0])
        return record is None or record.ended or bool(record.node)

    def _choose(self, record: PodRecord, call: BindCall, now: float) -> WrittenPlan | BindRefusal:
        node = call.node
        info = self._cache.nodes.get(node)
        if info is None or info.problem:
            why = why_closed_exactly(NOT_SEEN if info is None else info.problem)
            return BindRefusal(f"linkwise: node {node}: {why}")
        planned_ahead = record.ask.gang is not None and record.demand.gpus
        if planned_ahead or record.uid in self._cache.plans:
            return self._with_shares(self._planned(record, node), record, info)
        if info.closed:
            return BindRefusal(f"linkwise: node {node}: {why_closed_exactly(info.closed)}")
        if self._cache.turned_away.takes_none(record.template, node):
            why = SUCH_REFUSED.removeprefix("linkwise: ")
            return BindRefusal(f"linkwise: node {node}: {why}")
        if refusal := _not_let_through(call, record):
            return refusal
        target, passes = self._targets.take_shares(record.uid, node), False
        if target is not None:
            shares, gpus = target.shares, target.spot.gpus
        elif (found := self._devices(info, record, now)) is not None:
            shares, gpus, passes = found
        else:
            return BindRefusal(f"linkwise: node {node}: no free GPU set that will do")
        epoch = 1 + (record.written.plan.epoch if record.written else 0)
        ident = plan_id(record.ref.namespace, record.ref.name, epoch, now, [record.uid])
        plan = Plan(
            id=ident,
            node=node,
            leader=self._pending_writes.leader,
            epoch=epoch,
            made=now,
            shares=shares,
            moved=0.0 if target is None else now,
            expected=record.ask.expected_seconds,
            passes=passes and record.ask.expected_seconds is not None,
        )
        return written_plan(self._cache, record, plan, gpus) if gpus else WrittenPlan(plan, {})

    def _devices(
        self, info: NodeInfo, record: PodRecord, now: float
    ) -> tuple[tuple[PlannedShares, ...], int, bool] | None:
        """The shares and the whole GPUs for a pod that is not planned ahead, and whether others
        wait for these; None: there are none."""
        shares = take_shares(info, record) if record.shares else ()
        gpus, passes = self._take(info, record, now) if record.demand.gpus else (0, False)
        if gpus is None:
            shares, gpus = take_shares(info, record, in_place=True), 0
        return None if shares is None else (shares, gpus, passes)

    def _take(self, info: NodeInfo, record: PodRecord, now: float) -> tuple[int | None, bool]:
        """The whole GPUs for a pod that is not planned ahead, None if no set is suitable; and
        whether it gets them because it ends before others need them."""
        request = GpuRequest(record.demand, record.ask.requirement)
        ways = self._reservations.ways(self._reservations.claimant_of_single(record), now)
        for number, reservations in enumerate(ways):
            kept = self._reservations.kept_on(info.name, reservations)
            if gpus := info.take(request, info.free | kept):
                return gpus, number > 0
        return None, False

    def _with_shares(
        self, planned: WrittenPlan | BindRefusal, record: PodRecord, info: NodeInfo
    ) -> WrittenPlan | BindRefusal:
        """A plan made ahead names whole GPUs; the shares are chosen now."""
        if isinstance(planned, BindRefusal) or not record.shares:
            return planned
        shares = take_shares(info, record)
        if shares is None:
            return BindRefusal(f"linkwise: node {info.name}: no free shares that will do")
        return WrittenPlan(msgspec.structs.replace(planned.plan, shares=shares), planned.gpus)

    def _planned(self, record: PodRecord, node: str) -> WrittenPlan | BindRefusal:
        planned = self._cache.plans.get(record.uid)
        who = "pod" if record.ask.gang is None else f"gang {record.ask.gang.name}"
        if planned is None:
            return BindRefusal(f"linkwise: {who}: this member has no plan")
        if planned.plan.node != node:
            return BindRefusal(f"linkwise: {who}: planned on node {planned.plan.node}")
        if not self._cache.keeps_plan(record.uid):
            return BindRefusal(f"linkwise: {who}: its plan is being made again")
        return planned


def _cannot_be_bound(record: PodRecord) -> BindRefusal | None:
    if record.node:
        return BindRefusal(f"linkwise: pod is bound to node {record.node}")
    if not record.live:
        return BindRefusal("linkwise: pod is ending")
    return BindRefusal(f"linkwise: {record.invalid}") if record.invalid else None


def _not_let_through(call: BindCall, record: PodRecord) -> BindRefusal | None:
    """Refuse a pod without a plan that this process did not let through filter. Any leader can read
    a plan on the pod; without one, kube-scheduler has to have called this process. If it called the
    previous leader, it starts over."""
    if not call.let_through:
        return BindRefusal(f"linkwise: filter did not let the pod through to node {call.node}")
    if call.let_through != record.scheduler:
        return BindRefusal(f"linkwise: the pod is of scheduler {record.scheduler}")
    return None


def _order(call: BindCall, annotations: dict[str, str]) -> BindOrder:
    return BindOrder(call.namespace, call.name, call.uid, call.node, annotations)
