"""Waiting for what other threads do: until it is so, not for so long."""

import time
from collections.abc import Callable

DEADLINE_SECONDS = 15.0  # far beyond what anything takes, so that only a fault runs into it


def wait_for(predicate: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {DEADLINE_SECONDS:g} s still not so: {what}")
        time.sleep(0.005)
