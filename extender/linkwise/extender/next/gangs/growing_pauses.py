"""Pauses of namespaces, each twice as long as the one before."""

from dataclasses import dataclass


@dataclass(slots=True)
class _Pause:
    times: int  # in a row
    until: float


class GrowingPauses:
    def __init__(self, doublings: int = 4, forgotten_seconds: float = 86400.0) -> None:
        """So many *doublings* at most. The next pause is the first one again if none has been for
        *forgotten_seconds*."""
        self._doublings, self._forgotten_seconds = doublings, forgotten_seconds
        self._pauses: dict[str, _Pause] = {}  # by namespace

    def pause(self, namespace: str, seconds: float, now: float) -> None:
        """*seconds*: for how long the first time in a row."""
        before = self._pauses.get(namespace)
        times = 0 if before is None else min(before.times + 1, self._doublings)
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
        if now >= pause.until + self._forgotten_seconds:
            del self._pauses[namespace]
        return None
