"""What an operator decides about placing, waiting and evicting; each default has its reason."""

import math
from dataclasses import dataclass
from enum import StrEnum

from linkwise.extender.next.queue.scheduling_queue import QueueOrder
from linkwise.extender.state.records import PodRecord
from linkwise.pods.annotations import PodRequest
from linkwise.pods.podgrouper.recreated import ALWAYS, goes_with_leader
from linkwise.pods.podgrouper.workloads.answer import IndexedJobs
from linkwise.pods.spans import DEFAULT_LEVELS
from linkwise.topology.names import DEFAULT_RESOURCES


class Preempt(StrEnum):
    """Which pods may be evicted for a more important gang, as the operator configures it."""

    NEVER = "never"  # none
    CONSENTING = "consenting"  # those with `linkwise.dev/preemptible: "true"`
    LOWER_PRIORITY = "lower-priority"  # all, as kube-scheduler does for single pods


class Moves(StrEnum):
    """Which pods may be moved, and what that costs, as the operator configures it."""

    NEVER = "never"  # none
    ADVISE = "advise"  # none; which ones would be moved with `consent` is shown
    CONSENT = "consent"  # pods with `linkwise.dev/movable: "true"`, or of a namespace that consents


@dataclass(frozen=True, slots=True)
class MovePolicy:
    moves: Moves = Moves.NEVER
    # Pods may be moved once they have run for so long, unless they say otherwise; infinite: only if
    # they say so. Those of Jobs have to say yes.
    after_seconds: float = math.inf
    namespaces: tuple[tuple[str, float], ...] = ()  # those of which that is different
    cost_seconds: float = 600.0  # of its run that a restart loses, if the pod does not say
    again_seconds: float = 86_400.0  # a pod that was moved stays where it is for so long
    whole_nodes: int = 0  # so many are kept whole by moves
    whole_nodes_cost_seconds: float = 14_400.0  # of GPUs, that all moves of a day may lose for it

    def cost_of(self, pod: PodRecord) -> float:
        """How many seconds of its run the pod loses by a move."""
        said = pod.ask.move_cost_seconds
        return self.cost_seconds if said is None else said

    def consents_after(self, pod: PodRecord) -> float:
        """After how many seconds of its run the pod may be evicted for others, and is then
        recreated; infinite: never."""
        if pod.ask.movable_seconds is not None:
            return pod.ask.movable_seconds if pod.owner_uid else math.inf
        # Of a Job, what it counts as a failure is read only for pods that consent themselves.
        if pod.owner_kind not in ALWAYS:
            return math.inf
        own = (seconds for name, seconds in self.namespaces if name == pod.ref.namespace)
        return next(own, self.after_seconds)

    def could_consent(self, pod: PodRecord) -> bool:
        """Whether its controller recreates an evicted pod, or would: a Job counts no failure if it
        says so."""
        recreates = pod.owner_kind in ALWAYS or pod.owner_kind == "Job"
        return recreates and not goes_with_leader(pod.labels)


NO_MOVES = MovePolicy()


@dataclass(frozen=True, slots=True)
class CoreSettings:
    # Those that are GPUs. A pod takes them by one, and a node has one.
    resource_names: tuple[str, ...] = DEFAULT_RESOURCES
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
