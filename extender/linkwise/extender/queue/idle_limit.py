"""For how long what is kept for the waiting gangs of a namespace may idle more than a share.

A hold idles the GPUs that it keeps and that nobody has. While that is more than the operator's
share of all GPUs that its gang could use, the clock of its namespace runs. When the clock reaches
the limit, the holds that are over the share end, and for as long again the namespace gets none that
would be. So no namespace idles more than the share for longer than the limit, and at most half of
the time.
"""


class IdleLimit:
    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._over_since: dict[str, float] = {}  # namespace -> when it came to idle too much
        self._rests_until: dict[str, float] = {}

    def look(self, over: set[str], now: float) -> set[str]:
        """*over* are the namespaces that idle more than the share now; those whose time is up."""
        for namespace in self._over_since.keys() - over:
            del self._over_since[namespace]
        for namespace in over:
            self._over_since.setdefault(namespace, now)
        for namespace in [name for name, until in self._rests_until.items() if until <= now]:
            del self._rests_until[namespace]
        ended = {
            name for name, since in self._over_since.items() if now >= since + self.limit_seconds
        }
        for namespace in ended:
            del self._over_since[namespace]
            self._rests_until[namespace] = now + self.limit_seconds
        return ended

    def over_since(self, namespace: str) -> float | None:
        return self._over_since.get(namespace)

    def go_on(
        self, namespace: str, over_since: float | None, rests_until: float | None, now: float
    ) -> None:
        """With what a leader before this one has noted. Times to come, of a clock that went wrong,
        count from now."""
        if over_since is not None:
            since = min(over_since, self._over_since.get(namespace, now))
            self._over_since[namespace] = min(since, now)
        if rests_until is not None:
            until = max(rests_until, self._rests_until.get(namespace, now))
            self._rests_until[namespace] = min(until, now + self.limit_seconds)

    def rests_until(self, namespace: str, now: float) -> float | None:
        """Until when nothing over the share is kept for it; None: something may be."""
        until = self._rests_until.get(namespace)
        return until if until is not None and until > now else None

    def next_due(self) -> float | None:
        ends = [since + self.limit_seconds for since in self._over_since.values()]
        return min((*ends, *self._rests_until.values()), default=None)
