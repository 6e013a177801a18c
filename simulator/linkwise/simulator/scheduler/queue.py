"""The scheduling queue: which pod is next, and when a failed one is tried again.

As in kube-scheduler 1.35. The active queue is ordered by priority, then age.
Pods that did not fit and pods that met an error have a back-off queue each. A pool holds pods that
wait for an event. An event wakes a pod only if it may change the answer of what refused it.

PURE: the time is an argument, in seconds on any monotonic clock.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count

from linkwise.kube.filters.volumes.storage import StorageObject
from linkwise.kube.objects import (
    CSINode,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
)

EXTENDER = "Extender"
OTHER = "OtherFilter"  # a plugin that kube-scheduler does not have by default


class ClusterEvent(Enum):
    """An event outside the pod itself that may let it fit."""

    NODE_ADDED = auto()
    NODE_GONE = auto()
    NODE_ALLOCATABLE = auto()
    NODE_LABELS = auto()
    NODE_TAINTS = auto()  # and spec.unschedulable
    NODE_OTHER = auto()  # annotations, conditions
    ASSIGNED_POD_ADDED = auto()  # a pod got a node, from any scheduler
    ASSIGNED_POD_CHANGED = auto()  # any change: it starts to run, it is annotated
    ASSIGNED_POD_LABELS = auto()
    ASSIGNED_POD_GONE = auto()  # deleted, ended, or its binding failed
    CLAIM_ADDED = auto()  # of PersistentVolumeClaims
    CLAIM_CHANGED = auto()
    VOLUME_CHANGED = auto()  # a PersistentVolume came or changed
    CLASS_ADDED = auto()  # of StorageClasses
    CLASS_CHANGED = auto()
    CSI_NODE_CHANGED = auto()  # a CSINode came or changed
    DEVICES_CHANGED = auto()  # a ResourceSlice or ResourceClaim came or changed


_ADDED = frozenset({ClusterEvent.NODE_ADDED})
_GONE = frozenset({ClusterEvent.ASSIGNED_POD_GONE})
_LABELLED = _ADDED | {ClusterEvent.NODE_LABELS}
_CLAIMED = frozenset({ClusterEvent.CLAIM_ADDED, ClusterEvent.CLAIM_CHANGED})
_PODS_AROUND = _GONE | {ClusterEvent.ASSIGNED_POD_ADDED, ClusterEvent.ASSIGNED_POD_LABELS}
_WAKES: dict[str, frozenset[ClusterEvent]] = {
    "NodeUnschedulable": _ADDED | {ClusterEvent.NODE_TAINTS},
    "TaintToleration": _ADDED | {ClusterEvent.NODE_TAINTS},
    "NodeAffinity": _LABELLED,
    "NodePorts": _ADDED | _GONE,
    "NodeResourcesFit": _ADDED | _GONE | {ClusterEvent.NODE_ALLOCATABLE},
    "VolumeRestrictions": _ADDED | _GONE | {ClusterEvent.CLAIM_ADDED},
    "NodeVolumeLimits": _GONE | {ClusterEvent.CSI_NODE_CHANGED, ClusterEvent.CLAIM_ADDED},
    "VolumeBinding": _LABELLED
    | _CLAIMED
    | {
        ClusterEvent.VOLUME_CHANGED,
        ClusterEvent.CLASS_ADDED,
        ClusterEvent.CLASS_CHANGED,
        ClusterEvent.CSI_NODE_CHANGED,
    },
    "VolumeZone": _LABELLED | _CLAIMED | {ClusterEvent.VOLUME_CHANGED, ClusterEvent.CLASS_ADDED},
    "PodTopologySpread": _LABELLED
    | _PODS_AROUND
    | {ClusterEvent.NODE_GONE, ClusterEvent.NODE_TAINTS},
    "InterPodAffinity": _LABELLED | _PODS_AROUND,
    "DynamicResources": _LABELLED | {ClusterEvent.NODE_TAINTS, ClusterEvent.DEVICES_CHANGED},
    OTHER: frozenset(ClusterEvent),
}
"""The events that wake a pod which this plugin refused. kube-scheduler's plugins also look at the
object, and wake fewer pods; every event wakes a pod which an extender
refused."""


def node_events(before: Node | None, node: Node) -> list[ClusterEvent]:
    """Return the events of a node's new version; *before* None: a new node."""
    if before is None:
        return [ClusterEvent.NODE_ADDED]
    changes = {
        ClusterEvent.NODE_ALLOCATABLE: before.status.allocatable != node.status.allocatable,
        ClusterEvent.NODE_LABELS: before.metadata.labels != node.metadata.labels,
        ClusterEvent.NODE_TAINTS: before.spec != node.spec,
        ClusterEvent.NODE_OTHER: before.metadata.annotations != node.metadata.annotations
        or before.status.conditions != node.status.conditions,
    }
    return [event for event, happened in changes.items() if happened]


def storage_event(what: str, one: StorageObject) -> ClusterEvent:
    """Return the event of an object that came (ADDED) or changed."""
    added = what == "ADDED"
    match one:
        case PersistentVolumeClaim():
            return ClusterEvent.CLAIM_ADDED if added else ClusterEvent.CLAIM_CHANGED
        case StorageClass():
            return ClusterEvent.CLASS_ADDED if added else ClusterEvent.CLASS_CHANGED
        case PersistentVolume():
            return ClusterEvent.VOLUME_CHANGED
        case CSINode():
            return ClusterEvent.CSI_NODE_CHANGED


def _concerned(before: Pod, after: Pod) -> frozenset[str]:
    """Return the plugins that look at what changed in a waiting pod."""
    tolerations = before.spec.tolerations != after.spec.tolerations
    labels = before.metadata.labels != after.metadata.labels
    return frozenset(
        ({"TaintToleration", "PodTopologySpread"} if tolerations else set())
        | ({"InterPodAffinity", "PodTopologySpread"} if labels else set())
    )


@dataclass(slots=True, eq=False)
class QueuedPod:
    """A pod in the queue. `since` is when it last entered."""

    pod: Pod
    since: float
    order: int
    unschedulable_count: int = 0
    error_count: int = 0  # errors in a row
    rejected_by: frozenset[str] = frozenset()
    failed_in_error: bool = False

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many pods are where; `in_flight` are being tried."""

    active: int
    backoff: int
    unschedulable: int
    gated: int
    in_flight: int


@dataclass(slots=True)
class _InFlight:
    queued: QueuedPod
    events: set[ClusterEvent] = field(default_factory=set)
    updated: bool = False


class SchedulingQueue:
    def __init__(
        self,
        *,
        initial_backoff_seconds: float = 1.0,
        max_backoff_seconds: float = 10.0,
        max_unschedulable_seconds: float = 300.0,
    ) -> None:
        self._initial_backoff = initial_backoff_seconds
        self._max_backoff = max_backoff_seconds
        self._max_unschedulable = max_unschedulable_seconds
        self._numbers = count()
        self._active: dict[str, QueuedPod] = {}
        self._heap: list[tuple[int, float, int, QueuedPod]] = []  # may hold pods that have left
        self._backoff: dict[str, QueuedPod] = {}
        self._unschedulable: dict[str, QueuedPod] = {}
        self._gated: dict[str, QueuedPod] = {}
        self._in_flight: dict[str, _InFlight] = {}

    def is_gated(self, pod: Pod) -> bool:
        """Whether the pod may not be tried yet."""
        return bool(pod.spec.scheduling_gates)

    # Pods come, change and go

    def add(self, pod: Pod, now: float) -> None:
        """Add a pod without a node, for the first time or after its binding failed."""
        if self._find(pod.metadata.uid) is not None:
            self.update(pod, now)
            return
        queued = QueuedPod(pod, since=now, order=next(self._numbers))
        self._activate(queued)

    def update(self, pod: Pod, now: float) -> None:
        """Take in any change of the pod itself.

        An extender may judge the changed pod differently. Of the plugins, some look at tolerations
        and labels, which can change.
        """
        uid = pod.metadata.uid
        if uid in self._in_flight:
            self._in_flight[uid].updated = True
            return
        queued = self._find(uid)
        if queued is None:
            self.add(pod, now)
            return
        concerned = _concerned(queued.pod, pod)
        queued.pod = pod
        if uid in self._gated and not self.is_gated(pod):
            del self._gated[uid]
            self._activate(queued)
        elif uid in self._unschedulable and (
            self._wakes_on_update(queued) or not concerned.isdisjoint(queued.rejected_by)
        ):
            del self._unschedulable[uid]
            self._requeue(queued, now)

    def delete(self, uid: str) -> None:
        """Remove a pod that is gone or has a node."""
        for place in (self._active, self._backoff, self._unschedulable, self._gated):
            place.pop(uid, None)
        self._in_flight.pop(uid, None)

    # Tries

    def pop(self, now: float) -> QueuedPod | None:
        """Return the pod to try next, or None. It stays in flight until it is handed back or
        deleted."""
        self._flush(now)
        queued = self._pop_active() or self._pop_early()
        if queued is not None:
            self._in_flight[queued.uid] = _InFlight(queued)
        return queued

    def next_wake(self, now: float) -> float | None:
        """Return the seconds until `pop` may return one without any event."""
        moments = [self._backoff_ends(queued) for queued in self._backoff.values()]
        moments += [q.since + self._max_unschedulable for q in self._unschedulable.values()]
        return max(0.0, min(moments) - now) if moments else None

    def done(self, uid: str) -> None:
        """Remove a pod that the scheduler has placed."""
        self._in_flight.pop(uid, None)

    def add_unschedulable(self, queued: QueuedPod, rejected_by: frozenset[str], now: float) -> None:
        """Queue a pod that fitted nowhere. Events during the try may wake it at once."""
        flight = self._in_flight.pop(queued.uid, None)
        if flight is None:
            return  # deleted during the try
        queued.since, queued.rejected_by = now, rejected_by
        queued.unschedulable_count += 1
        queued.error_count, queued.failed_in_error = 0, False
        woken = any(self._wakes(queued, event) for event in flight.events)
        if woken or (flight.updated and self._wakes_on_update(queued)):
            self._requeue(queued, now)
        else:
            self._unschedulable[queued.uid] = queued

    def add_error(self, queued: QueuedPod, now: float) -> None:
        """Queue a pod whose try failed: its back-off alone decides when it is tried again."""
        self._in_flight.pop(queued.uid, None)
        queued.since, queued.rejected_by = now, frozenset()
        queued.error_count += 1
        queued.failed_in_error = True
        self._backoff[queued.uid] = queued

    def move_all(self, event: ClusterEvent, now: float) -> None:
        """Wake the pods for which *event* may matter."""
        for flight in self._in_flight.values():
            flight.events.add(event)
        woken = [q for q in self._unschedulable.values() if self._wakes(q, event)]
        for queued in woken:
            del self._unschedulable[queued.uid]
            self._requeue(queued, now)

    # Queries

    def pods(self) -> list[Pod]:
        """Return every pod that waits or is in flight."""
        places = (self._active, self._backoff, self._unschedulable, self._gated)
        waiting = [queued.pod for place in places for queued in place.values()]
        return waiting + [flight.queued.pod for flight in self._in_flight.values()]

    def counts(self) -> QueueCounts:
        return QueueCounts(
            active=len(self._active),
            backoff=len(self._backoff),
            unschedulable=len(self._unschedulable),
            gated=len(self._gated),
            in_flight=len(self._in_flight),
        )

    # Internals

    def _find(self, uid: str) -> QueuedPod | None:
        for place in (self._active, self._backoff, self._unschedulable, self._gated):
            if uid in place:
                return place[uid]
        flight = self._in_flight.get(uid)
        return flight.queued if flight else None

    def _activate(self, queued: QueuedPod) -> None:
        if self.is_gated(queued.pod):
            self._gated[queued.uid] = queued
            return
        self._active[queued.uid] = queued
        heappush(self._heap, (-queued.pod.spec.priority, queued.since, queued.order, queued))

    def _pop_active(self) -> QueuedPod | None:
        while self._heap:
            *_, queued = heappop(self._heap)
            if self._active.get(queued.uid) is queued:
                return self._active.pop(queued.uid)
        return None

    def _pop_early(self) -> QueuedPod | None:
        """If no pod is active, one that did not fit need not finish its back-off (1.33 and newer).
        One that met an error must."""
        ready = [queued for queued in self._backoff.values() if not queued.failed_in_error]
        if not ready:
            return None
        # Back-offs that end within the same second count as equal, so priority decides.
        first = min(
            ready, key=lambda q: (int(self._backoff_ends(q)), -q.pod.spec.priority, q.order)
        )
        return self._backoff.pop(first.uid)

    def _flush(self, now: float) -> None:
        for queued in [q for q in self._backoff.values() if self._backoff_ends(q) <= now]:
            del self._backoff[queued.uid]
            self._activate(queued)
        limit = now - self._max_unschedulable
        for queued in [q for q in self._unschedulable.values() if q.since <= limit]:
            del self._unschedulable[queued.uid]
            self._requeue(queued, now)

    def _requeue(self, queued: QueuedPod, now: float) -> None:
        if self._backoff_ends(queued) > now:
            self._backoff[queued.uid] = queued
        else:
            self._activate(queued)

    def _backoff_ends(self, queued: QueuedPod) -> float:
        """Return the end of the back-off: 1, 2, 4 … 10 s after the last try, by failures of that
        kind."""
        failures = queued.error_count if queued.failed_in_error else queued.unschedulable_count
        if not failures:
            return queued.since
        doublings = min(failures - 1, 16)  # far beyond any maximum
        return queued.since + min(self._initial_backoff * float(2**doublings), self._max_backoff)

    @staticmethod
    def _wakes(queued: QueuedPod, event: ClusterEvent) -> bool:
        if not queued.rejected_by or EXTENDER in queued.rejected_by:
            return True
        return any(event in _WAKES[plugin] for plugin in queued.rejected_by)

    @staticmethod
    def _wakes_on_update(queued: QueuedPod) -> bool:
        return not queued.rejected_by or EXTENDER in queued.rejected_by
