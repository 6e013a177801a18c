"""Which of the gangs and pods that wait for GPUs is the most urgent.

Priority comes first. Among equals, the order compares seniorities: the times at which they count as
created. By age, that is when they were created. By `multifactor`, a gang or pod counts as younger
the longer it is expected to run, and as older the more GPUs it requests.

Both shifts are bounded, so the order starves nothing: no gang or pod of G GPUs passes another of
the same priority that was created `most_passed(G)` seconds earlier.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from linkwise.extender.next.queue.run_times import PodKind, expected_run_time
from linkwise.extender.state.records import GangKey, PodRecord

Urgency = tuple[int, float, GangKey]
"""Less is more urgent: minus the priority, the seniority, and the name as the tie-break."""

# docs/decisions/gangs-and-queue.md#26-the-multifactor-order says how these were chosen.
RUN_TIME_WEIGHT = 10.0
MOST_RUN_SECONDS = 4 * 3600.0  # longer pods and servers count as this
SIZE_SECONDS = 48 * 3600.0  # for each doubling of the GPUs; more than all that run times can do


class QueueOrder(StrEnum):
    """What orders gangs and pods of equal priority, as the operator configures it."""

    AGE = "age"
    MULTIFACTOR = "multifactor"  # age, expected run time and number of GPUs

    @property
    def ahead_from(self) -> int:
        """A single pod of so many GPUs or more that finds no room joins the extender's queue. By
        age, kube-scheduler's own queue does for one GPU: several seldom come free together."""
        return 2 if self is QueueOrder.AGE else 1


@dataclass(frozen=True, slots=True)
class Ordering:
    """The order by the run times that are known at one moment."""

    order: QueueOrder = QueueOrder.AGE
    means: Mapping[PodKind, float] = field(default_factory=dict)  # of run times, in seconds
    broken: frozenset[str] = frozenset()  # namespaces whose declared run times do not count

    def urgency(
        self, priority: int, created: float, key: GangKey, pods: Iterable[PodRecord]
    ) -> Urgency:
        """*pods* request GPUs together; *created* is in seconds since 1970, as is the seniority."""
        return -priority, created + self.shift(pods), key

    def of_single(self, record: PodRecord) -> Urgency:
        """Of a pod without a gang, which is in kube-scheduler's queue and not in the extender's."""
        name = record.ref
        key = GangKey(name.namespace, name.name, name.uid)
        return self.urgency(record.priority, record.created, key, (record,))

    def shift(self, pods: Iterable[PodRecord]) -> float:
        """How many seconds later than they were created *pods* count as created; below 0: earlier.
        Less than two GPUs, also parts of them, count as one."""
        if self.order is QueueOrder.AGE:
            return 0.0
        gpus, expected = self.size_and_run_time(pods)
        return RUN_TIME_WEIGHT * min(expected, MOST_RUN_SECONDS) - _head_start(gpus)

    def size_and_run_time(self, pods: Iterable[PodRecord]) -> tuple[int, float]:
        """The GPUs of all *pods*, and the longest of their `expected_run_time`s in seconds."""
        gpus, longest = 0, 0.0
        for pod in pods:
            gpus += pod.needs.gpus
            longest = max(longest, expected_run_time(pod, self.means, self.broken))
        return gpus, longest


def most_passed(gpus: int) -> float:
    """For how many seconds a gang or pod has to exist so that no new one of *gpus* GPUs and the
    same priority passes it."""
    return RUN_TIME_WEIGHT * MOST_RUN_SECONDS + _head_start(gpus)


def _head_start(gpus: int) -> float:
    return SIZE_SECONDS * math.log2(max(gpus, 1))
