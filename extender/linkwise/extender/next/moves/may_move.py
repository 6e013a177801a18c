"""Which pods may be moved, and why the others stay."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from linkwise.extender.next.core_settings import MovePolicy
from linkwise.extender.next.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.next.queue.run_times import Tenant
from linkwise.extender.state.records import PodRecord

_MOST_REMEMBERED = 20_000
# A pod that has run for less than this many times the cost of its move stays: the shorter its run,
# the more of it a restart takes away.
_RUN_TIMES = 10.0


class Stays(Enum):
    """Why a pod is not moved."""

    LEFT_ALONE = "its namespace is none of those whose pods Linkwise places"
    GANG = "it is a member of a gang"
    SHARES = "it has replicas or MIG devices that Linkwise did not choose"
    NO_CONSENT = "it does not consent, or its controller does not recreate evicted pods"
    STARTS = "it has not started yet"
    TOO_SOON = "it consents once it has run for longer"
    LEAVES = "it is ending already"
    ENDS = "it is expected to end sooner than a move is worth"
    AGAIN = "it was moved, or could not be evicted, not long ago"
    BUDGET = "a PodDisruptionBudget protects it"
    NO_PLACE = "no other node has room for it with GPUs that are linked as well"


class MayMove(Part):
    def __init__(self, books: Books, *, policy: MovePolicy, budgets: DisruptionBudgets) -> None:
        super().__init__(books)
        self._policy, self._budgets = policy, budgets
        # uid -> until when the pod stays, and why
        self._stay: dict[str, tuple[float, Stays]] = books.cache.memory.dict()
        self.notes = 0  # of pods that stay
        # uid -> when the pod was moved, and how many GPU seconds that lost; the oldest first
        self._moved: dict[str, tuple[float, float]] = {}

    def pod_changed(self, record: PodRecord) -> None:
        if record.written is not None and (moved := record.written.plan.moved):
            self.stays(record.uid, moved + self._policy.again_seconds, Stays.AGAIN)
            if record.uid in self._moved:
                return  # what it says later of its cost is not what the move has lost
            if len(self._moved) >= _MOST_REMEMBERED:
                del self._moved[next(iter(self._moved))]
            lost = self._policy.cost_of(record) * len(record.written.uuids)
            self._moved[record.uid] = moved, lost

    def lost_since(self, when: float) -> float:
        """GPU seconds that moves since then have lost, by the plans of the pods that were moved."""
        self._moved = {uid: each for uid, each in self._moved.items() if each[0] >= when}
        return sum(lost for _, lost in self._moved.values())

    def stays(self, uid: str, until: float, why: Stays) -> None:
        """The pod is not moved before that time."""
        if len(self._stay) >= _MOST_REMEMBERED:
            del self._stay[next(iter(self._stay))]
        self._stay[uid] = until, why
        self.notes += 1

    @contextmanager
    def supposing(self) -> Iterator[None]:
        """What is noted of pods that stay is forgotten in the end."""
        before = dict(self._stay)
        yield
        self._stay.clear()
        self._stay.update(before)

    def consents(self, record: PodRecord) -> bool:
        """Now, or once it has run for longer."""
        return self._policy.consents_after(record) < math.inf

    def why_not(
        self, record: PodRecord, now: float, *, supposing_consent: bool = False
    ) -> Stays | None:
        """Why the pod may not be moved, whatever it is moved for; None: it may be, unless it
        `ends_soon`. Of a gang, all members have to move, or one that it can spare.
        *supposing_consent*: as if all pods consented that could."""
        if record.left_alone:
            return Stays.LEFT_ALONE
        consents_after = self._policy.consents_after(record)
        if consents_after == math.inf and supposing_consent and self._policy.could_consent(record):
            consents_after = 0.0
        if consents_after == math.inf:
            return Stays.NO_CONSENT
        if not record.live:
            return Stays.LEAVES
        if not record.admitted:
            return Stays.STARTS
        if _run_seconds(record, now) < consents_after:
            return Stays.TOO_SOON
        if record.shares and not has_planned_shares(record):
            return Stays.SHARES
        until, why = self._stay.get(record.uid, (-math.inf, Stays.AGAIN))
        if now < until:
            return why
        return None if self._budgets.allow([record]) else Stays.BUDGET

    def has_run(self, record: PodRecord, now: float, cost_seconds: float) -> bool:
        """Whether the pod has run for long enough to be moved at this cost."""
        return _run_seconds(record, now) >= _RUN_TIMES * cost_seconds

    def tenant(self, record: PodRecord, now: float) -> Tenant:
        return self._running_pods.tenant(record, now)

    def ends_soon(self, tenant: Tenant, record: PodRecord, now: float) -> bool:
        """Whether it is to end before it has run for as long again as its move costs."""
        return tenant.end - now < self._policy.cost_of(record)


def _run_seconds(record: PodRecord, now: float) -> float:
    written = record.plan_for(record.node)
    return now - (record.created if written is None else written.plan.made)


def has_planned_shares(record: PodRecord) -> bool:
    """Whether kube-scheduler asked the extender about the shares that the pod has: then it asks
    about those of its replacement, too."""
    written = record.plan_for(record.node)
    return written is not None and bool(written.plan.shares)
