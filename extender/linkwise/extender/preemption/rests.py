"""For which gangs no more pods are evicted or moved for a while, as that was in vain before.

Their GPUs went to a pod that heeds no reservation, or the gang was planned on them and did not
start: kube-scheduler may refuse that for a reason that only it knows. The pause doubles until
the gang starts, so no gang has others evicted again and again.
"""

from dataclasses import dataclass

from linkwise.extender.api.records import GangKey
from linkwise.extender.gangs.registry import GangRegistry

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
