"""What the last weeks were and would have been, as values; docs/what-if.md has them in words.

Times are seconds since 1970, bandwidths GB/s, waits seconds. None: no job tells it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from linkwise.cli.what_if.given.machines import Guess, LeftOut

AS_IT_WAS, STOCK, LINKWISE = "as_it_was", "kube_scheduler", "linkwise"


@dataclass(frozen=True, slots=True)
class Outcome:
    gbytes_per_s: float | None  # the mean of the jobs that are judged
    of_best: float | None  # 0 to 1, the mean of each job's share of its best
    queue_mean_s: float | None
    queue_p90_s: float | None
    queue_longest_s: float | None
    large_queue_mean_s: float | None  # of jobs with eight GPUs or more
    waiting: int  # jobs that had not started in the end
    waited_hours: float  # in which some job waited
    idle_gpu_hours: float  # GPUs that nobody had, in these hours


@dataclass(frozen=True, slots=True)
class JobThere:
    """A job with several GPUs, or one that waited. By scheduler; None: it had not started, or is
    not known."""

    job: str
    gpus: int
    pods: int
    submit: float
    queued_s: Mapping[str, float | None]
    nodes: Mapping[str, int | None]
    gbytes_per_s: Mapping[str, float | None]
    best_gbytes_per_s: float | None
    presumed: bool  # which GPUs it had


@dataclass(frozen=True, slots=True)
class Ignored:
    because: str
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PastAnswer:
    begin: float  # when the first job was submitted
    at: float
    nodes: int
    gpus: int
    jobs: int
    gangs: int
    pods: int
    running: int  # jobs
    judged: int  # jobs with several GPUs of which all is known
    outcomes: Mapping[str, Outcome]  # by scheduler
    there: tuple[JobThere, ...]  # by time of submission
    guesses: tuple[Guess, ...]
    left_out: tuple[LeftOut, ...]
    ignored: tuple[Ignored, ...]
    presumed: tuple[str, ...]  # pods whose GPUs no plan and no plugin names
    notes: tuple[str, ...]
