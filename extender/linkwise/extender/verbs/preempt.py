"""Implements the preempt verb: on which nodes a single pod has its GPUs once its victims are gone.

kube-scheduler chooses the victims by counts of GPUs, one pod at a time. The extender ensures that
- the links fit;
- GPUs that are reserved for a more urgent gang do not count as room;
- no gang is left half: its other members on the node become victims too. If it has members on other
  nodes, the answer omits the node, since kube-scheduler evicts on one node only.
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

from collections.abc import Iterable, Mapping, Sequence

from linkwise.extender.api.extender_calls import PreemptAnswer, Victims
from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.node_info import NodeInfo
from linkwise.extender.cycle.planner import Planner
from linkwise.extender.preemption.gang_preemption import spare_of
from linkwise.extender.preemption.victim_selection import Unit, VictimChoice, choose
from linkwise.extender.queue.reservations import Reservation
from linkwise.extender.verbs.shares import has_only_shares


def preempt(
    cache: Cache, planner: Planner, record: PodRecord, asked: Mapping[str, Victims], now: float
) -> PreemptAnswer:
    if record.invalid or record.awaits or record.ask.gang is not None or not record.preempts:
        return PreemptAnswer()
    if not record.demand.gpus:
        return PreemptAnswer(dict(asked))
    question = _Question(cache, planner, record, now)
    refused = planner.unschedulable_pods.take_asked(record)
    full = {node for node, those in asked.items() if those.uids}
    soon = [node for node in refused if node not in full and question.has_room_soon(node)]
    awaits_room = planner.unschedulable_pods.may_wait_for(record, soon, now)
    if awaits_room:
        victims = {node: asked[node] for node in soon if node in asked}  # these need no victims
    else:
        answers = {
            node: those if has_only_shares(cache, record, node) else question.victims(node, those)
            for node, those in asked.items()
        }
        victims = {node: those for node, those in answers.items() if those is not None}
    somebody = any(those.uids for those in victims.values())
    planner.unschedulable_pods.evicts(record, somebody=somebody, awaits_room=awaits_room)
    return PreemptAnswer(victims)


class _Question:
    def __init__(self, cache: Cache, planner: Planner, record: PodRecord, now: float) -> None:
        self._cache, self._planner, self._record = cache, planner, record
        self._budgets = planner.preemption.budgets
        self._request = GpuRequest(record.demand, record.ask.requirement)
        self._open_to = planner.reservations.ways(
            planner.reservations.claimant_of_single(record), now
        )[-1]
        self._open_keys = {
            reservation.key for reservation in self._open_to if isinstance(reservation, Reservation)
        }

    def victims(self, node: str, asked: Victims) -> Victims | None:
        """The victims on this node; None: the pod gets no GPUs there, whichever pods end."""
        info = self._cache.nodes.get(node)
        if info is None or info.kind is None or info.machine is None or info.closed:
            return None
        whole = self._whole(info, asked.uids)
        if whole is not None and not self._fits(info, whole):
            whole = self._with_more(info, whole)
        if whole is None:
            return None
        if set(whole) == set(asked.uids):
            return asked
        if not self._budgets.known:
            return None  # it is unknown which budgets the additional victims violate
        pods = [self._cache.pods[uid] for uid in whole if uid in self._cache.pods]
        return Victims(tuple(whole), self._budgets.broken_by(pods))

    def has_room_soon(self, node: str) -> bool:
        """Whether the pod has GPUs on this node, on which kube-scheduler sees room, once all pods
        that are gone or terminating have returned theirs."""
        info = self._cache.nodes.get(node)
        if info is None or info.record is None:
            return True  # kube-scheduler's watch has shown it, the extender's will
        if info.kind is None or info.machine is None or info.closed:
            return False
        counted = sum(pod.needs.gpus for pod in info.bound.values()) + self._record.needs.gpus
        if counted > info.record.offers.gpus:
            # Some of these are gone, as kube-scheduler knows; it is unknown which.
            gone = [who for who in info.owned if who not in info.plans and who not in info.assumed]
        else:
            pods = {who: self._cache.pods.get(who) for who in info.owned}
            gone = [who for who, pod in pods.items() if pod is None or not pod.live]
        return self._fits(info, gone)

    def _whole(self, info: NodeInfo, uids: Sequence[str]) -> list[str] | None:
        """*uids*, and the pods that must go with them; None if one of these is on another node."""
        whole = dict.fromkeys(uids)
        gangs = {
            record.gang
            for uid in uids
            if (record := self._cache.pods.get(uid)) is not None
            and record.ask.gang is not None
            and record.gang is not None
        }
        for key in sorted(gangs):
            members = self._bound(key)
            going = sum(member.uid in whole for member in members)
            if going == len(members) or going <= self._can_spare(key):
                continue
            if any(member.node != info.name for member in members):
                return None
            whole |= dict.fromkeys(member.uid for member in members)
        return list(whole)

    def _can_spare(self, key: GangKey) -> int:
        """How many members the gang can do without."""
        known = self._planner.gangs.get(key)
        return 0 if known is None else len(spare_of(self._planner.muster(known)))

    def _bound(self, key: GangKey) -> list[PodRecord]:
        return [member for member in self._cache.members(key) if member.live and member.node]

    def _fits(self, info: NodeInfo, gone: Iterable[str]) -> bool:
        assert info.kind is not None, "it is usable"
        assert info.machine is not None, "it is usable"
        freed = 0
        for uid in gone:
            freed |= info.owned.get(uid, 0)
        for key, kept in info.reserved.items():
            if key not in self._open_keys:
                freed &= ~kept
        kept_for_it = self._planner.reservations.kept_on(info.name, self._open_to)
        free = info.free | kept_for_it | freed & info.machine.healthy_gpus
        return info.kind.take(self._request, free) is not None

    def _with_more(self, info: NodeInfo, gone: Sequence[str]) -> list[str] | None:
        """*gone*, and the cheapest of the less important pods on this node that make room."""

        def all_of(units: Iterable[Unit]) -> list[str]:
            more = (pod.uid for unit in units for pod in unit.pods)
            return list(dict.fromkeys([*gone, *more]))

        def makes_room(units: Sequence[Unit]) -> bool:
            return self._fits(info, all_of(units))

        def allowed(units: Sequence[Unit]) -> bool:
            return self._budgets.allow(pod for unit in units for pod in unit.pods)

        def gain(_before: Sequence[Unit], more: Sequence[Unit]) -> int:
            return sum(info.owned.get(pod.uid, 0).bit_count() for u in more for pod in u.pods)

        units = list(self._units(info, set(gone)))
        chosen = choose(units, VictimChoice(allowed, makes_room, makes_room, gain))
        return None if chosen is None else all_of(chosen)

    def _units(self, info: NodeInfo, gone: set[str]) -> Iterable[Unit]:
        seen: set[GangKey] = set()
        for record in info.bound.values():
            if record.uid in gone or not record.live or record.priority >= self._record.priority:
                continue
            if record.ask.gang is None or record.gang is None:
                name = record.ref
                key = GangKey(name.namespace, name.name, name.uid)
                yield Unit((record,), record.priority, record.created, key)
            elif record.gang not in seen:
                seen.add(record.gang)
                members = self._bound(record.gang)
                priority = max(member.priority for member in members)
                here = all(member.node == info.name for member in members)
                if here and priority < self._record.priority:
                    created = min(member.created for member in members)
                    yield Unit(tuple(members), priority, created, record.gang)
