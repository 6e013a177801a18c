"""Where pods that move go: each where a new pod like it would go, with links no worse than it has,
on GPUs and shares that are free now and that no pod before it gets. A gang goes where a new gang
would.

kube-scheduler nominates a pod for a node where it evicts others. It keeps that room even if it does
not come free, and lets no less important pod in that needs it: there, a target would be useless.
"""

from collections.abc import Sequence
from dataclasses import replace

from linkwise.extender.next.gangs.gang_search import GangSearch
from linkwise.extender.next.gangs.members import GangMembers, spots_of
from linkwise.extender.next.moves.plan import Move
from linkwise.extender.place.cluster_view import NodesView, as_if
from linkwise.extender.place.request import NoRoom, Spot
from linkwise.extender.place.shares.choice import ShareRequest, choose_shares
from linkwise.extender.place.shares.nodes import request_of
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_info import NodeInfo
from linkwise.extender.state.cache.node_table import NodeTable
from linkwise.extender.state.cache.shares.book import ShareBook
from linkwise.extender.state.records import PodRecord, ResourceList
from linkwise.extender.state.timers import RunUnlocked
from linkwise.topology.annotations.plan import PlannedShares

_WORSE = 0.999  # of the bandwidth that a pod has


class Places:
    def __init__(
        self, cache: Cache, search: GangSearch, table: NodeTable, changed: tuple[int, ...] = ()
    ) -> None:
        """*table*: what the pods may use; it changes here. *changed*: its rows that may differ from
        the cache's own table."""
        self._cache, self._search, self._table = cache, search, table
        self._changed = dict.fromkeys(changed)
        self._books: dict[str, ShareBook] = {}  # of the nodes whose shares pods have got here

    def close(self, node: str) -> None:
        """No pod goes to *node*."""
        self._books[node] = ShareBook()
        self._table.free[row := self._table.row_of[node]] = 0
        self._changed[row] = None

    def take(self, spot: Spot, needs: ResourceList, shares: Sequence[PlannedShares] = ()) -> None:
        """A pod with these *needs* gets *spot*, and *shares* there."""
        if shares:
            book = self._books.get(spot.node, self._cache.nodes[spot.node].shares)
            self._books[spot.node] = book.reserving(shares)
        row = self._table.row_of[spot.node]
        self._table.free[row] &= ~spot.gpus
        self._table.left.take(row, needs)
        self._changed[row] = None

    def give_back(self, spot: Spot, needs: ResourceList) -> None:
        """A pod with these *needs* leaves *spot*."""
        row = self._table.row_of[spot.node]
        self._table.free[row] |= spot.gpus
        self._table.left.give_back(row, needs)
        self._changed[row] = None

    def move(self, pod: PodRecord, gpus: int, cost_seconds: float) -> Move | None:
        """Where *pod*, which has *gpus* (a bitmask) of its node, goes; None: nowhere. Shares stand
        in for whole GPUs only of one that has no whole ones, and only if no node has some."""
        view = self._view(pod.priority)
        if pod.shares or isinstance(found := self._search.best_for(pod, view), NoRoom):
            return self._move_with_shares(pod, gpus, cost_seconds, view)
        if not self._is_as_good(pod, gpus, found):
            return None
        self.take(found, pod.needs)
        return Move(pod, found, cost_seconds)

    def _move_with_shares(
        self, pod: PodRecord, gpus: int, cost_seconds: float, view: NodesView
    ) -> Move | None:
        request = self._share_request(pod, gpus)
        if not request.wants:
            return None

        def gpus_of(info: NodeInfo, free: int) -> int | None:
            if not (gpus and pod.demand.gpus):
                return 0
            whole = GpuRequest(pod.demand, pod.ask.requirement)
            taken = None if info.kind is None else info.take(whole, free)
            is_as_good = taken and self._is_as_good(pod, gpus, Spot(info.name, taken))
            return taken if is_as_good else None

        found = self._search.best_with_shares(pod, request, gpus_of, view, self._books)
        if found is None or found[1].quality < _WORSE * self._share_quality(pod, request):
            return None
        spot, choice = found
        self.take(spot, pod.needs, choice.shares)
        return Move(pod, spot, cost_seconds, choice.shares)

    def _share_request(self, pod: PodRecord, gpus: int) -> ShareRequest:
        return request_of(pod, in_place=not gpus)

    def _share_quality(self, pod: PodRecord, request: ShareRequest) -> float:
        """The most GB/s that the pod can have where it is, as it may have by now; 0: none."""
        info = self._cache.nodes[pod.node]
        if info.kind is None:
            return 0.0
        best = choose_shares(info.kind, info.shares.without({pod.uid}, 0), request)
        return 0.0 if best is None else best.quality

    def move_gang(
        self,
        members: GangMembers,
        spots: Sequence[Spot],
        cost_seconds: float,
        now: float,
        aside: RunUnlocked,
    ) -> list[Move]:
        """Where the open *members* go, which are at *spots*, beside those that stay; empty:
        nowhere. Raises StaleResult."""
        view = self._view(min(pod.priority for pod in members.open))
        found = self._search.seek(members, now, aside=aside, view=view)
        if isinstance(found, NoRoom) or not self._is_as_close(members, spots, found, view):
            return []
        for pod, before, spot in zip(members.open, spots, found, strict=True):
            if not self._is_as_good(pod, before.gpus, spot):
                return []
        for pod, spot in zip(members.open, found, strict=True):
            self.take(spot, pod.needs)
        return [
            Move(pod, spot, cost_seconds) for pod, spot in zip(members.open, found, strict=True)
        ]

    def _view(self, priority: int) -> NodesView:
        """What a pod of this *priority* may use."""
        table, changed = self._table.trial(), dict(self._changed)
        for pod in self._cache.nominated():
            row = table.row_of.get(pod.nominated)
            if row is not None and pod.priority >= priority:
                table.left.take(row, pod.needs)
                changed[row] = None
        return as_if(table, tuple(changed))

    def _is_as_close(
        self,
        members: GangMembers,
        spots: Sequence[Spot],
        found: Sequence[Spot],
        view: NodesView,
    ) -> bool:
        """Whether the gang communicates as well where it goes, and spans no wider domain and no
        more nearer ones."""
        stay = spots_of(self._cache, members)
        whole = replace(members, open=(*members.open, *members.bound), bound=())
        here = self._search.judged(whole, (*spots, *stay), view)
        there = self._search.judged(whole, (*found, *stay), view)
        return (
            here is not None
            and there is not None
            and there.worth >= _WORSE * here.worth
            and (there.level, there.domains) <= (here.level, here.domains)
        )

    def _is_as_good(self, pod: PodRecord, gpus: int, spot: Spot) -> bool:
        if pod.demand.gpus < 2:
            return True
        request = GpuRequest(pod.demand, pod.ask.requirement)
        here, there = self._cache.nodes[pod.node].kind, self._cache.nodes[spot.node].kind
        if here is None or there is None:
            return False
        if gpus:
            before = here.quality(request, gpus)
        else:
            before = self._share_quality(pod, self._share_request(pod, gpus))
        return there.quality(request, spot.gpus) >= _WORSE * before
