"""The end of the program: all parts stop at once, and one that hangs is left behind."""

import logging
import time
from threading import Thread
from typing import Protocol

log = logging.getLogger(__name__)

_STOP_SECONDS = 0.8  # how long a stopping program waits for parts that may hang


class Stoppable(Protocol):
    def stop(self) -> None: ...


def end(*parts: Stoppable) -> None:
    """Stop all parts at once, and do not wait for one that hangs."""
    enders = [Thread(target=part.stop, daemon=True) for part in parts]
    ends = time.monotonic() + _STOP_SECONDS
    for ender in enders:
        ender.start()
    for ender, part in zip(enders, parts, strict=True):
        ender.join(max(0.0, ends - time.monotonic()))
        if ender.is_alive():
            log.warning("%s does not end; the program does not wait for it", type(part).__name__)
