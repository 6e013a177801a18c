"""PURE. What the pods of this node do with their GPUs: busy shares, and since when a pod is idle.

A pod with several GPUs works if one of them works; its share is the mean of theirs. If the plugin
misses a pod for longer than `gap_seconds`, because it restarts or because the driver does not
answer, the pod may have worked meanwhile: its watch begins again.
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from linkwise.plugin.gpus.inventory import Load
from linkwise.topology.annotations.activity import (
    DAY_LEVELS,
    HEARTBEAT_SECONDS,
    Activity,
    PodActivity,
)
from linkwise.topology.annotations.plan import InUse

_MINUTE = 60.0
_DAY = "24h"
WINDOWS = {"5m": 5, "1h": 60, _DAY: 1440}  # minutes
_LONG_ENOUGH = 3600.0  # a share of the day means nothing before


@dataclass(frozen=True, slots=True)
class Figures:
    """What is known of one pod now. Times are seconds since 1970."""

    since: float  # when its watch began
    whole: bool  # with the pod's GPUs
    quiet_since: float  # none of its GPUs has worked since
    shares: Mapping[str, float]  # window -> 0 to 1, of as much of it as the pod was watched
    watched_seconds: float  # in the last 24 h
    memory_mib: int | None


@dataclass(slots=True)
class _Minute:
    number: int  # since 1970
    busy: float = 0.0  # seconds
    watched: float = 0.0


@dataclass(slots=True)
class _Watched:
    gpus: frozenset[str]
    appeared: float
    whole: bool
    since: float = 0.0
    quiet_since: float = 0.0
    last: float | None = None  # the last look that told of all its GPUs
    memory_mib: int | None = None
    minutes: deque[_Minute] = field(default_factory=lambda: deque(maxlen=WINDOWS[_DAY]))

    def add(self, loads: Sequence[Load], now: float, gap: float) -> None:
        passed = now - (self.appeared if self.last is None else self.last)
        if not 0 <= passed <= gap:
            self.whole = False
        if self.last is None or not 0 <= passed <= gap:
            self.since = self.quiet_since = now
            if passed < 0:  # the clock was set back
                self.minutes.clear()
        else:
            self._count(sum(load.busy for load in loads) / len(loads), passed, now)
        if any(load.worked for load in loads):
            self.quiet_since = now
        self.last = now
        known = [load.memory_mib for load in loads if load.memory_mib is not None]
        self.memory_mib = sum(known) if len(known) == len(loads) else None

    def _count(self, busy: float, seconds: float, now: float) -> None:
        number = int(now // _MINUTE)
        if not self.minutes or self.minutes[-1].number != number:
            self.minutes.append(_Minute(number))
        self.minutes[-1].busy += busy * seconds
        self.minutes[-1].watched += seconds

    def figures(self, now: float) -> Figures:
        shares = {}
        watched = 0.0
        for window, minutes in WINDOWS.items():
            first = now // _MINUTE - minutes
            inside = [each for each in self.minutes if each.number > first]
            watched = sum(each.watched for each in inside)
            if watched:
                shares[window] = sum(each.busy for each in inside) / watched
        return Figures(self.since, self.whole, self.quiet_since, shares, watched, self.memory_mib)


class ActivityBook:
    def __init__(self, *, gap_seconds: float) -> None:
        self._gap_seconds = gap_seconds
        self._pods: dict[str, _Watched] = {}
        self._began = False  # pods that come later are watched from their start

    def looked(
        self, loads: Mapping[str, Load], holders: Mapping[str, frozenset[str]], now: float
    ) -> Mapping[str, Figures]:
        """Note a look: *loads* by uuid, *holders* are the pods with their uuids.

        Returns the figures by pod, without those of which nothing is known now.
        """
        for name in self._pods.keys() - holders.keys():
            del self._pods[name]
        for name, gpus in holders.items():
            pod = self._pods.get(name)
            if pod is None or pod.gpus != gpus:
                pod = self._pods[name] = _Watched(gpus, appeared=now, whole=self._began)
            if gpus <= loads.keys():
                pod.add([loads[uuid] for uuid in sorted(gpus)], now, self._gap_seconds)
        self._began = True
        return {
            name: pod.figures(now)
            for name, pod in self._pods.items()
            if pod.last is not None and 0 <= now - pod.last <= self._gap_seconds
        }


def holders_of(in_use: InUse) -> dict[str, frozenset[str]]:
    """The pods with whole GPUs, and the uuids of each."""
    return {
        pod: frozenset(uuid for uuids in containers.values() for uuid in uuids)
        for pod, containers in in_use.pods.items()
    }


class Reports:
    """Decides when the cluster gets news: only of what has changed, and at most once in half of
    *idle_seconds*. So a node writes twice for each time that a pod becomes idle, at most."""

    def __init__(self, *, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._last: Activity | None = None

    def due(self, figures: Mapping[str, Figures], now: float) -> Activity | None:
        """What to write now; None: nothing."""
        pods = {name: self._of_pod(pod, now) for name, pod in sorted(figures.items())}
        if self._last is not None and not self._is_time(self._last, pods, now):
            return None
        self._last = Activity(at=int(now), hold=ceil(self._idle_seconds / 2), pods=pods)
        return self._last

    def _is_time(self, last: Activity, pods: Mapping[str, PodActivity], now: float) -> bool:
        age = now - last.at
        if pods != last.pods:
            return not 0 <= age < self._idle_seconds / 2
        heartbeat = min(HEARTBEAT_SECONDS, self._idle_seconds)
        return _any_idle(pods.values()) and not 0 <= age < heartbeat

    def _of_pod(self, pod: Figures, now: float) -> PodActivity:
        idle = now - pod.quiet_since >= self._idle_seconds
        share = pod.shares.get(_DAY)
        return PodActivity(
            since=int(pod.since),
            whole=pod.whole,
            idle=int(pod.quiet_since) if idle else None,
            day=_level(share)
            if share is not None and pod.watched_seconds >= _LONG_ENOUGH
            else None,
            memory=round(pod.memory_mib / 1024) if idle and pod.memory_mib is not None else None,
        )


def _any_idle(pods: Collection[PodActivity]) -> bool:
    return any(pod.idle is not None for pod in pods)


def _level(share: float) -> int:
    return next((level for level in DAY_LEVELS if 100 * share <= level), DAY_LEVELS[-1])
