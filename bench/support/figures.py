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
    """A Markdown table, the first column to the left and figures to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = [
        "-" * width if place == 0 else "-" * (width - 1) + ":" for place, width in enumerate(widths)
    ]
    for cells in (header, rule, *rows):
        aligned = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        click.echo(f"| {' | '.join(aligned)} |")


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
