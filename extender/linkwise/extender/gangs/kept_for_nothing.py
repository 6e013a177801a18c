"""Which namespaces keep no places for members to come, because theirs did not come before.

A member to come needs no pod, so no quota of its namespace bounds it: one pod could keep a whole
cluster idle, and the next one after it. So a namespace whose later wave did not come in time keeps
no place for as long as that had lasted. Each further time in a row it is twice as long, so it keeps
places for nothing at most half of the time, and soon much less.
"""

from dataclasses import dataclass

_MOST_DOUBLINGS = 4
_FORGOTTEN_SECONDS = 86400.0  # after the end of a pause


@dataclass(slots=True)
class _Pause:
    times: int  # in a row
    until: float


class KeptForNothing:
    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}  # by namespace

    def came_to_nothing(self, namespace: str, seconds: float, now: float) -> None:
        """Places were kept for so long, and their pods did not come."""
        before = self._pauses.get(namespace)
        times = 0 if before is None else min(before.times + 1, _MOST_DOUBLINGS)
        until = now + max(seconds, 0.0) * 2**times
        self._pauses[namespace] = _Pause(times, max(until, 0.0 if before is None else before.until))

    def came(self, namespace: str) -> None:
        """All pods of a gang came: the next pause is the first one again."""
        if (pause := self._pauses.get(namespace)) is not None:
            pause.times = -1

    def rests_until(self, namespace: str, now: float) -> float | None:
        """When the namespace may keep places again; None: it may now."""
        pause = self._pauses.get(namespace)
        if pause is None or now < pause.until:
            return None if pause is None else pause.until
        if now >= pause.until + _FORGOTTEN_SECONDS:
            del self._pauses[namespace]
        return None
