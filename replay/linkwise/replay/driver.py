"""Runs a trace in simulated time: the clock jumps from one event to the next.

A `Contestant` is what is compared: Linkwise's core, or a baseline. All get the same jobs at the
same times, and a job ends when its duration is over.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import Protocol

from linkwise.replay.errors import ReplayError
from linkwise.replay.jobs import Job, Run

# If the core asks to run again at once, it runs this much later.
_SHORTEST_SECONDS = 0.05
# Longest time without an event while jobs wait and none runs.
_STUCK_SECONDS = 86_400.0


class Contestant(Protocol):
    """Decides when a job starts and where. `settle` runs after all events of one time."""

    def submit(self, job: Job, now: float) -> None: ...

    def end(self, run: Run, now: float) -> None: ...

    def settle(self, now: float) -> Sequence[Run]:
        """Return the jobs that start now."""

    def take_evicted(self) -> Sequence[str]:
        """Return the names of the jobs that were evicted since the last call. They start again."""

    def next_due(self) -> float | None:
        """Return when `settle` must run without an event; None: never."""


def replay(
    jobs: Sequence[Job],
    contestant: Contestant,
    progress: Callable[[int], object] = lambda _: None,
    stretch: Callable[[Run], float] = lambda _: 1.0,
    until: float = math.inf,
) -> list[Run]:
    """Run all *jobs*, which are in order of submission. Report to *progress* how many have ended.

    *stretch* returns the factor by which a run is longer than its job says; no scheduler knows it
    in advance. With *until*, decisions stop after that second: some jobs may then still run and
    others wait. Without it, every job has to end.

    A job that is moved loses as much of its run as the move costs it, and what it waits.

    Raises ReplayError if a job never starts although nothing prevents it.
    """
    runs: list[Run] = []
    numbers: dict[str, int] = {}  # job name -> index of its run
    ends: list[tuple[float, int]] = []  # an entry that is not its run's end is outdated
    stopped: dict[str, float] = {}  # the jobs that are evicted and have not started again, and when
    coming, ended, happened = 0, 0, 0.0
    now = jobs[0].submit if jobs else 0.0
    while ended < len(jobs) and now <= until:
        while ends and ends[0][0] <= now:
            at, number = heappop(ends)
            run = runs[number]
            if run.end == at and run.job.name not in stopped:
                contestant.end(run, now)
                ended, happened = ended + 1, now
        while coming < len(jobs) and jobs[coming].submit <= now:
            contestant.submit(jobs[coming], now)
            coming, happened = coming + 1, now
        begun = contestant.settle(now)
        stopped |= dict.fromkeys(contestant.take_evicted(), now)
        for started in begun:
            name = started.job.name
            if name in stopped:
                before = runs[number := numbers[name]]
                at = stopped.pop(name)
                lost = min(before.job.move_cost or 0.0, at - (before.moves or (before.start,))[-1])
                run = runs[number] = replace(
                    before,
                    parts=started.parts,
                    moves=(*before.moves, now),
                    lost=before.lost + lost + now - at,
                )
            else:
                number = numbers[name] = len(runs)
                run = replace(started, stretch=stretch(started))
                runs.append(run)
            heappush(ends, (run.end, number))
            happened = now
        progress(ended)
        next_event = min(
            ends[0][0] if ends else math.inf,
            jobs[coming].submit if coming < len(jobs) else math.inf,
        )
        due = contestant.next_due()
        wake = math.inf if due is None else max(due, now + _SHORTEST_SECONDS)
        now = min(next_event, wake)
        is_stuck = next_event == math.inf and now - happened > _STUCK_SECONDS
        if ended < len(jobs) and until == math.inf and is_stuck:
            ran = {run.job.name for run in runs}
            waiting = [job.name for job in jobs if job.name not in ran]
            raise ReplayError(
                f"job {waiting[0]}: waits on an idle cluster, as do {len(waiting) - 1} others"
                ": expected that it starts"
            )
    return runs
