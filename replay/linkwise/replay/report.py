"""Figures for people and programs: a Markdown table, and CSV."""

import csv
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from typing import NamedTuple

import msgspec

from linkwise.replay import plots
from linkwise.replay.measure import LARGE, Figures


class _Column(NamedTuple):
    title: str
    text: Callable[[Figures], str]


def _number(value: float | None, places: int) -> str:
    return "–" if value is None else f"{value:,.{places}f}"


_COLUMNS = (
    _Column("jobs", lambda f: f"{f.jobs:,}"),
    _Column("queue mean s", lambda f: _number(f.queue_mean_s, 0)),
    _Column("p50 s", lambda f: _number(f.queue_p50_s, 0)),
    _Column("p99 s", lambda f: _number(f.queue_p99_s, 0)),
    _Column(f"≥ {LARGE} GPUs, mean s", lambda f: _number(f.large_queue_mean_s, 0)),
    _Column("locality", lambda f: _number(f.locality, 3)),
    _Column("nodes / fewest", lambda f: _number(f.nodes_per_fewest, 2)),
    _Column("allocated", lambda f: _number(f.allocated, 3)),
    _Column("stretch", lambda f: _number(f.stretch, 3)),
    _Column("slowdown", lambda f: _number(f.slowdown, 2)),
)


def table(results: Mapping[str, Figures]) -> str:
    """Return a table with one line for each scheduler."""
    cells = [["scheduler", *(column.title for column in _COLUMNS)]]
    cells += [[name, *(c.text(found) for c in _COLUMNS)] for name, found in results.items()]
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


def as_csv(results: Mapping[str, Figures]) -> str:
    """Return all figures unrounded, one line for each scheduler."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["scheduler", *Figures.__struct_fields__])
    for name, found in results.items():
        writer.writerow([name, *msgspec.structs.astuple(found)])
    return text.getvalue()


def as_plot(results: Mapping[str, Figures]) -> str:
    """Plot against the mean queue how close together jobs are, and how long the large ones wait, as
    SVG. Jobs of one GPU have no locality. Raises ReplayError without matplotlib."""
    together = {
        name: (found.queue_mean_s, found.locality)
        for name, found in results.items()
        if found.locality is not None
    }
    # Queues differ by orders of magnitude. One of less than a second is shown as a second.
    large = {
        name: (max(found.queue_mean_s, 1.0), max(found.large_queue_mean_s, 1.0))
        for name, found in results.items()
        if found.large_queue_mean_s is not None
    }
    x = "queue, mean seconds"
    locality = plots.Axis("locality: share of the jobs on the fewest nodes", -0.05, 1.05)
    waits = plots.Axis(f"queue of jobs of ≥ {LARGE} GPUs, mean seconds", is_logarithmic=True)
    return plots.points(
        [
            plots.Dots(together, plots.Axis(x, least=0.0), locality),
            plots.Dots(large, plots.Axis(x, is_logarithmic=True), waits),
        ]
    )
