"""Runs the writes of different pods in parallel, namespaces in turn, and those of one pod in order.

A plan that is withdrawn and replaced is two writes to the same pod, and the second must win. The
members of a gang do not wait for each other. A namespace with thousands of writes delays each other
namespace by one for each thread. The threads are daemons: a write that hangs must not keep the
process alive after SIGTERM.
"""

from collections import deque
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Generic, TypeVar

from linkwise.serving.turns import Turns

Job = TypeVar("Job")


class Lanes(Generic[Job]):
    """Calls `run` with each job; `run` must not raise."""

    def __init__(
        self, run: Callable[[Job], None], *, namespace: Callable[[Job], str], threads: int
    ) -> None:
        """*namespace*: of a job; it is the same for all jobs of a lane."""
        self._run, self._namespace = run, namespace
        self._lanes: dict[Hashable, deque[Job]] = {}  # a lane exists while it has a job
        self._changed = Condition()
        self._ready: Turns[Hashable] = Turns()  # the lanes of which no job runs
        self._calls: SimpleQueue[bool] = SimpleQueue()  # one for each of these; False ends a thread
        self._threads = [
            Thread(target=self._work, name=f"write {number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def add(self, lane: Hashable, job: Job) -> bool:
        """Run *job* after the earlier jobs of *lane*. False: the lane has an equal job already."""
        with self._changed:
            jobs = self._lanes.setdefault(lane, deque())
            if job in jobs:
                return False
            jobs.append(job)
            if len(jobs) == 1:
                self._call(lane, job)
            return True

    def wait_until_idle(self, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._lanes, timeout_seconds)

    def stop(self, timeout_seconds: float) -> bool:
        """Wait up to *timeout_seconds* for the jobs, then end the threads. True: all jobs ended."""
        idle = self.wait_until_idle(timeout_seconds)
        for _ in self._threads:
            self._calls.put(False)
        return idle

    def _call(self, lane: Hashable, job: Job) -> None:
        """Let a thread run *job*, the first of *lane*. The caller holds the lock."""
        self._ready.add(self._namespace(job), lane)
        self._calls.put(True)

    def _work(self) -> None:
        while self._calls.get():
            with self._changed:
                lane = self._ready.take()
                job = self._lanes[lane][0]  # stays first while it runs, so that `add` sees it
            self._run(job)
            with self._changed:
                jobs = self._lanes[lane]
                jobs.popleft()
                if jobs:
                    self._call(lane, jobs[0])
                else:
                    del self._lanes[lane]
                self._changed.notify_all()
