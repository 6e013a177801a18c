"""Waits for a condition by polling, up to a deadline, and says what was missing."""

import time
from collections.abc import Callable

from tests.cluster.support.host.processes import LoggedProcess

_EVERY_SECONDS = 0.05


def wait_for(
    so: Callable[[], object], what: str, seconds: float = 60.0, *, of: LoggedProcess | None = None
) -> None:
    """Return once *so* is true. Raises AssertionError after *seconds*, and ProcessError as soon as
    *of*, the process it depends on, has ended."""
    deadline = time.monotonic() + seconds
    while not so():
        if of:
            of.check()
        if time.monotonic() > deadline:
            log = f"; {of.log} ends:\n{of.log_tail()}" if of else ""
            raise AssertionError(f"after {seconds:g} s still not so: {what}{log}")
        time.sleep(_EVERY_SECONDS)
