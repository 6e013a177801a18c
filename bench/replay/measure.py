"""The figures of a replay.

`Run.stretch` decides beforehand whether a run takes longer on slow GPUs. Figures of unstretched
runs show what each placement would cost its own job, while all schedulers have the same work.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from linkwise.replay.jobs import Fleet, Run

LARGE = 8  # GPUs of a job that has figures of its own
# Shorter jobs count as if they took this long, or the shortest jobs would dominate a mean of
# slowdowns. The usual bound of bounded slowdown (Feitelson and Rudolph, JSSPP 1998).
BOUND_SECONDS = 10.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one scheduler on one trace. Shares are 0 to 1; NaN is null: there was no
    such job."""

    jobs: int
    queue_mean_s: float
    queue_p50_s: float
    queue_p99_s: float
    large_jobs: int
    large_queue_mean_s: float | None
    locality: float | None  # share of the jobs with several GPUs that are on the fewest nodes
    nodes_per_fewest: float | None  # mean of nodes used / fewest nodes, of the same jobs
    allocated: float  # share of the GPU time from the first to the last submission
    stretch: float | None  # of jobs with several GPUs, weighted by GPU time
    gbytes_2: float | None  # mean GB/s of the jobs of 2 GPUs
    gbytes_4: float | None  # of 3 or 4
    gbytes_8: float | None  # of 5 to 8
    gbytes_more: float | None
    moves: int
    most_moves: int  # of one job
    lost: float  # the share of the GPU time of all runs that moves lost
    moved_slowdown: float | None  # of the jobs that were moved
    slowdown: float  # (queue + stretched run time) / run time, bounded, the mean


def figures(runs: Sequence[Run], fleet: Fleet, communication: float) -> Figures:
    """*communication* is the share of a job's run time on its best GPUs, 0 to 1."""
    queued = np.array([run.queued for run in runs])
    seconds = np.array([run.job.seconds for run in runs])
    gpus = np.array([run.job.gpus for run in runs])
    stretch = np.array([fleet.stretch(run, communication) for run in runs])
    large, several = gpus >= LARGE, gpus > 1
    fewest = np.array([fleet.fewest_nodes(run.job) for run in runs])
    used = np.array([len(run.parts) for run in runs])
    gbytes = np.array([fleet.bandwidth(run.parts) if run.job.gpus > 1 else 0.0 for run in runs])
    lost = np.array([run.lost for run in runs])
    moved = np.array([bool(run.moves) for run in runs])
    slowdown = (queued + seconds * stretch + lost) / np.maximum(seconds, BOUND_SECONDS)
    return Figures(
        jobs=len(runs),
        queue_mean_s=float(queued.mean()),
        queue_p50_s=float(np.percentile(queued, 50)),
        queue_p99_s=float(np.percentile(queued, 99)),
        large_jobs=int(large.sum()),
        large_queue_mean_s=_mean(queued[large]),
        locality=_mean(used[several] <= fewest[several]),
        nodes_per_fewest=_mean(used[several] / fewest[several]),
        allocated=_allocated(runs, fleet),
        stretch=_mean(stretch[several], (gpus * seconds)[several]),
        gbytes_2=_mean(gbytes[gpus == 2]),
        gbytes_4=_mean(gbytes[(gpus > 2) & (gpus <= 4)]),
        gbytes_8=_mean(gbytes[(gpus > 4) & (gpus <= 8)]),
        gbytes_more=_mean(gbytes[gpus > 8]),
        moves=sum(len(run.moves) for run in runs),
        most_moves=max(len(run.moves) for run in runs),
        lost=float((lost * gpus).sum() / max((seconds * gpus).sum(), 1.0)),
        moved_slowdown=_mean(np.maximum(slowdown, 1.0)[moved]),
        slowdown=float(np.maximum(slowdown, 1.0).mean()),
    )


def _allocated(runs: Sequence[Run], fleet: Fleet) -> float:
    begin = min(run.job.submit for run in runs)
    end = max(run.job.submit for run in runs)
    if end == begin:
        end = max(max(run.end for run in runs), begin + 1.0)
    used = math.fsum(
        max(min(run.end, end) - max(run.start, begin), 0.0) * run.job.gpus for run in runs
    )
    return used / (fleet.gpus * (end - begin))


def _mean(values: NDArray[np.generic], weights: NDArray[np.generic] | None = None) -> float | None:
    if not values.size:
        return None
    numbers = values.astype(np.float64)
    if weights is None or not weights.any():
        return float(numbers.mean())
    return float(np.average(numbers, weights=weights.astype(np.float64)))
