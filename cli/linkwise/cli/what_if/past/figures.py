"""The results of the jobs under each scheduler, as figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from linkwise.cli.what_if.past.answer import Outcome
from linkwise.cli.what_if.past.ground import Ground
from linkwise.cli.what_if.past.jobs import PastJob
from linkwise.replay.jobs import OnNode

LARGE = 8  # GPUs of a job that has figures of its own
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Fate:
    """The result of a job. `parts` is None if the GPUs are unknown."""

    start: float | None  # seconds since 1970; None: it waits
    parts: tuple[OnNode, ...] | None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """GPUs that a job used; `end` is infinite while it runs."""

    start: float
    end: float
    gpus: int


Fates = Mapping[str, Fate]
"""By the job's name."""


def worth_of(job: PastJob, fate: Fate, ground: Ground) -> float | None:
    """Return GB/s; None for a single GPU, for unknown GPUs, and if each pod is a communicator of
    its own."""
    if job.gpus < 2 or job.apart or fate.start is None or not fate.parts:
        return None
    return ground.worth(fate.parts)


def outcome(
    jobs: Sequence[PastJob],
    fates: Fates,
    uses: Iterable[GpuUse],
    worths: Mapping[str, tuple[float, float]],
    ground: Ground,
    at: float,
) -> Outcome:
    """Compute the figures. *worths*: got and best GB/s of each judged job."""
    queued = np.array([queue_of(job, fates[job.name], at) for job in jobs])
    large = np.array([job.gpus >= LARGE for job in jobs], dtype=np.bool_)
    waits = [(job.submit, _start(fates[job.name], at)) for job in jobs]
    waited, idle = _idle_while_waiting(waits, uses, ground.gpus, at)
    pairs = [worths[job.name] for job in jobs if job.name in worths]
    return Outcome(
        gbytes_per_s=float(np.mean([got for got, _ in pairs])) if pairs else None,
        of_best=float(np.mean([got / best for got, best in pairs])) if pairs else None,
        queue_mean_s=float(queued.mean()) if len(queued) else None,
        queue_p90_s=float(np.percentile(queued, 90)) if len(queued) else None,
        queue_longest_s=float(queued.max()) if len(queued) else None,
        large_queue_mean_s=float(queued[large].mean()) if large.any() else None,
        waiting=sum(fates[job.name].start is None for job in jobs),
        waited_hours=waited,
        idle_gpu_hours=idle,
    )


def queue_of(job: PastJob, fate: Fate, at: float) -> float:
    """Return seconds in the queue; for a waiting job, up to *at*."""
    return max(_start(fate, at) - job.submit, 0.0)


def _start(fate: Fate, at: float) -> float:
    return at if fate.start is None else fate.start


def _idle_while_waiting(
    waits: Iterable[tuple[float, float]], uses: Iterable[GpuUse], gpus: int, at: float
) -> tuple[float, float]:
    """Return the hours in which some job waited, and the unused GPU hours in them."""
    changes: list[tuple[float, int, int]] = []  # time, change of waiting jobs, change of used GPUs
    for begin, end in waits:
        if end > begin:
            changes += [(begin, 1, 0), (min(end, at), -1, 0)]
    for use in uses:
        if use.end > use.start:
            changes += [(min(use.start, at), 0, use.gpus), (min(use.end, at), 0, -use.gpus)]
    waiting = used = 0
    hours = idle = last = 0.0
    for time, more, taken in sorted(changes):
        if waiting:
            hours += (time - last) / _HOUR
            idle += max(gpus - used, 0) * (time - last) / _HOUR
        last, waiting, used = time, waiting + more, used + taken
    return hours, idle
