"""Where pods that move go: each where a new pod like it would go, with links no worse than it has,
on GPUs that are free now and that no pod before it gets. A gang goes where a new gang would.

kube-scheduler nominates a pod for a node where it evicts others. It keeps that room even if it does
not come free, and lets no less important pod in that needs it: there, a target would be in vain.
"""

from collections.abc import Sequence

from linkwise.extender.api.records import PodRecord, ResourceList
from linkwise.extender.api.unlocked import RunUnlocked
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.node_table import NodeTable
from linkwise.extender.gangs.gang_search import GangSearch
from linkwise.extender.gangs.members import GangMembers
from linkwise.extender.moves.plan import Move
from linkwise.extender.placement.nodes.nodes_view import NodesView, as_if
from linkwise.extender.placement.result import NoRoom, Spot

_WORSE = 0.999  # of the bandwidth that a pod has


class Places:
    def __init__(
        self, cache: Cache, search: GangSearch, table: NodeTable, changed: tuple[int, ...] = ()
    ) -> None:
        """*table*: what the pods may use; it changes here. *changed*: its rows that may differ from
        the cache's own table."""
        self._cache, self._search, self._table = cache, search, table
        self._changed = dict.fromkeys(changed)

    def close(self, node: str) -> None:
        """No pod goes to *node*."""
        self._table.free[row := self._table.row_of[node]] = 0
        self._changed[row] = None

    def take(self, spot: Spot, needs: ResourceList) -> None:
        """A pod with these *needs* gets *spot*."""
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
        """Where *pod*, which has *gpus* (a bitmask) of its node, goes; None: nowhere."""
        found = self._search.best_for(pod, self._view(pod.priority))
        if isinstance(found, NoRoom) or not self._is_as_good(pod, gpus, found):
            return None
        self.take(found, pod.needs)
        return Move(pod, found, cost_seconds)

    def move_gang(
        self,
        members: GangMembers,
        spots: Sequence[Spot],
        cost_seconds: float,
        now: float,
        aside: RunUnlocked,
    ) -> list[Move]:
        """Where the open *members* go, which are at *spots*; empty: nowhere. Raises
        StaleResult."""
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
        """Whether the gang communicates as well where it goes, and spans no wider domain."""
        here = self._search.judged(members, spots, view)
        there = self._search.judged(members, found, view)
        return (
            here is not None
            and there is not None
            and there.worth >= _WORSE * here.worth
            and there.level <= here.level
        )

    def _is_as_good(self, pod: PodRecord, gpus: int, spot: Spot) -> bool:
        if pod.demand.gpus < 2:
            return True
        request = GpuRequest(pod.demand, pod.ask.requirement)
        here, there = self._cache.nodes[pod.node].kind, self._cache.nodes[spot.node].kind
        if here is None or there is None:
            return False
        return there.quality(request, spot.gpus) >= _WORSE * here.quality(request, gpus)
