"""The last weeks as they were and as they would have been, as values; docs/what-if.md describes
them.

Times are seconds since 1970, bandwidths GB/s, waits seconds. None: no job provides it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from linkwise.cli.what_if.given.machines import Guess, LeftOut

AS_IT_WAS, STOCK, LINKWISE = "as_it_was", "kube_scheduler", "linkwise"


@dataclass(frozen=True, slots=True)
class Outcome:
    gbytes_per_s: float | None  # mean of the judged jobs
    of_best: float | None  # 0 to 1: mean of each job's share of its best
    queue_mean_s: float | None
    queue_p90_s: float | None
    queue_longest_s: float | None
    large_queue_mean_s: float | None  # of jobs with at least eight GPUs
    waiting: int  # jobs that had not started at the end
    waited_hours: float  # hours in which some job waited
    idle_gpu_hours: float  # unused GPUs during these hours


@dataclass(frozen=True, slots=True)
class JobThere:
    """A job with several GPUs, or one that waited. By scheduler; None: not started, or unknown."""

    job: str
    gpus: int
    pods: int
    submit: float
    queued_s: Mapping[str, float | None]
    nodes: Mapping[str, int | None]
    gbytes_per_s: Mapping[str, float | None]
    best_gbytes_per_s: float | None
    presumed: bool  # True if its GPUs are presumed


@dataclass(frozen=True, slots=True)
class Ignored:
    because: str
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PastAnswer:
    begin: float  # submission of the first job
    at: float
    nodes: int
    gpus: int
    jobs: int
    gangs: int
    pods: int
    running: int  # jobs
    judged: int  # jobs with several GPUs whose facts are all known
    outcomes: Mapping[str, Outcome]  # by scheduler
    there: tuple[JobThere, ...]  # by time of submission
    guesses: tuple[Guess, ...]
    left_out: tuple[LeftOut, ...]
    ignored: tuple[Ignored, ...]
    presumed: tuple[str, ...]  # pods whose GPUs neither a plan nor a plugin names
    notes: tuple[str, ...]
