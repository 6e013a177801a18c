"""What both commands share: progress and errors on stderr, files on disk."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from bench.replay.errors import TraceError
from linkwise.replay.errors import ReplayError

_BETWEEN_SECONDS = 0.2  # between two updates of the bar


@contextmanager
def progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal, and the wall time at the end. Yields a function that takes
    the number of jobs done."""
    # Imported here: an installation without these commands, as in the image, has no rich.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    began = shown = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task(name, total=total)

    def advance(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown > _BETWEEN_SECONDS:
            shown = now
            bar.update(task, completed=done)

    with bar:
        yield advance
    took = time.monotonic() - began
    console.print(f"{name}: {took:.1f} s", markup=False, highlight=False)


def write_file(file: Path | None, text: Callable[[], str]) -> None:
    """Write *text()* to *file*, if there is one. Raises TraceError if that fails."""
    if file is None:
        return
    try:
        file.write_text(text(), encoding="utf-8")
    except OSError as error:
        problem = error.strerror or str(error)
        raise TraceError(file, None, problem, "a file that can be written") from error


@contextmanager
def ending_well() -> Iterator[None]:
    """Turn a wrong request into one line and exit status 2."""
    try:
        yield
    except ReplayError as error:
        click.echo(f"bench.replay: {error}", err=True)
        sys.exit(2)
