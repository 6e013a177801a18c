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

from collections.abc import Iterator, Mapping, Sequence

from linkwise.extender.api.extender_calls import PreemptAnswer, Victims
from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.node_info import NodeInfo
from linkwise.extender.cycle.planner import Planner
from linkwise.extender.placement.nodes.by_count import belongs_to_by_count, goes_by_count
from linkwise.extender.placement.shares.choice import Effort
from linkwise.extender.placement.shares.nodes import offers_any, request_of
from linkwise.extender.preemption.share_room import BothRooms, FreedShares
from linkwise.extender.preemption.victim_selection import FreedRoom, Unit, pods_of, select
from linkwise.extender.preemption.what_if import NodeRoom, WhatIf
from linkwise.extender.queue.books import Part


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
        in_place = request_of(record, self._cache.managed)
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
