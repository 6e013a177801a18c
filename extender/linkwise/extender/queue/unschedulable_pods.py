"""Single pods that kube-scheduler found no node for: once our books show one, they are nominated.

kube-scheduler tries a pod again when a node or a pod changes. That is not always enough:

- It may ask before our own watch has shown us that change. Then it hears what was true before.
- It may never come to ask: it counts the pods that are nominated. When we take a gang's plan back,
  nothing tells it that their room is free again.
- It asks about a sample of a large cluster, and the node with room may be beside the sample.

In each case nothing makes it try for up to five minutes. So a pod that still waits a moment after
room appeared, or after such a sample, is nominated for a node that has room. That wakes the pod and
makes kube-scheduler try that node first. No GPU is held for it: what it finds there is decided when
it is bound, as for every single pod.

kube-scheduler does not only wait: it evicts others for a pod that is important enough. Where a node
that it asked about is about to have room, it is kept from that for a while (`preempting`).

A pod that waits for several GPUs is nominated by its plan: once kube-scheduler has written that it
lacks GPUs, the extender plans it ahead, as it does gangs (`reader`).

Who waits is known from our own answers and, also to a new extender, from what kube-scheduler writes
into the pod's status.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.node_table import popcount
from linkwise.extender.cache.pending_writes import NOMINATE_SECONDS, PendingWrites, nomination_pause
from linkwise.extender.placement.nodes.nodes_view import NodesView
from linkwise.extender.placement.nodes.scheduler_feedback import LEAST_SAMPLE
from linkwise.extender.placement.result import Refusal, Spot
from linkwise.extender.queue.reservations import Reservations
from linkwise.extender.queue.running_pods import STUCK_SECONDS

# kube-scheduler mostly asks again by itself within milliseconds, and comes in time.
MOMENT_SECONDS = 1.0
# kube-scheduler may ask about a pod before our own watch has shown it; one that takes longer than
# this was gone before we could see it.
UNSEEN_SECONDS = 60.0
# GPUs of a pod that is gone are given back within seconds. Those that are not by then are stuck, or
# we cannot see it; then others are evicted as kube-scheduler likes.
SOON_SECONDS = 30.0
# A free GPU wakes a few of the many who may want it, not all; much room wakes as many as it may do.
_FEW = 32


Find = Callable[[PodRecord, NodesView], Spot | Refusal]
"""The best node for a pod."""


@dataclass(slots=True)
class _Nomination:
    node: str
    at: float
    in_vain: int  # others before it, since kube-scheduler asked about the pod

    @property
    def tried_by(self) -> float:
        return self.at + nomination_pause(self.in_vain)


class UnschedulablePods:
    def __init__(
        self, cache: Cache, pending_writes: PendingWrites, reservations: Reservations, find: Find
    ) -> None:
        self._cache, self._pending_writes, self._reservations, self._find = (
            cache,
            pending_writes,
            reservations,
            find,
        )
        # By uid, who waits longest first: when each was first told.
        self._waiting: dict[str, float] = {}
        self._nominated: dict[str, _Nomination] = {}  # by uid; by us
        # By uid: since when each is nominated by kube-scheduler, as far as it was looked at.
        self._preempting: dict[str, float] = {}
        # By scheduler: whom it last asked about in vain, and the nodes. It works on one at a time.
        self._asked: dict[str, tuple[str, Sequence[str]]] = {}
        # By uid: the nodes that were about to have room instead of an eviction, and since when.
        self._soon: dict[str, dict[str, float]] = {}
        # By uid: whom nobody is evicted for, and whether because one of those nodes is awaited.
        self._kept: dict[str, bool] = {}
        # By uid, the first is first: those that were turned away on a sample of the nodes, and when
        # to look whether another node has room.
        self._sampled: dict[str, float] = {}
        self._room = cache.room  # as it was when somebody was last turned away, or looked at
        self._look_at: float | None = None
        self._news = False  # somebody waits who was not seen to be turned away

    @property
    def next_due(self) -> float | None:
        sampled_at = next(iter(self._sampled.values()), None)
        times = (self._look_at, sampled_at)
        return min((time for time in times if time is not None), default=None)

    def answered(
        self, record: PodRecord, now: float, *, has_room: bool, names: Sequence[str] = ()
    ) -> None:
        """What kube-scheduler was just told about the nodes that it asked for."""
        self._asked[record.scheduler] = record.uid, names
        if record.uid in self._nominated:
            self._nominated[record.uid].in_vain = -1  # nor will the next one be
        if has_room:
            self._waiting.pop(record.uid, None)
            self._sampled.pop(record.uid, None)
        else:
            self._waiting.setdefault(record.uid, now)
            if len(names) >= LEAST_SAMPLE:
                self._sampled.setdefault(record.uid, now + MOMENT_SECONDS)

    def nominated(self, record: PodRecord) -> str | None:
        """The node that this pod was nominated for here, to be tried there."""
        ours = self._nominated.get(record.uid)
        return ours.node if ours is not None and ours.node == record.nominated else None

    def take_asked(self, record: PodRecord) -> Sequence[str]:
        """The nodes that kube-scheduler sees room on for this pod, and that we have just refused:
        it is about to evict others."""
        uid, names = self._asked.pop(record.scheduler, ("", ()))
        return names if uid == record.uid else ()

    def may_wait_for(self, record: PodRecord, nodes: Collection[str], now: float) -> bool:
        """Whether nobody need be evicted for it: one of these nodes has room in a moment."""
        known = self._soon.pop(record.uid, {})
        if not nodes:
            return False
        self._soon[record.uid] = {node: known.get(node, now) for node in nodes}
        ends = self._soon_ends(record.uid)
        if now < ends:
            self._look_again(ends)
        return now < ends

    def evicts(self, record: PodRecord, *, somebody: bool, awaits_room: bool = False) -> None:
        """What came of kube-scheduler's wish to evict others for this pod. Where nothing did, the
        pod stays nominated where it was, and is not tried there."""
        if somebody or record.uid not in self._waiting:
            self._kept.pop(record.uid, None)
        else:
            self._kept[record.uid] = awaits_room
            self._news = self._news or bool(record.nominated)

    def changed(self, record: PodRecord) -> None:
        """A pod came, or changed."""
        if not _waits(record):
            self.forget(record.uid)
        elif record.unschedulable and record.uid not in self._waiting:
            self._waiting[record.uid] = 0.0
            self._news = True

    def since(self, uid: str, now: float) -> float:
        """When this pod was first told that it has to wait."""
        return self._waiting.get(uid, now)

    def look_now(self, now: float) -> None:
        """They may have been told that something has to be read first, and it was."""
        self._look_at = now

    def forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._nominated.pop(uid, None)
        self._preempting.pop(uid, None)
        self._soon.pop(uid, None)
        self._kept.pop(uid, None)
        self._sampled.pop(uid, None)

    def look(self, now: float) -> None:
        whom = self._whom_to_look_at(now)
        failed_searches: set[object] = set()
        woken, wanted = 0, 0
        there = int(popcount(self._cache.rows.free).sum()) if whom else 0
        for uid in whom:
            record = self._cache.pods.get(uid)
            if record is None and now - self._waiting[uid] < UNSEEN_SECONDS:
                self._look_again(now + MOMENT_SECONDS)
                continue
            if record is None or not _waits(record):
                self.forget(uid)
                continue
            is_asked_about = record.scheduler in self._cache.schedulers
            if record.awaits or not is_asked_about or self._is_in_hand(record, now):
                continue
            if uid in self._cache.assumed:
                continue  # it may go to one node alone (`bind`)
            spot = self._room_for(record, failed_searches, now)
            node = self._waited_in_vain(uid, now) if spot is None else spot.node
            if not node:
                continue
            if woken >= _FEW and wanted >= there:
                self._look_again(now + MOMENT_SECONDS)
                return
            if self._wake(record, node, now):
                woken, wanted = woken + 1, wanted + record.demand.gpus

    def _whom_to_look_at(self, now: float) -> list[str]:
        """All who wait, where there may be more room for each; else those that kube-scheduler has
        asked about with a sample of the nodes."""
        if self._is_time(now):
            self._look_at = None
            self._sampled.clear()
            return list(self._waiting)
        due = [uid for uid, at in self._sampled.items() if at <= now]
        for uid in due:
            del self._sampled[uid]
        return due

    def _is_in_hand(self, record: PodRecord, now: float) -> bool:
        """Whether kube-scheduler is about to try it, or makes room for it where it is nominated."""
        ours = self._nominated.get(record.uid)
        if not record.nominated:
            self._preempting.pop(record.uid, None)
            if ours is None or ours.in_vain <= 0:
                return False
            tried_by = ours.tried_by
        elif ours is not None and record.nominated == ours.node:
            tried_by = ours.tried_by
        elif record.preempts and record.uid not in self._kept:
            # It takes the nomination away where that comes to nothing, if no call of it is lost.
            tried_by = self._preempting.setdefault(record.uid, now) + SOON_SECONDS
            if self._somebody_leaves(record.nominated, now):
                tried_by = now + SOON_SECONDS
        else:
            return False
        if now < tried_by:
            self._look_again(tried_by)
        return now < tried_by

    def _somebody_leaves(self, node: str, now: float) -> bool:
        """And is not stuck: then kube-scheduler waits for a room that does not come."""
        info = self._cache.nodes.get(node)
        return info is not None and any(
            record.leaving and now < record.leaving_until + STUCK_SECONDS
            for record in info.bound.values()
        )

    def _room_for(self, record: PodRecord, failed_searches: set[object], now: float) -> Spot | None:
        """*hopeless*: the like of whom have no room, which is added to."""
        claimant = self._reservations.claimant_of_single(record)
        view = self._reservations.views(claimant, now)[-1]
        request = GpuRequest(record.demand, record.ask.requirement)
        alike = (request, record.template, record.needs, view.key)
        if alike in failed_searches:
            return None
        spot = self._find(record, view)
        if isinstance(spot, Refusal):
            failed_searches.add(alike)
            return None
        return spot

    def _soon_ends(self, uid: str) -> float:
        return max(self._soon[uid].values()) + SOON_SECONDS

    def _waited_in_vain(self, uid: str, now: float) -> str:
        """The node that did not come to have room. kube-scheduler tries it when it is nominated,
        and then evicts; nothing else makes it come again."""
        if not self._kept.get(uid):
            return ""
        ends = self._soon_ends(uid)
        if now < ends:
            self._look_again(ends)
            return ""
        return max(self._soon[uid])

    def _wake(self, record: PodRecord, node: str, now: float) -> bool:
        if record.nominated:
            # From a pod that may not preempt kube-scheduler never takes a nomination away, and one
            # that does not change wakes nobody.
            self._pending_writes.clear_nomination(record, now)
            self._look_again(now + MOMENT_SECONDS)
            return False
        if not self._pending_writes.nominate(record, node, now):
            self._look_again(now + NOMINATE_SECONDS)
            return False
        before = self._nominated.get(record.uid)
        in_vain = 0 if before is None else before.in_vain + 1
        self._nominated[record.uid] = _Nomination(node, now, in_vain)
        self._kept.pop(record.uid, None)
        self._look_again(now + NOMINATE_SECONDS)  # the call about it may be lost
        return True

    def _look_again(self, at: float) -> None:
        self._look_at = at if self._look_at is None else min(at, self._look_at)

    def _is_time(self, now: float) -> bool:
        if self._waiting and (self._cache.room != self._room or self._news):
            self._room, self._news = self._cache.room, False
            self._look_again(now + MOMENT_SECONDS)
        return self._look_at is not None and now >= self._look_at


def _waits(record: PodRecord) -> bool:
    """A plan that is still written on it, but that it is no more nominated for, is none."""
    return record.live and not record.node and record.gang is None and bool(record.demand.gpus)
