"""The queues of the schedulers that Linkwise is compared with. Each is a `Contestant`.

A job is one unit here, whatever pods it has. No scheduler preempts.
"""

from collections import deque
from collections.abc import Sequence

from bench.replay.baselines.device_plugin import nvidias_choice
from bench.replay.baselines.placements import Parts, Placement, lowest
from linkwise.replay.jobs import Fleet, Job, Run


class _Baseline:
    """Keeps the free GPUs; starts and ends jobs."""

    def __init__(self, fleet: Fleet, placement: Placement) -> None:
        self._per_node = fleet.gpus_per_node
        self._placement = placement
        self._prefer = nvidias_choice(fleet.machines)
        self.free = [(1 << fleet.gpus_per_node) - 1] * fleet.nodes

    def find(self, job: Job, free: Sequence[int]) -> Parts | None:
        return self._placement(free, self._per_node, job.pods, self._prefer)

    def start(self, job: Job, parts: Parts, now: float) -> Run:
        for part in parts:
            self.free[part.node] &= ~part.gpus
        return Run(job, now, parts)

    def end(self, run: Run, now: float) -> None:  # noqa: ARG002
        for part in run.parts:
            self.free[part.node] |= part.gpus

    def take_evicted(self) -> Sequence[str]:
        return ()

    def next_due(self) -> float | None:
        return None


class Fifo(_Baseline):
    """Strictly in order: no job passes the first one that waits."""

    def __init__(self, fleet: Fleet, placement: Placement) -> None:
        super().__init__(fleet, placement)
        self._waiting: deque[Job] = deque()

    def submit(self, job: Job, now: float) -> None:  # noqa: ARG002
        self._waiting.append(job)

    def settle(self, now: float) -> Sequence[Run]:
        started = []
        while self._waiting:
            parts = self.find(self._waiting[0], self.free)
            if parts is None:
                break
            started.append(self.start(self._waiting.popleft(), parts, now))
        return started


class Greedy(_Baseline):
    """In order, but skips jobs that do not fit, as kube-scheduler and gang plugins do."""

    def __init__(self, fleet: Fleet, placement: Placement) -> None:
        super().__init__(fleet, placement)
        self._by_size: dict[int, deque[tuple[int, Job]]] = {}
        self._came = 0

    def submit(self, job: Job, now: float) -> None:  # noqa: ARG002
        self._by_size.setdefault(job.gpus, deque()).append((self._came, job))
        self._came += 1

    def settle(self, now: float) -> Sequence[Run]:
        """Free GPUs only decrease meanwhile: if one job of a size does not fit, no other of it
        does."""
        started = []
        tried = {size: queue for size, queue in self._by_size.items() if queue}
        while tried:
            size = min(tried, key=lambda size: tried[size][0][0])
            parts = self.find(tried[size][0][1], self.free)
            if parts is None:
                del tried[size]
                continue
            started.append(self.start(tried[size].popleft()[1], parts, now))
            if not tried[size]:
                del tried[size]
        return started


class Easy(_Baseline):
    """EASY backfilling with true run times. The first job that waits has a reservation at the
    earliest time at which it fits. Other jobs may pass if they do not delay it."""

    def __init__(self, fleet: Fleet, placement: Placement) -> None:
        super().__init__(fleet, placement)
        self._waiting: deque[Job] = deque()
        self._running: dict[str, Run] = {}
        self._reserved_for = ""  # the job's name
        self._begins = 0.0  # when it fits
        self._reserved: list[int] = []  # GPU sets by node

    def submit(self, job: Job, now: float) -> None:  # noqa: ARG002
        self._waiting.append(job)

    def start(self, job: Job, parts: Parts, now: float) -> Run:
        run = super().start(job, parts, now)
        self._running[job.name] = run
        return run

    def end(self, run: Run, now: float) -> None:
        super().end(run, now)
        del self._running[run.job.name]

    def settle(self, now: float) -> Sequence[Run]:
        started = []
        while self._waiting:
            parts = self.find(self._waiting[0], self.free)
            if parts is None:
                break
            started.append(self.start(self._waiting.popleft(), parts, now))
        if len(self._waiting) > 1:
            # A reservation holds until its job starts: no job that passes delays it, and it has
            # counted everything that comes free by then. A job that starts in order may take GPUs
            # that the reservation counts on, and a run may take longer than expected.
            is_over = now >= self._begins
            if started or is_over or self._reserved_for != self._waiting[0].name:
                self._reserve(self._waiting[0], now)
            started += self._let_pass(now)
        return started

    def _reserve(self, first: Job, now: float) -> None:
        self._reserved_for = first.name
        free = list(self.free)
        for run in sorted(self._running.values(), key=lambda run: (run.end, run.job.name)):
            for part in run.parts:
                free[part.node] |= part.gpus
            self._begins = max(run.end, now)
            if self.find(first, free) is not None:
                break
        for run in self._running.values():  # those that end at exactly that time
            if run.end <= self._begins:
                for part in run.parts:
                    free[part.node] |= part.gpus
        # If a node has GPUs to spare by then, reserve those that are not free yet: others may pass
        # there.
        self._reserved = [0] * len(free)
        for part in self.find(first, free) or ():
            count, busy = part.gpus.bit_count(), free[part.node] & ~self.free[part.node]
            later = lowest(busy, min(count, busy.bit_count()))
            rest = lowest(free[part.node] & ~busy, count - later.bit_count())
            self._reserved[part.node] = later | rest

    def _let_pass(self, now: float) -> list[Run]:
        _, *others = self._waiting
        started: list[Run] = []
        no_room: set[int] = set()  # sizes
        too_long: set[int] = set()  # sizes that fit only on reserved GPUs
        for job in others:
            ends_before = now + job.seconds <= self._begins
            if job.gpus in no_room or (not ends_before and job.gpus in too_long):
                continue
            free = self.free if ends_before else self._unreserved()
            parts = self.find(job, free)
            if parts is None:
                (no_room if ends_before else too_long).add(job.gpus)
                continue
            started.append(self.start(job, parts, now))
        if started:
            passed = {run.job.name for run in started}
            self._waiting = deque(job for job in self._waiting if job.name not in passed)
        return started

    def _unreserved(self) -> list[int]:
        return [free & ~kept for free, kept in zip(self.free, self._reserved, strict=True)]
