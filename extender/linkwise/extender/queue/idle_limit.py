"""Limits how long the reservations of one namespace may idle more than a share of the GPUs.

A reservation idles those of its GPUs that no pod uses. While a namespace idles more than the
operator's share of all GPUs that its gang could use, its clock runs. When the clock reaches the
limit, the reservations over the share end, and for the same time again the namespace gets no
reservation that would be over it. So no namespace idles more than the share for longer than the
limit, and at most half of the time. A plan that comes to nothing within moments is no use of the
GPUs: the clock goes on.
"""

from collections.abc import Iterable

_USED_SECONDS = 10.0  # less is no use


class IdleLimit:
    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._over_since: dict[str, float] = {}  # namespace -> since when it is over the share
        self._used_since: dict[str, float] = {}  # those of them that are not at the moment
        self._rests_until: dict[str, float] = {}

    def look(self, over: set[str], now: float) -> set[str]:
        """Return the namespaces that reach the limit now; *over* are those over the share now."""
        for namespace in self._over_since.keys() - over:
            self._used_since.setdefault(namespace, now)
        for namespace, since in [*self._used_since.items()]:
            if now >= since + _USED_SECONDS:
                del self._over_since[namespace]
            if namespace not in self._over_since or namespace in over:
                del self._used_since[namespace]
        for namespace in over:
            self._over_since.setdefault(namespace, now)
        for namespace in [name for name, until in self._rests_until.items() if until <= now]:
            del self._rests_until[namespace]
        ended = {
            name
            for name, since in self._over_since.items()
            if name in over and now >= since + self.limit_seconds
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
        """Continue with the times that a previous leader noted. Times in the future, which a wrong
        clock wrote, count from now."""
        if over_since is not None:
            since = min(over_since, self._over_since.get(namespace, now))
            self._over_since[namespace] = min(since, now)
        if rests_until is not None:
            until = max(rests_until, self._rests_until.get(namespace, now))
            self._rests_until[namespace] = min(until, now + self.limit_seconds)

    def rests_until(self, namespace: str, now: float) -> float | None:
        """When *namespace* may again reserve more than the share; None: it may now."""
        until = self._rests_until.get(namespace)
        return until if until is not None and until > now else None

    def times(self) -> Iterable[float]:
        """When to look again even if nothing changes until then."""
        for namespace, since in self._over_since.items():
            if namespace not in self._used_since:
                yield since + self.limit_seconds
        yield from self._rests_until.values()
