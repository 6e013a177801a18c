"""For which gangs no more pods are evicted or moved for a while, as that was useless before, and
which pods are spared, as the API server refused their eviction.

The GPUs of a gang that rests went to a pod that heeds no reservation, or the gang was planned on
them and did not start: kube-scheduler may refuse that for a reason that only it knows. The pause
doubles until the gang starts, so no gang has others evicted again and again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from linkwise.extender.next.gangs.registry import GangRegistry
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.records import GangKey

SPARED_SECONDS, _LONGEST_SPARED_SECONDS = 30.0, 600.0


@dataclass(slots=True)
class _Spared:
    until: float  # 0: it may be evicted again
    seconds: float


class SparedPods:
    """The pods that the API server refused to evict: for a while, no gang is to have them evicted.

    The pause doubles with each further refusal of the same pod.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._spared: dict[str, _Spared] = {}  # by uid
        self.ended = 0  # how often a pod became evictable again

    def __contains__(self, uid: str) -> bool:
        spared = self._spared.get(uid)
        return spared is not None and spared.until > 0

    def refused(self, uid: str, now: float) -> None:
        before = self._spared.get(uid)
        seconds = SPARED_SECONDS if before is None else 2 * before.seconds
        seconds = min(seconds, _LONGEST_SPARED_SECONDS)
        self._spared[uid] = _Spared(now + seconds, seconds)

    def look(self, now: float) -> None:
        """End the pauses that are over, and forget pods that are gone."""
        for uid, spared in list(self._spared.items()):
            record = self._cache.pods.get(uid)
            if record is None or not record.live:
                del self._spared[uid]
            elif spared.until and now >= spared.until:
                spared.until = 0.0  # `seconds` stays, for the next refusal
                self.ended += 1

    def ends(self) -> Iterator[float]:
        """When each of the pauses ends."""
        return (spared.until for spared in self._spared.values() if spared.until)


ROBBED_SECONDS, PLANNED_SECONDS, _LONGEST_SECONDS = 300.0, 60.0, 3600.0


@dataclass(slots=True)
class _Rest:
    until: float
    pause: float


class Rests:
    def __init__(self, registry: GangRegistry) -> None:
        self._registry = registry
        self._rests: dict[GangKey, _Rest] = {}

    def begin(self, key: GangKey, least: float, now: float) -> None:
        before = self._rests.get(key)
        pause = min(least if before is None else max(least, 2 * before.pause), _LONGEST_SECONDS)
        self._rests[key] = _Rest(now + pause, pause)

    def until(self, key: GangKey) -> float:
        """No pod is evicted or moved for the gang before; 0: it does not rest."""
        rest = self._rests.get(key)
        return 0.0 if rest is None else rest.until

    def look(self) -> None:
        """Forget gangs that have started or are gone."""
        for key in [key for key in self._rests if not self._is_still_to_start(key)]:
            del self._rests[key]

    def _is_still_to_start(self, key: GangKey) -> bool:
        gang = self._registry.gangs.get(key)
        return gang is not None and not self._registry.members_of(gang).started
