"""Pauses of namespaces, each twice as long as the one before."""

from dataclasses import dataclass

_MOST_DOUBLINGS = 4
_FORGOTTEN_SECONDS = 86400.0  # after the end of a pause


@dataclass(slots=True)
class _Pause:
    times: int  # in a row
    until: float


class GrowingPauses:
    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}  # by namespace

    def pause(self, namespace: str, seconds: float, now: float) -> None:
        """*seconds*: for how long the first time in a row."""
        before = self._pauses.get(namespace)
        times = 0 if before is None else min(before.times + 1, _MOST_DOUBLINGS)
        until = now + max(seconds, 0.0) * 2**times
        self._pauses[namespace] = _Pause(times, max(until, 0.0 if before is None else before.until))

    def reset(self, namespace: str) -> None:
        """The next pause is the first one again."""
        if (pause := self._pauses.get(namespace)) is not None:
            pause.times = -1

    def until(self, namespace: str, now: float) -> float | None:
        """When the namespace's pause ends; None: it has none now."""
        pause = self._pauses.get(namespace)
        if pause is None or now < pause.until:
            return None if pause is None else pause.until
        if now >= pause.until + _FORGOTTEN_SECONDS:
            del self._pauses[namespace]
        return None
