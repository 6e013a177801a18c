"""What the parts of the core share about what waits and what runs, beside `GangBooks`."""

from collections.abc import Sequence

from linkwise.extender.api.timers import Agenda
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.pending_writes import PendingWrites
from linkwise.extender.gangs.books import GangBooks, GangPart
from linkwise.extender.queue.queue_order import QueueOrder
from linkwise.extender.queue.reservations import Reservations
from linkwise.extender.queue.run_times import RunTimes
from linkwise.extender.queue.running_pods import RunningPods
from linkwise.extender.queue.scheduling_queue import Ages, SchedulingQueue


class Books(GangBooks):
    def __init__(
        self,
        cache: Cache,
        pending_writes: PendingWrites,
        agenda: Agenda,
        *,
        levels: Sequence[str],
        order: QueueOrder,
        ages: Ages,
        run_times: RunTimes,
    ) -> None:
        """*ages* and *run_times* outlive a term."""
        super().__init__(cache, pending_writes, agenda, levels=levels)
        self.run_times, self.running_pods = run_times, RunningPods(cache, run_times)
        self.queue = SchedulingQueue(cache, self.registry, ages, order, run_times)
        self.reservations = Reservations(
            cache,
            queue=self.queue,
            node_filters=self.node_filters,
            running_pods=self.running_pods,
            run_times=run_times,
        )


class Part(GangPart):
    def __init__(self, books: Books) -> None:
        super().__init__(books)
        self._queue, self._reservations = books.queue, books.reservations
        self._running_pods = books.running_pods
