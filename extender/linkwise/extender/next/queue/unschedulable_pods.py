"""Nominates single pods for which kube-scheduler found no node, once the cache shows one with room.

kube-scheduler tries a pod again when a node or a pod changes. That is not always enough:

- It may call before the extender's watch has seen that change. Then the answer is outdated.
- It may never call: it counts nominated pods as present. When the extender withdraws a gang's plan,
  nothing shows kube-scheduler that their room is free again.
- It calls with a sample of a large cluster, and the node with room may be outside the sample.

In each case up to five minutes pass before it tries again. If a pod still waits a moment after room
appeared, or after such a sample, the extender nominates it for a node that has room. That wakes the
pod and makes kube-scheduler try that node first. No GPU is reserved for it: the bind verb decides
what it gets there, as for every single pod.

kube-scheduler does not only wait: for a pod with enough priority it evicts others. If a node of its
call is about to have room, the extender prevents that for a while (`calls.preempt`).

A plan nominates a pod that waits for several GPUs: once kube-scheduler has written that the pod
lacks GPUs, the extender plans it ahead, like a gang (`state.cache.ingest`).

The extender knows the waiting pods from its own answers and from the pods' status, which
kube-scheduler writes and which a new extender can read too.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from linkwise.extender.next.queue.books import Books, Part
from linkwise.extender.next.queue.run_times import STUCK_SECONDS
from linkwise.extender.place.cluster_view import NodesView
from linkwise.extender.place.nodes.by_count import fits_by_count, nodes_by_count
from linkwise.extender.place.nodes.scheduler_feedback import names_all
from linkwise.extender.place.request import Spot
from linkwise.extender.place.shares.choice import Effort
from linkwise.extender.place.shares.nodes import best_share_node, request_of
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.cache.node_table import NodeTable, popcount
from linkwise.extender.state.cache.pending_writes import NOMINATE_SECONDS, nomination_pause
from linkwise.extender.state.records import PodMemory, PodRecord
from linkwise.extender.state.timers import Pause

# kube-scheduler mostly calls again by itself within milliseconds, and in time.
MOMENT_SECONDS = 1.0
# kube-scheduler may call about a pod before the extender's watch has seen it; a pod that stays
# unseen for longer was deleted before the watch could see it.
UNSEEN_SECONDS = 60.0
# GPUs of a pod that is gone are returned within seconds. If they are not by then, they are stuck,
# or the extender cannot see them; then kube-scheduler may evict others as it likes.
SOON_SECONDS = 30.0
# A free GPU wakes a few of the many pods that may request it; more room wakes as many as may fit.
_FEW = 32
# Nodes searched until others may use the core, and in one look; the next one goes on.
_ROWS_AT_ONCE, _MOST_ROWS = 20_000, 200_000


@dataclass(slots=True)
class _Nomination:
    node: str
    at: float
    in_vain: int  # earlier nominations since kube-scheduler's last call about the pod

    @property
    def tried_by(self) -> float:
        return self.at + nomination_pause(self.in_vain)


class UnschedulablePods(Part):
    def __init__(self, books: Books) -> None:
        super().__init__(books)
        books.agenda.ask(self._times)
        # What is kept of a pod until it waits no more, or is gone.
        waiting = PodMemory()
        books.cache.memory.ask(waiting.gone)
        self._forget = waiting.gone
        self._left: dict[str, None] = {}  # pods that the last look did not come to, in order
        self._searches = 0  # of this look
        # uid -> when its first refusal was sent; the pod that waits longest is first.
        self._waiting: dict[str, float] = waiting.dict()
        self._nominated: dict[str, _Nomination] = waiting.dict()  # by uid; by the extender
        # uid -> since when kube-scheduler nominates it, as far as the extender has seen.
        self._preempting: dict[str, float] = waiting.dict()
        # scheduler -> the pod and the nodes of its last call. It tries one pod at a time.
        self._asked: dict[str, tuple[str, Sequence[str]]] = {}
        # uid -> the nodes that were about to have room instead of an eviction, and since when.
        self._soon: dict[str, dict[str, float]] = waiting.dict()
        # uid of a pod for which no other is evicted -> whether it awaits one of those nodes.
        self._kept: dict[str, bool] = waiting.dict()
        # uid of a pod that was refused on a part of the nodes -> when to look for room on another
        # node; the earliest is first.
        self._sampled: dict[str, float] = waiting.dict()
        self._room = books.cache.room  # at the last refusal or look
        self._look_at: float | None = None
        self._news = False  # a pod waits whose refusal the extender did not see

    def _times(self) -> Iterable[float]:
        if self._look_at is not None:
            yield self._look_at
        yield from islice(self._sampled.values(), 1)
        if self._left:
            yield 0.0

    def answered(
        self,
        record: PodRecord,
        now: float,
        *,
        has_room: bool,
        names: Sequence[str] = (),
        is_partial: bool = False,
    ) -> None:
        """Record the extender's answer to kube-scheduler's call with the nodes *names*.
        *is_partial*: it did not come to look at some of them."""
        self._asked[record.scheduler] = record.uid, names
        if record.uid in self._nominated:
            self._nominated[record.uid].in_vain = -1  # so the next nomination counts as 0
        if has_room:
            self._waiting.pop(record.uid, None)
            self._sampled.pop(record.uid, None)
        else:
            self._waiting.setdefault(record.uid, now)
            if is_partial or not names_all(names):
                self._sampled.setdefault(record.uid, now + MOMENT_SECONDS)

    def nominated(self, record: PodRecord) -> str | None:
        """The node for which the extender nominated this pod, if that nomination still stands."""
        ours = self._nominated.get(record.uid)
        return ours.node if ours is not None and ours.node == record.nominated else None

    def take_asked(self, record: PodRecord) -> Sequence[str]:
        """The nodes on which kube-scheduler sees room for this pod, and which the extender has just
        refused: kube-scheduler is about to evict others."""
        uid, names = self._asked.pop(record.scheduler, ("", ()))
        return names if uid == record.uid else ()

    def may_wait_for(self, record: PodRecord, nodes: Collection[str], now: float) -> bool:
        """Whether the pod needs no eviction, because one of *nodes* has room in a moment."""
        known = self._soon.pop(record.uid, {})
        if not nodes:
            return False
        self._soon[record.uid] = {node: known.get(node, now) for node in nodes}
        ends = self._soon_ends(record.uid)
        if now < ends:
            self._look_again(ends)
        return now < ends

    def note_preemption(
        self, record: PodRecord, *, any_victims: bool, awaits_room: bool = False
    ) -> None:
        """Record the result of kube-scheduler's preemption for this pod: *any_victims* says
        whether pods are evicted. If not, the pod stays nominated where it was, and kube-scheduler
        does not try it."""
        if any_victims or record.uid not in self._waiting:
            self._kept.pop(record.uid, None)
        else:
            self._kept[record.uid] = awaits_room
            self._news = self._news or bool(record.nominated)

    def changed(self, record: PodRecord) -> None:
        """A pod was created, or changed."""
        if not _waits(record):
            self._forget(record.uid)
        elif record.unschedulable and record.uid not in self._waiting:
            self._waiting[record.uid] = 0.0
            self._news = True

    def since(self, uid: str, now: float) -> float:
        """When the extender first refused this pod."""
        return self._waiting.get(uid, now)

    def look_now(self, now: float) -> None:
        """Look at once: refusals may have named an object to read, and it has been read."""
        self._look_at = now

    def look(self, now: float, pause: Pause = lambda: None) -> None:
        """*pause* lets others use the core after a while."""
        whom = self._whom_to_look_at(now)
        failed_searches: set[object] = set()
        enough = _Enough(self._cache)
        most = _MOST_ROWS // max(len(self._cache.rows), 1)
        at_once = max(_ROWS_AT_ONCE // max(len(self._cache.rows), 1), 1)
        self._searches = 0
        for number, uid in enumerate(whom):
            if self._searches > most:
                self._left = dict.fromkeys(whom[number:])
                return
            before = self._searches
            self._look_at_one(uid, failed_searches, enough, now)
            if self._searches // at_once > before // at_once:
                pause()

    def _look_at_one(
        self, uid: str, failed_searches: set[object], enough: "_Enough", now: float
    ) -> None:
        record, since = self._cache.pods.get(uid), self._waiting.get(uid)
        if since is None:
            return  # it was answered during a pause
        if record is None and now - since < UNSEEN_SECONDS:
            self._look_again(now + MOMENT_SECONDS)
            return
        if record is None or not _waits(record):
            self._forget(uid)
            return
        is_asked_about = record.scheduler in self._cache.schedulers
        if record.awaits or not is_asked_about or self._is_in_hand(record, now):
            return
        if uid in self._cache.assumed:
            return  # it may go to one node alone (`calls.bind`)
        if enough.are_woken(record):
            self._look_again(now + MOMENT_SECONDS)
            return
        node = self._room_for(record, failed_searches, now) or self._waited_in_vain(uid, now)
        if node and self._wake(record, node, now):
            enough.note(record)

    def _whom_to_look_at(self, now: float) -> list[str]:
        """All waiting pods, if each of them may have more room; else those about which
        kube-scheduler called with a sample of the nodes. First those that the last look did not
        come to."""
        if self._is_time(now):
            self._look_at = None
            self._sampled.clear()
            left, self._left = self._left, {}
            return [
                *dict.fromkeys([*(uid for uid in left if uid in self._waiting), *self._waiting])
            ]
        due = [uid for uid, at in self._sampled.items() if at <= now]
        for uid in due:
            del self._sampled[uid]
        left, self._left = self._left, {}
        return [*dict.fromkeys([*left, *due])]

    def _is_in_hand(self, record: PodRecord, now: float) -> bool:
        """Whether kube-scheduler is about to try the pod, or makes room on its nominated node."""
        ours = self._nominated.get(record.uid)
        if not record.nominated:
            self._preempting.pop(record.uid, None)
            if ours is None or ours.in_vain <= 0:
                return False
            tried_by = ours.tried_by
        elif ours is not None and record.nominated == ours.node:
            tried_by = ours.tried_by
        elif record.preempts and record.uid not in self._kept:
            # If that fails, kube-scheduler clears the nomination, unless one of its calls is lost.
            tried_by = self._preempting.setdefault(record.uid, now) + SOON_SECONDS
            if self._somebody_leaves(record.nominated, now):
                tried_by = now + SOON_SECONDS
        else:
            return False
        if now < tried_by:
            self._look_again(tried_by)
        return now < tried_by

    def _somebody_leaves(self, node: str, now: float) -> bool:
        """Whether a pod on *node* is terminating and not stuck. If it is stuck, kube-scheduler
        waits for room that does not come."""
        info = self._cache.nodes.get(node)
        return info is not None and any(
            record.leaving and now < record.leaving_until + STUCK_SECONDS
            for record in info.bound.values()
        )

    def _room_for(self, record: PodRecord, failed_searches: set[object], now: float) -> str:
        """A node with room for the pod; empty: none. *failed_searches* holds the requests that have
        no room; a search that fails is added."""
        claimant = self._reservations.claimant_of_single(record)
        view = self._reservations.views(claimant, now)[-1]
        request = GpuRequest(record.demand, record.ask.requirement)
        alike = (request, request_of(record), record.template, record.needs, view.key)
        if alike in failed_searches:
            return ""
        node = self._node_for(record, request, view, now)
        if not node:
            failed_searches.add(alike)
        return node

    def _node_for(self, record: PodRecord, request: GpuRequest, view: NodesView, now: float) -> str:
        """First whole GPUs, then shares instead of them, as in `calls.filter`."""
        self._searches += 1
        cache, gpus, room = self._cache, record.demand.gpus, self._best_node.room()
        effort = Effort()
        if gpus and record.shares:
            table = view.table()
            wants = request_of(record)
            node = best_share_node(
                cache, room, record, wants, effort, lambda on: _has_gpus(table, on, request)
            )
        elif gpus:
            spot = self._search.best_for(record, view)
            node = spot.node if isinstance(spot, Spot) else None
        else:
            node = None
        if node is None:
            wants = request_of(record, in_place=True)
            node = best_share_node(cache, room, record, wants, effort)
        if node is None and not record.shares:
            counted = (on.name for on in nodes_by_count(cache) if fits_by_count(cache, on, record))
            node = next(counted, None)
        if node is None and effort.is_spent:
            self._sampled.setdefault(record.uid, now + MOMENT_SECONDS)
        return node or ""

    def _soon_ends(self, uid: str) -> float:
        return max(self._soon[uid].values()) + SOON_SECONDS

    def _waited_in_vain(self, uid: str, now: float) -> str:
        """The node that did not get room in time; empty: none. If the pod is nominated for it,
        kube-scheduler tries it, and then evicts; nothing else makes it try again."""
        if not self._kept.get(uid):
            return ""
        ends = self._soon_ends(uid)
        if now < ends:
            self._look_again(ends)
            return ""
        return max(self._soon[uid])

    def _wake(self, record: PodRecord, node: str, now: float) -> bool:
        if record.nominated or record.plan_for(node) is not None:
            # kube-scheduler never clears the nomination of a pod that may not preempt, and a
            # nomination that does not change wakes no pod. With it, a plan for that node would
            # count again, and reserve GPUs for a pod that waits for something else.
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
        self._look_again(now + NOMINATE_SECONDS)  # kube-scheduler's call may be lost
        return True

    def _look_again(self, at: float) -> None:
        self._look_at = at if self._look_at is None else min(at, self._look_at)

    def _is_time(self, now: float) -> bool:
        if self._waiting and (self._cache.room != self._room or self._news):
            self._room, self._news = self._cache.room, False
            self._look_again(now + MOMENT_SECONDS)
        return self._look_at is not None and now >= self._look_at


class _Enough:
    """How many pods one look wakes, by the resource for which they wait."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._woken: Counter[str] = Counter()
        self._wanted: Counter[str] = Counter()
        self._there: dict[str, int] = {}

    def are_woken(self, record: PodRecord) -> bool:
        """Whether other pods are woken for all that there is of what this one wants."""
        return any(
            self._woken[name] >= _FEW and self._wanted[name] >= self._free(name)
            for name, _ in self._wants(record)
        )

    def note(self, record: PodRecord) -> None:
        for name, count in self._wants(record):
            self._woken[name] += 1
            self._wanted[name] += count

    def _wants(self, record: PodRecord) -> list[tuple[str, int]]:
        wants = [(name, demand.gpus) for name, demand in record.shares]
        gpus = record.demand.gpus
        return [(record.resource, gpus), *wants] if gpus else wants

    def _free(self, name: str) -> int:
        if name not in self._there:
            cache = self._cache
            free = sum(info.shares.free.get(name, 0) for info in cache.usable())
            if name in cache.resources:  # with those of others: some more are woken
                free += int(popcount(cache.rows.free).sum())
                free += sum(max(info.left.gpus, 0) for info in nodes_by_count(cache))
            self._there[name] = free
        return self._there[name]


def _has_gpus(table: NodeTable, info: NodeInfo, request: GpuRequest) -> bool:
    free = int(table.free[info.row])
    return info.kind is not None and info.kind.take(request, free) is not None


def _waits(record: PodRecord) -> bool:
    """A plan that is still on the pod, but for which it is no longer nominated, does not count."""
    open_ = record.live and not record.node and not record.left_alone
    return open_ and not record.in_planned_gang and bool(record.demand.gpus or record.shares)
