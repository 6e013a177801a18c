"""The pods that the API server refused to evict: for a while, no gang is to have them evicted.

The pause doubles with each further refusal of the same pod.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from linkwise.extender.cache.cache import Cache

SPARED_SECONDS, _LONGEST_SPARED_SECONDS = 30.0, 600.0


@dataclass(slots=True)
class _Spared:
    until: float  # 0: it may be evicted again
    seconds: float


class SparedPods:
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
