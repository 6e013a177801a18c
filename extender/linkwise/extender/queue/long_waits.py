"""Shows gangs without room to a node autoscaler: lifts the gates of their members.

Cluster Autoscaler and Karpenter add nodes for pods that kube-scheduler found unschedulable, and
kube-scheduler does not try a gated pod (docs/operating/autoscaling.md). A gang whose members are
missing, or that has or gets GPUs, keeps its gates: it needs no new node.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from linkwise.extender.api.records import GangKey, PodRecord
from linkwise.extender.api.timers import Timers
from linkwise.extender.queue.books import Books, Part


class LongWaits(Part):
    """*after_seconds*: how long a gang keeps its gates without room; None: forever."""

    def __init__(self, books: Books, after_seconds: float | None) -> None:
        super().__init__(books)
        self._after_seconds = after_seconds
        self._alarms: Timers[GangKey] = Timers(books.agenda)

    def note(self, key: GangKey, now: float) -> None:
        """The gang changed; call this once it is known whether it has room."""
        if self._after_seconds is None or not self._gated(key):
            self._alarms.drop(key)
        elif self._alarms.get(key) is None:
            self._alarms[key] = now + self._after_seconds

    def look(self, now: float, surviving: Callable[[object], AbstractContextManager[None]]) -> None:
        """Lift the gates of gangs that had no room for long enough. *surviving* keeps one defect
        from affecting the other gangs."""
        for key in self._alarms.take(now):
            with surviving(key.title):
                if not self._reservations.is_by_preemption(key):  # its victims still end
                    for member in self._gated(key):
                        self._pending_writes.lift_gate(member, now)
                self.note(key, now)

    def _gated(self, key: GangKey) -> list[PodRecord]:
        """The members behind the gate that found no room."""
        gang = self._registry.gangs.get(key)
        if gang is None or not self._queue.has_no_room(gang):
            return []
        return [member for member in self._registry.members_of(gang).open if member.gated]
