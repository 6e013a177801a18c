"""Implements the preempt verb: on which nodes a single pod has its GPUs once its victims are gone.

kube-scheduler chooses the victims by counts of GPUs, one pod at a time. The extender ensures that
- the links fit;
- GPUs that are reserved for a more urgent gang do not count as room;
- no gang is left half: its other members on the node become victims too. If it has members on other
  nodes, the answer omits the node, since an extender can name victims on that node only.
If only the extender refused the nodes, newer kube-schedulers call without victims; then the
extender names the cheapest.

No pod is evicted for GPUs that are about to be free. kube-scheduler sees that a victim is gone
before the extender's watch does, and seconds before the node reports that the GPUs are returned. It
calls again, the extender refuses the emptied node, and kube-scheduler would evict on the next one.
So if a node of its call gets room without an eviction, no pod is evicted;
`queue.unschedulable_pods` makes kube-scheduler try the pod again.

For a gang's member this verb evicts no pod: one place does not help a gang, and `preemption` finds
room for all of it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from linkwise.extender.next.cycle.planner import Planner
from linkwise.extender.next.preemption.gang_room import NodeRoom, WhatIf
from linkwise.extender.next.preemption.victim_selection import FreedRoom, Unit, pods_of, select
from linkwise.extender.next.queue.books import Part
from linkwise.extender.place.nodes.by_count import belongs_to_by_count, goes_by_count
from linkwise.extender.place.request import Spot
from linkwise.extender.place.shares.choice import (
    Effort,
    ShareRequest,
    UnsoughtError,
    choose_shares,
)
from linkwise.extender.place.shares.nodes import offers_any, request_of
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.extender_calls import PreemptAnswer, Victims
from linkwise.extender.state.records import PodRecord


class FreedShares:
    """Shares for a single pod on one node if some pods were evicted.

    The pods *gone* make room already: by uid, or by `namespace/name` if the API server no longer
    knows the pod. Once the *effort* is spent there is no room.
    """

    def __init__(
        self, info: NodeInfo, request: ShareRequest, gone: Collection[str], effort: Effort
    ) -> None:
        self._info, self._request, self._gone, self._effort = info, request, gone, effort
        self._sought: dict[frozenset[str], list[Spot] | None] = {}  # without which pods
        self._wanted = {
            each
            for name, _ in request.wants
            for place in info.shares.places
            if place.part.resource == name
            for each in place.part.ids
        }

    def seek(self, units: Sequence[Unit]) -> list[Spot] | None:
        info = self._info
        if info.kind is None or info.closed:
            return None
        gone = frozenset({*self._gone, *(pod.uid for pod in pods_of(units))})
        if gone not in self._sought:
            without = info.shares.without(gone, sum(info.owned.get(uid, 0) for uid in gone))
            try:
                found = choose_shares(info.kind, without, self._request, self._effort)
            except UnsoughtError:
                return None
            self._sought[gone] = None if found is None else [Spot(info.name, gpus=0)]
        return self._sought[gone]

    def may_suffice(self, units: Sequence[Unit]) -> bool:
        """Whether there are enough shares, wherever they are."""
        info = self._info
        gone = {*self._gone, *(pod.uid for pod in pods_of(units))}
        without = info.shares.without(gone, sum(info.owned.get(uid, 0) for uid in gone))
        return all(without.free.get(name, 0) >= demand.gpus for name, demand in self._request.wants)

    def gain(self, gone: Sequence[Unit], more: Sequence[Unit]) -> int:
        before = {pod.uid for pod in pods_of(gone)}
        new = {pod.uid for pod in pods_of(more)} - before
        holders = self._info.shares.holders
        return sum(holders.get(each) in new for each in self._wanted)


class BothRooms:
    """Room in both, for a pod with whole GPUs and shares."""

    def __init__(self, first: FreedRoom, second: FreedRoom) -> None:
        self._first, self._second = first, second

    def seek(self, units: Sequence[Unit]) -> list[Spot] | None:
        return None if self._second.seek(units) is None else self._first.seek(units)

    def may_suffice(self, units: Sequence[Unit]) -> bool:
        return self._first.may_suffice(units) and self._second.may_suffice(units)

    def gain(self, gone: Sequence[Unit], more: Sequence[Unit]) -> int:
        return self._first.gain(gone, more) + self._second.gain(gone, more)


class PreemptVerb(Part):
    def __init__(self, planner: Planner) -> None:
        super().__init__(planner)
        self._unschedulable_pods = planner.unschedulable_pods
        self._candidates, self._budgets = planner.candidates, planner.budgets

    def answer(self, record: PodRecord, asked: Mapping[str, Victims], now: float) -> PreemptAnswer:
        """*record* describes the pod as kube-scheduler sent it. *asked*: the victims that
        kube-scheduler chose, by node."""
        asked = {node: those for node, those in asked.items() if self._are_on(node, those)}
        if record.left_alone:
            return PreemptAnswer(asked)
        if record.invalid or record.awaits or not record.preempts:
            return PreemptAnswer()
        if not (record.demand.gpus or record.shares):
            return PreemptAnswer(asked)
        planned = record.ask.gang is not None and record.demand.gpus
        if planned and not belongs_to_by_count(self._cache, record):
            return PreemptAnswer()
        visible = self._reservations.ways(self._reservations.claimant_of_single(record), now)[-1]
        what_if = WhatIf(self._cache, self._reservations, visible)
        refused = self._unschedulable_pods.take_asked(record)
        full = {node for node, those in asked.items() if those.uids}
        soon = [
            node
            for node in refused
            if node not in full and self._has_room_soon(what_if, record, node)
        ]
        what_if.effort = Effort()  # what came before was about other nodes
        awaits_room = self._unschedulable_pods.may_wait_for(record, soon, now)
        if awaits_room:
            victims = {node: asked[node] for node in soon if node in asked}  # these need no victims
        else:
            answers = {
                node: self._victims(what_if, record, node, those) for node, those in asked.items()
            }
            victims = {node: those for node, those in answers.items() if those is not None}
        any_victims = any(those.uids for those in victims.values())
        self._unschedulable_pods.note_preemption(
            record, any_victims=any_victims, awaits_room=awaits_room
        )
        return PreemptAnswer(victims)

    def _are_on(self, node: str, those: Victims) -> bool:
        """Whether no victim is known to be on another node. From Kubernetes 1.37 on, kube-scheduler
        may name all pods of a PodGroup with `disruptionMode: all`, wherever they are. It looks for
        the victims of the answer on the node alone (`convertPodUIDToPod`), and ends the whole
        preemption with an error if one is elsewhere."""
        pods = (self._cache.pods.get(uid) for uid in those.uids)
        return all(pod is None or pod.node in ("", node) for pod in pods)

    def _victims(
        self, what_if: WhatIf, record: PodRecord, node: str, asked: Victims
    ) -> Victims | None:
        """The victims on this node; None: the pod gets no GPUs there, whichever pods end, as far as
        the effort reaches."""
        info = self._cache.nodes.get(node)
        if info is None:
            return None
        whole = self._candidates.with_mates(node, asked.uids)
        if whole is None:
            return None
        if goes_by_count(self._cache, record, node):
            return self._with_those(asked, whole)
        if info.kind is None or info.machine is None or info.closed:
            return None
        rooms = self._rooms(what_if, info, record, whole)
        if all(room.seek(()) is None for room in rooms):
            units = [*self._units(info, whole, record)]
            found = (select([units], room, self._budgets) for room in rooms)
            preemption = next((each for each in found if each is not None), None)
            if preemption is None:
                return None
            more = (pod.uid for pod in pods_of(preemption.units))
            whole = list(dict.fromkeys([*whole, *more]))
        return self._with_those(asked, whole)

    def _rooms(
        self, what_if: WhatIf, info: NodeInfo, record: PodRecord, gone: Sequence[str]
    ) -> list[FreedRoom]:
        """Where the pod may have its GPUs on this node: as whole ones, or as shares of the same
        name. One of these rooms suffices."""
        shares = FreedShares(info, request_of(record), gone, what_if.effort)
        if not record.demand.gpus:
            return [shares]
        gpus = NodeRoom(what_if, info, _request(record), gone)
        rooms: list[FreedRoom] = [BothRooms(gpus, shares) if record.shares else gpus]
        in_place = request_of(record, in_place=True)
        return (
            [*rooms, FreedShares(info, in_place, gone, what_if.effort)]
            if offers_any(info, in_place)
            else rooms
        )

    def _with_those(self, asked: Victims, whole: Sequence[str]) -> Victims | None:
        """The victims *whole* (uids), which include those that kube-scheduler chose."""
        if set(whole) == set(asked.uids):
            return asked
        if not self._budgets.known:
            return None  # it is unknown which budgets the additional victims violate
        pods = [self._cache.pods[uid] for uid in whole if uid in self._cache.pods]
        return Victims(tuple(whole), self._budgets.broken_by(pods))

    def _units(self, info: NodeInfo, gone: Sequence[str], record: PodRecord) -> Iterator[Unit]:
        """What may be evicted on this node besides the pods *gone* (uids)."""
        pods = [self._cache.pods[uid] for uid in gone if uid in self._cache.pods]
        shrunk = {pod.gang for pod in pods}  # no more of their members can be spared
        there = {**info.bound, **info.sharing.pods}.values()
        for unit in self._candidates.units(there, record.priority, _consents):
            is_spare = unit.spare is not None and unit.key in shrunk
            is_gone = all(pod.uid in gone for pod in unit.pods)
            if unit.nodes == {info.name} and not (is_spare or is_gone):
                yield unit

    def _has_room_soon(self, what_if: WhatIf, record: PodRecord, node: str) -> bool:
        """Whether the pod has GPUs on this node, on which kube-scheduler sees room, once all pods
        that are gone or terminating have returned theirs."""
        info = self._cache.nodes.get(node)
        if info is None or info.record is None:
            return True  # kube-scheduler's watch has shown it, the extender's will
        if info.kind is None or info.machine is None or info.closed:
            return False
        holders = {*info.owned, *info.shares.holders.values()}
        counted = sum(pod.needs.gpus for pod in info.bound.values()) + record.needs.gpus
        if counted > info.record.offers.gpus:
            # Some of these are gone, as kube-scheduler knows; it is unknown which.
            gone = [who for who in holders if who not in info.plans and who not in info.assumed]
        else:
            pods = {who: self._cache.pods.get(who) for who in holders}
            gone = [who for who, pod in pods.items() if pod is None or not pod.live]
        rooms = self._rooms(what_if, info, record, gone)
        return any(room.seek(()) is not None for room in rooms)


def _request(record: PodRecord) -> GpuRequest:
    return GpuRequest(record.demand, record.ask.requirement)


def _consents(_: PodRecord) -> bool:
    """kube-scheduler's own preemption asks for no consent: the priority decides."""
    return True
