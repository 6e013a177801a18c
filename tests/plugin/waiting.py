"""Waiting for what other threads do: until it is so, with a deadline that only a fault meets."""

import time
from collections.abc import Callable

DEADLINE_SECONDS = 15.0


def wait_for(predicate: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {DEADLINE_SECONDS:g} s still not so: {what}")
        time.sleep(0.005)
