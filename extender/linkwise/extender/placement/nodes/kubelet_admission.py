"""Tracks nodes whose kubelet refuses pods with GPUs, as it does while no plugin is registered.

A refused pod has failed for good, and the next one would too. So after the first refusal the
extender places no other pod on that node until its allocatable GPUs rise, as they do when a plugin
registers. If they do not fall in the first place, the extender places one pod there after a pause,
as a trial. Once that pod runs, the node is normal again. If it is refused too, the pause doubles.
The state is in memory only; a new extender learns it again.

A pod that was already running is refused when its kubelet has restarted. That kubelet has reported
by then that the node has no GPUs at present, and its refusal may arrive when they are back.
"""

from dataclasses import dataclass

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.cache import Cache

# After a plugin is gone, the kubelet's next status no longer counts its GPUs as allocatable. It
# writes its status every 10 s.
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 30.0, 600.0


@dataclass(slots=True)
class _Refusing:
    least: int  # the fewest allocatable GPUs since the refusal
    pause: float
    try_at: float


class KubeletAdmission:
    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._refusing: dict[str, _Refusing] = {}

    def changed(self, before: PodRecord | None, record: PodRecord, now: float) -> None:
        """A pod was created or changed; the cache already has *record*."""
        node = record.node
        if not node or not (record.demand.gpus or record.shares):
            return
        if record.refused and before is not None and not (before.ended or before.running):
            self._refused(node, now)
        elif record.running and node in self._refusing and self._is_tried_on(record):
            self._admits(node)

    def look(self, now: float) -> None:
        for node, refusing in list(self._refusing.items()):
            info = self._cache.nodes.get(node)
            if info is None or info.record is None:
                self._admits(node)
                continue
            offers = info.record.offers.gpus
            if offers > refusing.least:
                self._admits(node)
                continue
            refusing.least = offers
            if now >= refusing.try_at:
                refusing.try_at = now + refusing.pause  # if the trial pod is deleted
                self._cache.set_refusing(node, refuses=True, tried_beside=info.there)

    def next_due(self) -> float | None:
        return min((refusing.try_at for refusing in self._refusing.values()), default=None)

    def _refused(self, node: str, now: float) -> None:
        info = self._cache.nodes.get(node)
        if info is None or info.record is None:
            return
        before = self._refusing.get(node)
        pause = FIRST_PAUSE_SECONDS
        if before is not None:
            # Bindings of other pods may have been in flight at the first refusal.
            pause = 2 * before.pause if info.tried_beside is not None else before.pause
        pause = min(pause, LONGEST_PAUSE_SECONDS)
        self._refusing[node] = _Refusing(info.record.offers.gpus, pause, now + pause)
        self._cache.set_refusing(node, refuses=True)

    def _admits(self, node: str) -> None:
        del self._refusing[node]
        self._cache.set_refusing(node, refuses=False)

    def _is_tried_on(self, record: PodRecord) -> bool:
        """Whether the pod is on its node to test whether the kubelet refuses it."""
        info = self._cache.nodes.get(record.node)
        beside = None if info is None else info.tried_beside
        return beside is not None and record.uid not in beside
