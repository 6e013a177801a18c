"""The API server's clock, from the `Date` of its answers.

Every time on an object is by that clock: when a pod was created, when its grace period ends. A
program that compares those with its own machine's clock takes a pod that is just ending for one
that is stuck, if its clock is a minute ahead. So programs ask this clock.

`Date` has whole seconds (RFC 9110), and an answer is under way for a while. So each answer tells
only between which two bounds the difference of the clocks lies, and all of them together tell it
better (Marzullo and Owicki 1983). While the machine's clock is within the bounds, it counts.
"""

import logging
import math
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from threading import Lock

log = logging.getLogger(__name__)

# So many answers in a row outside the bounds, and one of the clocks was set, or has drifted.
_UNLIKE = 5
_SLOW = 0.5  # the pace of a clock that has to wait for the API server's
_LOGGED_SECONDS = 5.0


def steady_clock(
    wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Seconds since 1970 that never jump: if the machine's clock is set back by an hour, no retry
    and no gang's timeout may come an hour late."""
    offset = wall() - steady()
    return lambda: steady() + offset


class ServerClock:
    """Call it for seconds since 1970 by the API server's clock. Thread-safe. *local* is this
    machine's clock, by default `steady_clock`."""

    def __init__(self, local: Callable[[], float] | None = None) -> None:
        self.local = local or steady_clock()
        self._lock = Lock()
        self._ahead = self._logged = 0.0  # seconds by which the API server's clock is ahead
        self._shown, self._shown_at = -math.inf, 0.0  # what was told last, and when by *local*
        self._least, self._most = -math.inf, math.inf  # bounds of *ahead*
        self._unlike = 0
        self._read: tuple[str, float | None] = ("", None)

    def __call__(self) -> float:
        """It never goes back, as whatever is due at a moment would be due later: if it has to, it
        is slow for a while."""
        local = self.local()
        with self._lock:
            now = local + self._ahead
            if now < self._shown:
                now = self._shown + max(_SLOW * (local - self._shown_at), 0.0)
            self._shown, self._shown_at = now, local
            return now

    def heard(self, date: str | None, sent: float) -> None:
        """The API server has answered now, with this `Date`, a request that was sent at *sent* by
        the local clock. An invalid date is ignored."""
        received = self.local()
        if date is None or (shown := self._seconds(date)) is None:
            return
        least, most = shown - received, shown + 1.0 - sent
        with self._lock:
            if self._least == -math.inf:
                self._shown = -math.inf  # nothing is due yet, so the first answer sets the clock
            if least <= self._most and self._least <= most:
                self._unlike = 0
                self._least, self._most = max(least, self._least), min(most, self._most)
            else:
                self._unlike += 1
                if self._unlike < _UNLIKE:
                    return
                self._unlike, self._least, self._most = 0, least, most
            self._ahead = min(max(self._ahead, self._least), self._most)
            is_news = abs(self._ahead - self._logged) >= _LOGGED_SECONDS
            if is_news:
                self._logged = self._ahead
        if is_news:
            log.warning(
                "this machine's clock is %.0f s %s the API server's, whose clock counts",
                abs(self._ahead),
                "behind" if self._ahead > 0 else "ahead of",
            )

    def _seconds(self, date: str) -> float | None:
        known, seconds = self._read
        if date != known:
            try:
                seconds = parsedate_to_datetime(date).timestamp()
            except (ValueError, OverflowError):
                seconds = None
            self._read = date, seconds
        return seconds
