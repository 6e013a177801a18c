"""Figures for people and programs: a Markdown table, and CSV."""

import csv
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from statistics import fmean
from typing import NamedTuple, TypeAlias

import msgspec

from bench.replay import plots
from bench.replay.measure import LARGE, Figures

# name of a scheduler -> seed -> its figures on that trace
Results: TypeAlias = dict[str, dict[int, Figures]]


class _Column(NamedTuple):
    title: str
    value: Callable[[Figures], float | None]
    places: int

    def text(self, found: Iterable[Figures]) -> str:
        """Return the figure; of several traces the mean, and the least to the most of them."""
        values = [value for each in found if (value := self.value(each)) is not None]
        if not values:
            return "–"
        mean, least, most = (
            f"{value:,.{self.places}f}" for value in (fmean(values), min(values), max(values))
        )
        return mean if least == most else f"{mean} ({least} to {most})"


_COLUMNS = (
    _Column("jobs", lambda f: f.jobs, 0),
    _Column("queue mean s", lambda f: f.queue_mean_s, 0),
    _Column("p50 s", lambda f: f.queue_p50_s, 0),
    _Column("p99 s", lambda f: f.queue_p99_s, 0),
    _Column(f"≥ {LARGE} GPUs, mean s", lambda f: f.large_queue_mean_s, 0),
    _Column("locality", lambda f: f.locality, 3),
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
    _Column("slowdown", lambda f: f.slowdown, 2),
)


def table(results: Results) -> str:
    """Return a table with one line for each scheduler."""
    cells = [["scheduler", *(column.title for column in _COLUMNS)]]
    cells += [
        [name, *(c.text(found.values()) for c in _COLUMNS)] for name, found in results.items()
    ]
    return markdown(cells)


def markdown(cells: Sequence[Sequence[str]]) -> str:
    """Return a table. The first row is its head; all columns but the first are right-aligned."""
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    first, *others = widths
    lines = [
        [row[0].ljust(first), *(cell.rjust(w) for cell, w in zip(row[1:], others, strict=True))]
        for row in cells
    ]
    lines.insert(1, ["-" * first, *("-" * (width - 1) + ":" for width in others)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_csv(results: Results) -> str:
    """Return all figures unrounded, one line for each scheduler and seed."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["scheduler", "seed", *Figures.__struct_fields__])
    for name, traces in results.items():
        for seed, found in traces.items():
            writer.writerow([name, seed, *msgspec.structs.astuple(found)])
    return text.getvalue()


def as_plot(results: Results) -> str:
    """Plot against the mean queue how close together jobs are, and how long the large ones wait, as
    SVG; of several traces the means. Jobs of one GPU have no locality. Raises ReplayError without
    matplotlib."""
    queues = {
        name: fmean(found.queue_mean_s for found in traces.values())
        for name, traces in results.items()
    }
    together = {
        name: (queues[name], share)
        for name, traces in results.items()
        if (share := _mean(found.locality for found in traces.values())) is not None
    }
    # Queues differ by orders of magnitude. One of less than a second is shown as a second.
    large = {
        name: (max(queues[name], 1.0), max(waits, 1.0))
        for name, traces in results.items()
        if (waits := _mean(found.large_queue_mean_s for found in traces.values())) is not None
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
