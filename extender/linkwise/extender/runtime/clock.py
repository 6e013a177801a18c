"""The clock of the extender."""

import time
from collections.abc import Callable


def steady_clock(
    wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Seconds since 1970 that never jump: if the machine's clock is set back by an hour, no retry
    and no gang's timeout may come an hour late."""
    offset = wall() - steady()
    return lambda: steady() + offset
