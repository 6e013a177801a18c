"""Finds the moves that cost least and make room for a waiting gang or pod.

Nodes are emptied, as far as needed, in the order of what that costs per place that it makes. Each
pod that moves must have a place now, not once another has left it: all targets are reserved before
the first eviction. It goes where a new pod like it would go, and gets no worse links than it has.

The search is a greedy one that ends after some tries. If a pod has no place elsewhere, or a
PodDisruptionBudget protects it, its node is left out, and the rest is tried once more.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from linkwise.extender.api.records import GangKey, PodRecord, ResourceList
from linkwise.extender.api.unlocked import RunUnlocked, nothing
from linkwise.extender.cache.cache import Cache
from linkwise.extender.gangs.gang_search import GangSearch
from linkwise.extender.moves.places import Places
from linkwise.extender.moves.plan import Move, MovePlan, gpus_by_node
from linkwise.extender.placement.nodes.nodes_view import NodesView
from linkwise.extender.placement.result import Spot
from linkwise.extender.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.preemption.gang_room import GangRoom
from linkwise.extender.preemption.victim_selection import Unit

_MOST_SEARCHES = 8  # for places of the gang; each costs milliseconds
_AT_ONCE = 512  # nodes; each takes microseconds, while kube-scheduler's calls wait


@dataclass(frozen=True, slots=True)
class Mover:
    """A pod that may be moved."""

    pod: PodRecord
    gpus: int  # bitmask, on its node
    cost_seconds: float

    @property
    def lost(self) -> float:
        return self.cost_seconds * self.pod.demand.gpus

    @property
    def unit(self) -> Unit:
        return unit_of(self.pod)


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Movers of one node that make room there for some members."""

    node: str
    movers: tuple[Mover, ...]
    places: int

    @property
    def worth(self) -> tuple[float, int, str]:
        """Less is better."""
        lost = sum(mover.lost for mover in self.movers)
        return lost / self.places, len(self.movers), self.node


class MoveSearch:
    def __init__(
        self,
        cache: Cache,
        search: GangSearch,
        room: GangRoom,
        view: NodesView,
        needs: Sequence[ResourceList],
        budgets: DisruptionBudgets,
        aside: RunUnlocked,
    ) -> None:
        """*view*: what the pods that move may use. *needs*: of the pods of the gang that waits."""
        self._cache, self._search, self._room = cache, search, room
        self._base, self._changed = view.table(), view.changed
        self._needs, self._budgets, self._aside = needs, budgets, aside
        self._size = max(each.gpus for each in needs)
        self.placeless: set[str] = set()
        """The uids of pods that have no place elsewhere, even if no other pod moves."""

    def find(self, movers: Mapping[str, Sequence[Mover]], most_lost: float) -> MovePlan | None:
        """The moves of some of *movers* (by node) that lose at most *most_lost* GPU seconds; None:
        there are none, or none was found."""
        if self._room.seek(()) is not None:
            return None
        bundles = sorted(self._bundles(movers), key=lambda bundle: bundle.worth)
        self._aside(nothing)
        closed: set[str] = set()
        for _ in range(_MOST_SEARCHES):
            chosen = self._enough(bundles, closed, most_lost)
            if chosen is None:
                return None
            self._aside(nothing)
            units = [mover.unit for mover in chosen]
            spots = self._room.seek(units)
            if spots is None:
                closed.add(chosen[-1].pod.node)
                continue
            used = gpus_by_node(spots)
            needed = [mover for mover in chosen if mover.gpus & used.get(mover.pod.node, 0)]
            placed = self._places_of(needed, spots)
            if isinstance(placed, str):
                closed.add(placed)
                continue
            protected = self._protected(placed)
            if protected is not None:
                closed.add(protected)
                continue
            return MovePlan(tuple(placed), tuple(spots))
        return None

    def _bundles(self, movers: Mapping[str, Sequence[Mover]]) -> Iterable[_Bundle]:
        for number, (node, of_node) in enumerate(movers.items(), 1):
            if number % _AT_ONCE == 0:
                self._aside(nothing)
            info = self._cache.nodes.get(node)
            if info is None:
                continue
            free = int(self._base.free[info.row]).bit_count()
            have = free // self._size
            in_order = sorted(of_node, key=lambda m: (m.cost_seconds, -m.pod.demand.gpus))
            freed, taken = 0, []
            for mover in in_order:
                taken.append(mover)
                freed += mover.gpus.bit_count()
                places = (free + freed) // self._size - have
                if places:
                    yield _Bundle(node, self._thrifty(taken, free, places + have), places)

    def _thrifty(self, taken: Sequence[Mover], free: int, places: int) -> tuple[Mover, ...]:
        """Without those that the places do not need, the costliest first."""
        left = [*taken]
        spare = free + sum(m.gpus.bit_count() for m in taken) - places * self._size
        for mover in sorted(taken, key=lambda m: -m.lost):
            gpus = mover.gpus.bit_count()
            if gpus <= spare:
                spare -= gpus
                left.remove(mover)
        return tuple(left)

    def _enough(
        self, bundles: Sequence[_Bundle], closed: Collection[str], most_lost: float
    ) -> list[Mover] | None:
        """The cheapest bundles after which there may be room, at most one of each node."""
        on: dict[str, _Bundle] = {}
        lost = 0.0
        for bundle in bundles:
            if bundle.node in closed:
                continue
            before = on.get(bundle.node)
            if before is not None and before.places >= bundle.places:
                continue
            lost += sum(mover.lost for mover in bundle.movers)
            lost -= 0.0 if before is None else sum(mover.lost for mover in before.movers)
            if lost > most_lost:
                return None
            on[bundle.node] = bundle
            chosen = [mover for each in on.values() for mover in each.movers]
            if self._room.may_suffice([mover.unit for mover in chosen]):
                return chosen
        return None

    def _places_of(self, movers: Sequence[Mover], spots: Sequence[Spot]) -> list[Move] | str:
        """Where *movers* go, the largest first, if the gang is at *spots*; else the node of one
        that has no place."""
        places = Places(self._cache, self._search, self._base.trial(), self._changed)
        for spot, needs in zip(spots, self._needs, strict=True):
            places.take(spot, needs)
        moves: list[Move] = []
        for mover in sorted(movers, key=lambda m: (-m.pod.demand.gpus, m.pod.uid)):
            self._aside(nothing)
            move = places.move(mover.pod, mover.gpus, mover.cost_seconds)
            if move is None:
                if not moves:
                    self.placeless.add(mover.pod.uid)
                return mover.pod.node
            moves.append(move)
        return moves

    def _protected(self, moves: Sequence[Move]) -> str | None:
        """The node of a pod that a budget does not allow to evict beside those before it."""
        pods = [move.pod for move in moves]
        if self._budgets.allow(pods):
            return None
        counts = range(1, len(pods) + 1)
        first = bisect_left(counts, True, key=lambda count: not self._budgets.allow(pods[:count]))
        return pods[first].node


def unit_of(pod: PodRecord) -> Unit:
    """A single pod, as those have it that select victims."""
    name = pod.ref
    return Unit((pod,), pod.priority, pod.created, GangKey(name.namespace, name.name, name.uid))
