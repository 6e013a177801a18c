"""Makes the plans of running pods say what the kubelet really did: its word is the truth."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import msgspec

from linkwise.extender.api.records import WrittenPlan
from linkwise.extender.cache.cache import Books
from linkwise.extender.cache.pending_writes import Outbox
from linkwise.extender.cache.plan_drift import Mismatch
from linkwise.extender.cache.plans import with_worth


class Corrections:
    def __init__(self, books: Books, outbox: Outbox) -> None:
        self._books, self._outbox = books, outbox
        self._counted: dict[str, frozenset[str]] = {}  # uid -> the swapped GPUs already counted
        self.swaps = 0

    def forget(self, uid: str) -> None:
        self._counted.pop(uid, None)

    def look(self, now: float, surviving: Callable[[object], AbstractContextManager[None]]) -> None:
        """Correct what does not agree; *surviving* keeps one mistake of ours from all others."""
        for mismatch in list(self._books.mismatches.values()):
            with surviving(mismatch.record.ref):
                self._correct(mismatch, now)

    def _correct(self, mismatch: Mismatch, now: float) -> None:
        record = mismatch.record
        book = self._books.nodes[record.node]
        assert book.machine is not None
        assert book.kind is not None
        assert record.written is not None
        real = frozenset(uuid for gpus in mismatch.gpus.values() for uuid in gpus)
        plan = msgspec.structs.replace(record.written.plan, node=record.node)
        truth = WrittenPlan(with_worth(plan, book.kind, book.machine.mask_of(real)), mismatch.gpus)
        self._outbox.correct(record, truth, now)
        if mismatch.swapped and self._counted.get(record.uid) != real:
            self._counted[record.uid] = real
            self.swaps += 1
            message = "the kubelet gave this pod other GPUs than planned; the plan was corrected"
            self._outbox.say(record.ref, "GpuSwap", message, now)
