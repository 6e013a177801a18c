"""The benchmarks' output: percentiles as Markdown tables, below a line that names the machine.

A figure without its machine means nothing, and one from a shared machine little: compare ratios.
"""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np


def percentile(seconds: Sequence[float], percent: float) -> float:
    """Milliseconds; always one of the values, without interpolation."""
    return float(np.percentile(seconds, percent, method="higher")) * 1000


def milliseconds(number: float) -> str:
    return f"{number:.2f}"


def ratio(number: float, base: float) -> str:
    return f"{number / base:.2f}×" if base else "-"


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    click.echo(markdown([header, *rows]))


def markdown(cells: Sequence[Sequence[str]]) -> str:
    """Return a table. The first row is its head; all columns but the first are right-aligned."""
    first, *others = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = [
        [row[0].ljust(first), *(cell.rjust(w) for cell, w in zip(row[1:], others, strict=True))]
        for row in cells
    ]
    lines.insert(1, ["-" * first, *("-" * (width - 1) + ":" for width in others)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def this_machine() -> str:
    """`AMD EPYC, 2 cores, load 1.9, Python 3.11.2`"""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    load = os.getloadavg()[0]
    version = platform.python_version()
    return f"{model}, {os.cpu_count()} cores, load {load:.1f}, Python {version}"
