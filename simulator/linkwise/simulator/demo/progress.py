"""Shows progress: a spinner with a clock on a terminal, plain lines in a CI log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

Say = Callable[[str], None]


class Progress:
    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, what: str) -> Iterator[Say]:
        """Show one step, and its duration when it ends.

        The block receives a function that shows how far the step is. A log shows only its last
        text.
        """
        began = time.monotonic()
        latest = ""

        def say(words: str) -> None:
            nonlocal latest
            if words != latest and self._console.is_terminal:
                status.update(f"{escape(what)} [dim]{escape(words)}[/dim]")
            latest = words

        with self._console.status(escape(what)) as status:
            yield say
        took = f"{time.monotonic() - began:.1f} s"
        line = f"{what}: {latest}" if latest else what
        self._console.print(f"{line} ({took})", markup=False, highlight=False)

    def line(self, words: str) -> None:
        self._console.print(words, markup=False, highlight=False, soft_wrap=True)
