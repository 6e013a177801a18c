"""Converts GPUs that were chosen to the plan that is written on the pod.

Both ways to a plan, ahead for a gang and at the bind for a single pod, write the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from linkwise.extender.api.records import PodRecord, WrittenPlan
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest, MachineKind, containers_on
from linkwise.topology.annotations.plan import CommunicatorEstimate, Plan
from linkwise.topology.machine.model import LinkClass, Machine
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
    return LinkClass(int(worth.ring_classes[gpus])).name, float(worth.values[gpus])


def in_term(written: WrittenPlan, leader: int) -> WrittenPlan:
    """The plan as this leader confirms it: a Binding that names an earlier leader is refused."""
    if written.plan.leader == leader:
        return written
    return WrittenPlan(msgspec.structs.replace(written.plan, leader=leader), written.gpus)


def plan_id(namespace: str, name: str, epoch: int, now: float, uids: Sequence[str]) -> str:
    """An id that differs for every plan; it is not random, so that a run can be repeated."""
    digest = blake2b(repr((namespace, name, epoch, now, sorted(uids))).encode(), digest_size=6)
    return digest.hexdigest()
