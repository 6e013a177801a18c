"""Figures for people and programs: a Markdown table, and CSV."""

import csv
import math
from collections.abc import Callable, Iterable
from io import StringIO
from statistics import fmean, stdev
from typing import NamedTuple, TypeAlias

import msgspec

from bench.replay import plots
from bench.replay.measure import LARGE, SIZES, BySize, Figures
from bench.support.figures import markdown

# name of a scheduler -> seed -> its figures on that trace
Results: TypeAlias = dict[str, dict[int, BySize]]


class _Column(NamedTuple):
    title: str
    value: Callable[[Figures], float | None]
    places: int

    def text(self, traces: Iterable[Figures]) -> str:
        """Return the figure; of several traces the mean, and its standard error."""
        values = [value for each in traces if (value := self.value(each)) is not None]
        if not values:
            return "–"
        mean = f"{fmean(values):,.{self.places}f}"
        if len(set(values)) == 1:
            return mean
        return f"{mean} ± {stdev(values) / math.sqrt(len(values)):,.{self.places}f}"


_COLUMNS = (
    _Column("jobs", lambda f: f.jobs, 0),
    _Column("queue mean s", lambda f: f.queue_mean_s, 0),
    _Column("p50 s", lambda f: f.queue_p50_s, 0),
    _Column("p99 s", lambda f: f.queue_p99_s, 0),
    _Column("longest s", lambda f: f.queue_max_s, 0),
    _Column("slowdown", lambda f: f.slowdown, 2),
    _Column("locality", lambda f: f.locality, 3),
    _Column("by leaf", lambda f: f.leaf_locality, 3),
    _Column("nodes / fewest", lambda f: f.nodes_per_fewest, 2),
    _Column("allocated", lambda f: f.allocated, 3),
    _Column("stretch", lambda f: f.stretch, 3),
    _Column("GB/s, 2 GPUs", lambda f: f.gbytes_2, 1),
    _Column("3 to 4", lambda f: f.gbytes_4, 1),
    _Column("5 to 8", lambda f: f.gbytes_8, 1),
    _Column("more", lambda f: f.gbytes_more, 1),
    _Column("moves", lambda f: f.moves, 0),
    _Column("lost", lambda f: f.lost, 5),
    _Column("slowdown of moved", lambda f: f.moved_slowdown, 2),
)


def table(results: Results) -> str:
    """Return a table with one line for each size of jobs and scheduler; without the columns of
    which no line has a figure."""
    cells = [["scheduler", "GPUs", *(column.title for column in _COLUMNS)]]
    for size in SIZES:
        for name, traces in results.items():
            found = [by_size[size] for by_size in traces.values() if size in by_size]
            if found:
                cells.append([name, f"≥ {size}", *(c.text(found) for c in _COLUMNS)])
    columns = [column for column in zip(*cells, strict=True) if {*column[1:]} != {"–"}]
    return markdown([*zip(*columns, strict=True)])


def as_csv(results: Results) -> str:
    """Return all figures unrounded, one line for each scheduler, seed and size of jobs."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["scheduler", "seed", "gpus_at_least", *Figures.__struct_fields__])
    for name, traces in results.items():
        for seed, by_size in traces.items():
            for size, found in by_size.items():
                writer.writerow([name, seed, size, *msgspec.structs.astuple(found)])
    return text.getvalue()


def as_plot(results: Results) -> str:
    """Plot against the mean queue how close together jobs are, and how long the large ones wait, as
    SVG; of several traces the means. Jobs of one GPU have no locality. Raises ReplayError without
    matplotlib."""
    queues = {
        name: fmean(by_size[1].queue_mean_s for by_size in traces.values())
        for name, traces in results.items()
    }
    together = {
        name: (queues[name], share)
        for name, traces in results.items()
        if (share := _mean(by_size[1].locality for by_size in traces.values())) is not None
    }
    # Queues differ by orders of magnitude. One of less than a second is shown as a second.
    large = {
        name: (max(queues[name], 1.0), max(waits, 1.0))
        for name, traces in results.items()
        if (waits := _mean(f[LARGE].queue_mean_s for f in traces.values() if LARGE in f))
        is not None
    }
    x = "queue, mean seconds"
    locality = plots.Axis("locality: share of the jobs on the fewest nodes", -0.05, 1.05)
    waited = plots.Axis(f"queue of jobs of ≥ {LARGE} GPUs, mean seconds", is_logarithmic=True)
    return plots.points(
        [
            plots.Dots(together, plots.Axis(x, least=0.0), locality),
            plots.Dots(large, plots.Axis(x, is_logarithmic=True), waited),
        ]
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
