"""Computes the lines of a pod in time: thin while it waits, a hollow bar while it is bound and
starts, a full bar while it runs.

`templates/times.css` styles them. Moments are in seconds, all of one clock. Lengths in pixels.
Pure.
"""

from typing import NamedTuple

WIDTH = 300
_HOLLOW = 2  # what the hole of a bar lacks on its left and on its right


class Lines(NamedTuple):
    """SVG paths; one that has nothing to show is empty."""

    waits: str = ""
    starts: str = ""
    hollow: str = ""  # the hole, drawn over `starts`
    runs: str = ""


class PodTimes(NamedTuple):
    """When what happened to a pod, in seconds of one clock. None: not yet, or unknown."""

    created: float
    bound: float | None = None
    running: float | None = None
    ended: float | None = None  # it succeeded or failed

    def since(self, start: float) -> "PodTimes":
        """Return the same in seconds since *start*."""
        return PodTimes(
            self.created - start, *(None if time is None else time - start for time in self[1:])
        )

    @property
    def last(self) -> float:
        """Return the moment of the last change."""
        return max(time for time in self if time is not None)


class Scale(NamedTuple):
    """The moments at the left and at the right edge; *last* is after *first*."""

    first: float
    last: float

    def x(self, time: float) -> float:
        """Return the place of *time*; the nearer edge if it is outside."""
        share = (time - self.first) / (self.last - self.first)
        return round(min(max(share, 0.0), 1.0) * WIDTH, 1)

    def lines(self, y: float, times: PodTimes, *, waits: bool) -> Lines:
        """Return the lines of one pod at height *y*.

        *waits*: it has no node. What goes on reaches to the right edge.
        """
        created, bound, running, ended = times
        until_bound = starts = hollow = runs = ""
        stop = self.last if ended is None else ended
        if waits:
            until_bound = self._line(y, created, stop)
        elif bound is not None:
            began = stop if running is None else running
            until_bound = self._line(y, created, bound)
            starts = self._line(y, bound, began)
            hollow = self._line(y, bound, began, inside=_HOLLOW)
        if running is not None:
            runs = self._line(y, running, stop)
        return Lines(until_bound, starts, hollow, runs)

    def _line(self, y: float, begin: float, end: float, *, inside: float = 0) -> str:
        """At least a pixel wide, so that it can be seen. *inside*: pixels that it lacks on either
        side; empty if nothing is left."""
        left = min(self.x(begin), WIDTH - 1)
        right = max(self.x(end), left + 1) - inside
        left += inside
        return f"M{left:g} {y:g}H{right:g}" if left < right else ""
