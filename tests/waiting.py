"""Waiting for what other threads do: until it is so, with a deadline that only a fault meets."""

import time
from collections.abc import Callable


def wait_for(predicate: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:g} s still not so: {what}")
        time.sleep(0.005)
