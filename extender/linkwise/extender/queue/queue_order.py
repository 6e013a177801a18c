"""Which of the gangs and pods that wait for GPUs is the most urgent.

Priority comes first. Among equals, the order compares ranks: the times at which they count as
created. By age, that is when they were created. By `multifactor`, a gang or pod counts as younger
the longer it is expected to run, and as older the more GPUs it requests.

Both shifts are bounded, so the order starves no gang and no pod: nothing that comes more than the
largest shifts together after it goes before it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.queue.run_times import PodKind, expected_run_time

Urgency = tuple[int, float, GangKey]
"""Less is more urgent: minus the priority, the rank, and the name as the tie-break."""

# docs/decisions/0026-the-multifactor-order.md says how these were chosen.
RUN_TIME_WEIGHT = 3.0
MOST_RUN_SECONDS = 86_400.0  # servers count as this too
SIZE_SECONDS = 2 * 86_400.0  # for each doubling of the GPUs


class QueueOrder(StrEnum):
    """What orders gangs and pods of equal priority, as the operator configures it."""

    AGE = "age"
    MULTIFACTOR = "multifactor"  # age, expected run time and number of GPUs


@dataclass(frozen=True, slots=True)
class Ordering:
    """The order by the run times that are known at one moment."""

    order: QueueOrder = QueueOrder.AGE
    medians: Mapping[PodKind, float] = field(default_factory=dict)  # seconds

    def urgency(
        self, priority: int, created: float, key: GangKey, pods: Iterable[PodRecord]
    ) -> Urgency:
        """*pods* request GPUs together; *created* is in seconds since 1970, as is the rank."""
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
        gpus, longest = 0, 0.0
        for pod in pods:
            gpus += pod.needs.gpus
            longest = max(longest, expected_run_time(pod, self.medians))
        run_time = RUN_TIME_WEIGHT * min(longest, MOST_RUN_SECONDS)
        return run_time - SIZE_SECONDS * math.log2(max(gpus, 1))
