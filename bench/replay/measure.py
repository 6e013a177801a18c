"""The figures of a replay, of all jobs and of the large ones.

`Run.stretch` decides beforehand whether a run takes longer on slow GPUs. Figures of unstretched
runs show what each placement would cost its own job, while all schedulers have the same work.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from linkwise.replay.jobs import Fleet, Run

# Figures are of the jobs of so many GPUs or more: of all, of a whole node of most machines, and of
# many nodes. What harms the largest jobs hardly shows in the mean of all.
SIZES = (1, 8, 64, 256)
LARGE = 8
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
    queue_max_s: float
    slowdown: float  # (queue + stretched run time) / run time, bounded, the mean
    locality: float | None  # share of the jobs with several GPUs that are on the fewest nodes
    leaf_locality: float | None  # of the same jobs: on the fewest leaves; None: there are no leaves
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


BySize: TypeAlias = dict[int, Figures]
"""One of SIZES -> the figures of the jobs of so many GPUs or more. Sizes without jobs are left
out."""


def figures(runs: Sequence[Run], fleet: Fleet, communication: float) -> BySize:
    """*communication* is the share of a job's run time on its best GPUs, 0 to 1."""
    gpus = np.array([run.job.gpus for run in runs])
    queued = np.array([run.queued for run in runs])
    seconds = np.array([run.job.seconds for run in runs])
    stretch = np.array([fleet.stretch(run, communication) for run in runs])
    gbytes = np.array([fleet.bandwidth(run.parts) if run.job.gpus > 1 else 0.0 for run in runs])
    fewest = np.array([fleet.fewest_nodes(run.job) for run in runs])
    used = np.array([len(run.parts) for run in runs])
    leaves = np.array([fleet.leaves(part.node for part in run.parts) for run in runs])
    moves = np.array([len(run.moves) for run in runs])
    lost = np.array([run.lost for run in runs])
    allocated = _allocated(runs, fleet)
    slowdown = np.maximum(
        (queued + seconds * stretch + lost) / np.maximum(seconds, BOUND_SECONDS), 1
    )

    def of(these: NDArray[np.bool_]) -> Figures:
        several = these & (gpus > 1)

        def gbytes_of(least: int, most: float = math.inf) -> float | None:
            return _mean(gbytes[these & (gpus >= least) & (gpus <= most)])

        return Figures(
            jobs=int(these.sum()),
            queue_mean_s=float(queued[these].mean()),
            queue_p50_s=float(np.percentile(queued[these], 50)),
            queue_p99_s=float(np.percentile(queued[these], 99)),
            queue_max_s=float(queued[these].max()),
            slowdown=float(slowdown[these].mean()),
            locality=_mean((used <= fewest)[several]),
            leaf_locality=_mean((leaves <= -(-fewest // fleet.nodes_per_leaf))[several])
            if fleet.nodes_per_leaf
            else None,
            nodes_per_fewest=_mean((used / fewest)[several]),
            allocated=float(allocated[these].sum()),
            stretch=_mean(stretch[several], (gpus * seconds)[several]),
            gbytes_2=gbytes_of(2, 2),
            gbytes_4=gbytes_of(3, 4),
            gbytes_8=gbytes_of(5, 8),
            gbytes_more=gbytes_of(9),
            moves=int(moves[these].sum()),
            most_moves=int(moves[these].max()),
            lost=float((lost * gpus)[these].sum() / max((seconds * gpus)[these].sum(), 1.0)),
            moved_slowdown=_mean(slowdown[these & (moves > 0)]),
        )

    return {least: of(gpus >= least) for least in SIZES if (gpus >= least).any()}


def _allocated(runs: Sequence[Run], fleet: Fleet) -> NDArray[np.float64]:
    """The share of the cluster's GPU time that each run had between the first and the last
    submission."""
    begin = min(run.job.submit for run in runs)
    end = max(run.job.submit for run in runs)
    if end == begin:
        end = max(max(run.end for run in runs), begin + 1.0)
    used = [max(min(run.end, end) - max(run.start, begin), 0.0) * run.job.gpus for run in runs]
    return np.array(used) / (fleet.gpus * (end - begin))


def _mean(values: NDArray[np.generic], weights: NDArray[np.generic] | None = None) -> float | None:
    if not values.size:
        return None
    numbers = values.astype(np.float64)
    if weights is None or not weights.any():
        return float(numbers.mean())
    return float(np.average(numbers, weights=weights.astype(np.float64)))
