"""What an operator decides about placing, waiting and evicting; each default has its reason."""

import math
from dataclasses import dataclass

from linkwise.extender.moves.policy import NO_MOVES, MovePolicy
from linkwise.extender.preemption.policy import Preempt
from linkwise.extender.queue.queue_order import QueueOrder
from linkwise.pods.annotations import PodRequest
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs
from linkwise.pods.spans import DEFAULT_LEVELS
from linkwise.topology.names import DEFAULT_RESOURCE


@dataclass(frozen=True, slots=True)
class CoreSettings:
    resource_name: str = DEFAULT_RESOURCE
    # Long enough to pull a training image on a cold node, short enough that a partial gang does
    # not block GPUs for a night.
    gang_timeout_seconds: float = 600.0
    # From when the members of a wave are ready until those of the next one exist. Long enough for
    # what an operator may wait for beside them.
    wave_seconds: float = 1800.0
    # How long the place of a lost member is kept beyond its Job's back-off: for the operator, and a
    # node's clean-up.
    replacement_seconds: float = 60.0
    max_refusals: int = 3  # plans of one gang that kube-scheduler may refuse in a row
    # Only a node autoscaler gains by it: kube-scheduler tries pods without a gate again and again.
    # None: never.
    lift_gates_after_seconds: float | None = None
    # Of the GPUs that a gang could use, half may be reserved for all that wait for them; new pods
    # may use the other half. The first in the scheduling queue gets its reservation in any case,
    # or it would starve.
    reserve_share: float = 0.5
    # A gang that needs more than the share leaves GPUs idle while it collects them. Longer than
    # most jobs of minutes, which then make room for it; shorter than a working day.
    reserve_limit_seconds: float = 7200.0
    # The eviction of a gang loses the work of all its members, so its owner must allow it.
    preempt: Preempt = Preempt.CONSENTING
    # (namespace, seconds): its pods may be evicted once they have been idle for so long.
    reclaim_idle: tuple[tuple[str, float], ...] = ()
    # Between the Event and the eviction: long enough for a person to save what a notebook has.
    reclaim_notice_seconds: float = 600.0
    # A move restarts a pod, so its owner and the operator must both allow it.
    moves: MovePolicy = NO_MOVES
    # What users expect; any other order changes whom they wait for.
    queue_order: QueueOrder = QueueOrder.AGE
    span_levels: tuple[str, ...] = DEFAULT_LEVELS  # of domains above the node, nearest first
    indexed_jobs: IndexedJobs = IndexedJobs.ALL  # which of them are gangs; many are shards
    # For a canary: the pods of all other namespaces are left alone. Empty: of none.
    namespaces: tuple[str, ...] = ()

    def may_be_evicted(self, namespace: str, ask: PodRequest) -> bool:
        """Whether a pod may be evicted for a more important one, or for being idle."""
        if self.preempt is Preempt.LOWER_PRIORITY or ask.preemptible:
            return True
        idle = ask.reclaim_seconds
        if idle is None:
            idle = dict(self.reclaim_idle).get(namespace, math.inf)
        return idle < math.inf
