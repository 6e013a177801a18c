"""What the parts of the core share about what waits and what runs, beside `GangBooks`."""

from collections.abc import Sequence

from linkwise.extender.next.gangs.registry import GangBooks, GangPart
from linkwise.extender.next.queue.reservations import Reservations
from linkwise.extender.next.queue.run_times import RunningPods, RunTimes
from linkwise.extender.next.queue.scheduling_queue import Ages, QueueOrder, SchedulingQueue
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.pending_writes import PendingWrites
from linkwise.extender.state.records import GangKey
from linkwise.extender.state.timers import Agenda


class HeldCalls:
    """The nodes that kube-scheduler asks about in the calls that wait for the plan of a gang.

    A scheduler makes one call at a time, and the names of 5,000 nodes take 300 KiB, so only those
    of the latest few gangs are kept.
    """

    _MOST = 4

    def __init__(self) -> None:
        self._nodes: dict[GangKey, tuple[str, ...]] = {}

    def begin(self, key: GangKey, nodes: tuple[str, ...]) -> None:
        self._nodes.setdefault(key, nodes)
        while len(self._nodes) > self._MOST:
            del self._nodes[next(iter(self._nodes))]

    def end(self, key: GangKey) -> None:
        self._nodes.pop(key, None)

    def nodes(self, key: GangKey) -> tuple[str, ...]:
        return self._nodes.get(key, ())


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
        self.held_calls = HeldCalls()
        self.run_times, self.running_pods = run_times, RunningPods(cache, run_times)
        self.queue = SchedulingQueue(
            cache, registry=self.registry, ages=ages, order=order, run_times=run_times
        )
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
        self._running_pods, self._held_calls = books.running_pods, books.held_calls
