"""Converts GPUs that were chosen to the plan that is written on the pod.

Both ways to a plan, ahead for a gang and at the bind for a single pod, write the same.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest, MachineKind, containers_on
from linkwise.extender.state.cache.node_info import Mismatch
from linkwise.extender.state.cache.pending_writes import PendingWrites
from linkwise.extender.state.records import PodRecord, WrittenPlan
from linkwise.topology.annotations.plan import CommunicatorEstimate, Plan
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.vendors.known import vendor_of
from linkwise.topology.while_alive import while_alive


@dataclass(frozen=True, slots=True)
class Deal:
    """GPUs of a node for a pod. A Deal does not depend on the cache, so the annotations can be
    computed while others use the cache."""

    record: PodRecord
    node: str
    gpus: int  # bitmask
    kind: MachineKind
    machine: Machine
    communicator: CommunicatorEstimate | None = None  # the gang's, seen from this node

    @classmethod
    def of(
        cls,
        cache: Cache,
        record: PodRecord,
        node: str,
        gpus: int,
        communicator: CommunicatorEstimate | None = None,
    ) -> "Deal":
        info = cache.nodes[node]
        assert info.machine is not None, "planned on a usable node"
        assert info.kind is not None, "planned on a usable node"
        return cls(record, node, gpus, info.kind, info.machine, communicator)

    def written(self, plan: Plan) -> WrittenPlan:
        """The plan to write on the pod: *plan* with this node and its bandwidth."""
        request = GpuRequest(self.record.demand, self.record.ask.requirement)
        link, gbytes_per_s = _worth(self.kind, request, self.gpus)
        before = self.record.written
        own = msgspec.structs.replace(
            plan,
            node=self.node,
            link=link,
            gbytes_per_s=gbytes_per_s,
            communicator=self.communicator,
            expected=self.record.ask.expected_seconds,
            passes=plan.passes and self.record.ask.expected_seconds is not None,
        )
        if before is not None and before.plan.moved and not plan.moved:
            own = msgspec.structs.replace(own, moved=before.plan.moved)
        return WrittenPlan(own, containers_on(self.kind, self.machine, request, self.gpus))


def written_plan(cache: Cache, record: PodRecord, plan: Plan, gpus: int) -> WrittenPlan:
    """The plan to write on *record* for these GPUs of `plan.node`."""
    return Deal.of(cache, record, plan.node, gpus).written(plan)


def written_plans(plan: Plan, deals: Iterable[Deal]) -> dict[str, WrittenPlan]:
    """The plans for the members of a gang, by uid; *plan* is their common part."""
    return {deal.record.uid: deal.written(plan) for deal in deals}


def with_worth(plan: Plan, kind: MachineKind, request: GpuRequest, gpus: int) -> Plan:
    """*plan* for other GPUs. The estimate for the gang is then unknown."""
    link, gbytes_per_s = _worth(kind, request, gpus)
    return msgspec.structs.replace(plan, link=link, gbytes_per_s=gbytes_per_s, communicator=None)


@while_alive(65536)
def _worth(kind: MachineKind, request: GpuRequest, gpus: int) -> tuple[str, float]:
    worth = kind.worth(request)
    link = LinkClass(int(worth.ring_classes[gpus]))
    return vendor_of(kind.machine).word_of(link), float(worth.values[gpus])


def in_term(written: WrittenPlan, leader: int) -> WrittenPlan:
    """The plan as this leader confirms it: a Binding that names an earlier leader is refused."""
    if written.plan.leader == leader:
        return written
    return WrittenPlan(msgspec.structs.replace(written.plan, leader=leader), written.gpus)


def plan_id(namespace: str, name: str, epoch: int, now: float, uids: Sequence[str]) -> str:
    """An id that differs for every plan; it is not random, so that a run can be repeated."""
    digest = blake2b(repr((namespace, name, epoch, now, sorted(uids))).encode(), digest_size=6)
    return digest.hexdigest()


class PlanCorrections:
    """Corrects the plans of running pods to what the kubelet really did: the kubelet is the
    truth."""

    def __init__(self, cache: Cache, pending_writes: PendingWrites) -> None:
        self._cache, self._pending_writes = cache, pending_writes
        # uid -> the swapped GPUs already counted
        self._counted: dict[str, frozenset[str]] = cache.memory.dict()
        self.swaps = 0

    def look(self, now: float, surviving: Callable[[object], AbstractContextManager[None]]) -> None:
        """Correct all mismatches; *surviving* keeps one defect from affecting the other pods."""
        for mismatch in list(self._cache.mismatches.values()):
            if mismatch.record.left_alone:
                continue
            with surviving(mismatch.record.ref):
                self._correct(mismatch, now)

    def _correct(self, mismatch: Mismatch, now: float) -> None:
        record = mismatch.record
        info = self._cache.nodes[record.node]
        assert info.machine is not None
        assert info.kind is not None
        assert record.written is not None
        real = frozenset(uuid for gpus in mismatch.gpus.values() for uuid in gpus)
        plan = msgspec.structs.replace(record.written.plan, node=record.node)
        request = GpuRequest(record.demand, record.ask.requirement)
        plan = with_worth(plan, info.kind, request, info.machine.mask_of(real))
        truth = WrittenPlan(plan, mismatch.gpus)
        self._pending_writes.correct(record, truth, now)
        if mismatch.swapped and self._counted.get(record.uid) != real:
            self._counted[record.uid] = real
            self.swaps += 1
            message = "the kubelet gave this pod other GPUs than planned; the plan was corrected"
            self._pending_writes.say(record.ref, "GpuSwap", message, now)
