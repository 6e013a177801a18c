"""Limits how much the reservations of one namespace may idle.

A reservation idles those of its GPUs that no pod uses, and pays for them. Each namespace has an
account with two meters. One is full once its reservations have idled all GPU seconds that they may
(`Idling.worth`); the other once they have idled more than the operator's share of all GPUs that
its gang could use for as long as the operator's limit. Then they end, and the namespace rests: for
as long as it idled, and for the limit at most, it gets no reservation.

A gang that starts has paid for what idled for it. Else a meter goes back at the speed of the limit
while it has nothing to count: a plan that comes to nothing, or a gang that is deleted and created
again, was no use of the GPUs.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_STEP = 1 / 16  # of an account; a new leader takes a step that was begun for used up
_SHORTEST_SECONDS = 1.0  # between two looks, as what a gang may idle rises while it waits


@dataclass(frozen=True, slots=True)
class Idling:
    """What the reservations of one namespace idle now."""

    gpus: int
    worth: float  # GPU seconds that they may idle in all
    is_over: bool  # more than the operator's share

    def beside(self, other: "Idling | None") -> "Idling":
        """Of two reservations of one namespace."""
        if other is None:
            return self
        is_over = self.is_over or other.is_over
        return Idling(self.gpus + other.gpus, self.worth + other.worth, is_over)


@dataclass(slots=True)
class _Meter:
    used: float = 0.0  # 1: full
    speed: float = 0.0  # of `used`

    def go_on(self, speed: float, seconds: float) -> None:
        self.used = max(self.used + self.speed * seconds, 0.0)
        self.speed = speed

    def left(self) -> float:
        """Seconds until it reaches the next step, if nothing changes until then; the last one is
        its end."""
        if self.speed <= 0:
            return math.inf
        step = (math.floor(self.used / _STEP + 1e-9) + 1) * _STEP
        return max((step - self.used) / self.speed, _SHORTEST_SECONDS)


@dataclass(slots=True)
class _Account:
    since: float  # when the namespace began to idle GPUs
    at: float  # the time that the meters are about
    paid: _Meter
    over: _Meter

    @property
    def used(self) -> float:
        return max(self.paid.used, self.over.used)

    def go_on(self, paid: float, over: float, now: float) -> None:
        """*paid*, *over*: the speeds from now on."""
        seconds = max(now - self.at, 0.0)
        self.paid.go_on(paid, seconds)
        self.over.go_on(over, seconds)
        self.at = now


class IdleLimit:
    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._accounts: dict[str, _Account] = {}  # by namespace
        self._rests_until: dict[str, float] = {}

    def look(self, idling: Mapping[str, Idling], now: float) -> set[str]:
        """Return the namespaces whose reservations end now; *idling*: what all idle now."""
        for namespace in idling:
            self._accounts.setdefault(namespace, _Account(now, now, _Meter(), _Meter()))
        of_limit = 1.0 / max(self.limit_seconds, 1.0)
        for namespace, account in [*self._accounts.items()]:
            its = idling.get(namespace)
            account.go_on(
                -of_limit if its is None else its.gpus / max(its.worth, 1.0),
                of_limit if its is not None and its.is_over else -of_limit,
                now,
            )
            if its is None and not account.used:
                del self._accounts[namespace]
        for namespace, until in [*self._rests_until.items()]:
            if until <= now:
                del self._rests_until[namespace]
            else:  # the clock may have been set back
                self._rests_until[namespace] = min(until, now + self.limit_seconds)
        ended = {name for name in idling if self._accounts[name].used >= 1.0 - 1e-9}
        for namespace in ended:
            idled = max(now - self._accounts.pop(namespace).since, 0.0)
            self._rests_until[namespace] = now + min(idled, self.limit_seconds)
        return ended

    def idles_since(self, namespace: str) -> float | None:
        account = self._accounts.get(namespace)
        return None if account is None else account.since

    def was_of_use(self, namespace: str, share: float, now: float) -> None:
        """A gang started on what it idled, which was this share of what its namespace idled. That
        its namespace idles more than the operator's share still has an end."""
        if (account := self._accounts.get(namespace)) is None:
            return
        account.go_on(account.paid.speed, account.over.speed, now)
        account.paid.used *= 1.0 - share
        if account.over.speed < 0:
            account.over.used *= 1.0 - share
        if share == 1.0:
            account.since = now

    def used(self, namespace: str) -> float:
        """How much of its account the namespace has used up, in whole steps, rounded up."""
        account = self._accounts.get(namespace)
        return 0.0 if account is None else math.ceil(account.used / _STEP - 1e-9) * _STEP

    def go_on(
        self,
        namespace: str,
        idle_since: float | None,
        used: float,
        rests_until: float | None,
        now: float,
    ) -> None:
        """Continue with what a previous leader noted. Times in the future, which a wrong clock
        wrote, count from now."""
        known = self._accounts.get(namespace)
        if idle_since is not None and (known is None or used > known.used):
            noted = min(max(used, 0.0), 1.0)
            since = min(idle_since, now)
            self._accounts[namespace] = _Account(since, now, _Meter(noted), _Meter(noted))
        if rests_until is not None:
            until = max(rests_until, self._rests_until.get(namespace, now))
            self._rests_until[namespace] = min(until, now + self.limit_seconds)

    def rests_until(self, namespace: str, now: float) -> float | None:
        """When *namespace* may have reservations again; None: it may now."""
        until = self._rests_until.get(namespace)
        return until if until is not None and until > now else None

    def times(self) -> Iterable[float]:
        """When to look again even if nothing changes until then."""
        for account in self._accounts.values():
            left = min(account.paid.left(), account.over.left())
            if left < math.inf:
                yield account.at + left
        yield from self._rests_until.values()
