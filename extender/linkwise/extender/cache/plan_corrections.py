"""Corrects the plans of running pods to what the kubelet really did: the kubelet is the truth."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from linkwise.extender.api.records import WrittenPlan
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.pending_writes import PendingWrites
from linkwise.extender.cache.plan_drift import Mismatch
from linkwise.extender.cache.plans import with_worth


class PlanCorrections:
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
