"""Finds the moves that cost least and make room for a waiting gang or pod.

Nodes are emptied, as far as needed, in the order of what that costs per place that it makes. Each
pod that moves must have a place now, not once another has left it: all targets are reserved before
the first eviction. A single pod goes where a new pod like it would go, and a gang as a whole where
a new gang would. Neither gets worse links than it has. A member that its gang can spare goes where
one that the gang lost would go.

Only whole GPUs make room. A divided GPU is given to no pod as a whole, not even once all have left
it, so pods that have shares alone do not move for others.

The search is a greedy one that ends after some tries. If a pod has no place elsewhere, or a
PodDisruptionBudget protects it, its node is left out, and the rest is tried once more; of a gang,
the gang.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from linkwise.extender.next.gangs.gang_search import GangSearch, StaleResult
from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.moves.places import Places
from linkwise.extender.next.moves.plan import Move, MovePlan, gpus_by_node, most_moves
from linkwise.extender.next.preemption.disruption_budgets import DisruptionBudgets
from linkwise.extender.next.preemption.gang_room import GangRoom
from linkwise.extender.next.preemption.victim_selection import Unit
from linkwise.extender.place.cluster_view import NodesView
from linkwise.extender.place.request import Spot
from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.records import GangKey, PodRecord, ResourceList
from linkwise.extender.state.timers import RunUnlocked, nothing

_MOST_SEARCHES = 8  # for places of the gang; each costs milliseconds
_AT_ONCE = 512  # nodes; each takes microseconds, while kube-scheduler's calls wait


@dataclass(frozen=True, slots=True)
class Mover:
    """A single pod, all members of a gang, or one that it can spare, that may be moved."""

    pods: tuple[PodRecord, ...]  # in the order of their ranks
    spots: tuple[Spot, ...]  # where they are
    cost_seconds: float
    members: GangMembers | None = None  # of the whole gang
    on: Mapping[str, int] = field(init=False)  # node -> its GPUs there, a bitmask

    def __post_init__(self) -> None:
        object.__setattr__(self, "on", gpus_by_node(self.spots))

    @property
    def uid(self) -> str:
        return self.pods[0].uid

    @property
    def gpus(self) -> int:
        return sum(pod.demand.gpus for pod in self.pods)

    @property
    def lost(self) -> float:
        return self.cost_seconds * self.gpus

    @property
    def again(self) -> GangMembers | None:
        """The gang as its new members are placed."""
        if self.members is None:
            return None
        uids = {pod.uid for pod in self.pods}
        stay = tuple(member for member in self.members.bound if member.uid not in uids)
        return replace(self.members, open=self.pods, bound=stay, started=False)

    @property
    def unit(self) -> Unit:
        """As those have it that select victims."""
        first = self.pods[0]
        name = first.ref
        key = GangKey(name.namespace, name.name, name.uid)
        return Unit(self.pods, first.priority, first.created, key)

    @property
    def left_out(self) -> str:
        """What is left out if it cannot move: its node, or the gang."""
        return self.uid if self.members is not None else self.pods[0].node


@dataclass(frozen=True, slots=True)
class _Bundle:
    """Movers of one node that make room there for some members, and elsewhere for *more*."""

    node: str
    movers: tuple[Mover, ...]
    places: int
    more: int
    wanted: int

    @property
    def worth(self) -> tuple[float, int, str]:
        """Less is better."""
        lost = sum(mover.lost for mover in self.movers)
        places = min(self.places + self.more, max(self.places, self.wanted))
        return lost / places, sum(len(mover.pods) for mover in self.movers), self.node


class MoveSearch:
    def __init__(
        self,
        cache: Cache,
        *,
        search: GangSearch,
        room: GangRoom,
        view: NodesView,
        needs: Sequence[ResourceList],
        budgets: DisruptionBudgets,
        now: float,
        aside: RunUnlocked,
    ) -> None:
        """*view*: what the pods that move may use. *needs*: of the pods of the gang that waits."""
        self._cache, self._search, self._room = cache, search, room
        self._base, self._changed = view.table().copy(), view.changed
        self._nodes = cache.changed_rows.generation
        self._needs, self._budgets, self._now, self._aside = needs, budgets, now, aside
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
        left_out: set[str] = set()
        for _ in range(_MOST_SEARCHES):
            chosen = self._enough(bundles, left_out, most_lost)
            if chosen is None:
                return None
            self._aside(nothing)
            spots = self._room.seek([mover.unit for mover in chosen])
            if spots is None:
                left_out.add(chosen[-1].left_out)
                continue
            used = gpus_by_node(spots)
            needed = [mover for mover in chosen if _overlap(mover.on, used)]
            needed.sort(key=lambda mover: (-mover.gpus, mover.uid))
            placed = self._places_of(needed, spots)
            stays = placed if isinstance(placed, Mover) else self._protected(needed)
            if not isinstance(placed, Mover) and stays is None:
                return MovePlan(tuple(placed), tuple(spots))
            assert stays is not None, "one of the two"
            left_out.add(stays.left_out)
        return None

    def _bundles(self, movers: Mapping[str, Sequence[Mover]]) -> Iterable[_Bundle]:
        by_uid = {mover.uid: mover for of_node in movers.values() for mover in of_node}
        made = {
            uid: self._places_on_each(mover)
            for uid, mover in by_uid.items()
            if mover.members is not None
        }
        for number, (node, of_node) in enumerate(movers.items(), 1):
            if number % _AT_ONCE == 0:
                self._aside(nothing)
            info = self._cache.nodes.get(node)
            if info is None:
                continue
            free = int(self._base.free[info.row]).bit_count()
            have = free // self._size
            in_order = sorted(of_node, key=lambda m: (m.cost_seconds, -m.gpus))
            freed, taken = 0, []
            for mover in in_order:
                taken.append(mover)
                freed += mover.on[node].bit_count()
                places = (free + freed) // self._size - have
                if places:
                    chosen = self._thrifty(taken, node, free, places + have)
                    more = [made[each.uid] for each in chosen if each.members is not None]
                    elsewhere = sum(sum(each.values()) - each.get(node, 0) for each in more)
                    yield _Bundle(node, chosen, places, elsewhere, len(self._needs))

    def _places_on_each(self, mover: Mover) -> dict[str, int]:
        """By node: the places that the gang makes if no other pod moves."""
        found = {}
        for node, gpus in mover.on.items():
            row = self._base.row_of.get(node)
            free = 0 if row is None else int(self._base.free[row]).bit_count()
            found[node] = (free + gpus.bit_count()) // self._size - free // self._size
        return found

    def _thrifty(
        self, taken: Sequence[Mover], node: str, free: int, places: int
    ) -> tuple[Mover, ...]:
        """Without those that the places do not need, the costliest first."""
        left = [*taken]
        spare = free + sum(m.on[node].bit_count() for m in taken) - places * self._size
        for mover in sorted(taken, key=lambda m: -m.lost):
            gpus = mover.on[node].bit_count()
            if gpus <= spare:
                spare -= gpus
                left.remove(mover)
        return tuple(left)

    def _enough(
        self, bundles: Sequence[_Bundle], left_out: Collection[str], most_lost: float
    ) -> list[Mover] | None:
        """The cheapest bundles after which there may be room, at most one of each node."""
        on: dict[str, _Bundle] = {}
        for bundle in bundles:
            if bundle.node in left_out or any(m.uid in left_out for m in bundle.movers):
                continue
            before = on.get(bundle.node)
            if before is not None and before.places >= bundle.places:
                continue
            each = {**on, bundle.node: bundle}.values()
            chosen = [*{mover.uid: mover for one in each for mover in one.movers}.values()]
            if _tears(chosen):
                continue
            pods = sum(len(mover.pods) for mover in chosen)
            if sum(mover.lost for mover in chosen) > most_lost or pods > most_moves(
                len(self._needs)
            ):
                if any(mover.members is not None for mover in bundle.movers):
                    continue  # a gang is large: less may do
                return None
            on[bundle.node] = bundle
            if self._room.may_suffice([mover.unit for mover in chosen]):
                return chosen
        return None

    def _places_of(self, movers: Sequence[Mover], spots: Sequence[Spot]) -> list[Move] | Mover:
        """Where *movers* go, in this order, if the gang is at *spots*; else the first that has no
        place. Raises StaleResult."""
        places = Places(self._cache, self._search, self._base.trial(), self._changed)
        for spot, needs in zip(spots, self._needs, strict=True):
            places.take(spot, needs)
        moves: list[Move] = []
        for mover in movers:
            self._aside(nothing)
            if self._cache.changed_rows.generation != self._nodes:
                raise StaleResult
            found = _moves_of(mover, places, self._now, self._aside)
            if not found:
                if not moves:
                    self.placeless.add(mover.uid)
                return mover
            moves += found
        return moves

    def _protected(self, movers: Sequence[Mover]) -> Mover | None:
        """One that a budget does not allow to evict beside those before it."""
        if self._budgets.allow(_pods_of(movers)):
            return None
        counts = range(1, len(movers) + 1)
        first = bisect_left(
            counts, True, key=lambda count: not self._budgets.allow(_pods_of(movers[:count]))
        )
        return movers[first]


def _moves_of(mover: Mover, places: Places, now: float, aside: RunUnlocked) -> Sequence[Move]:
    """Empty: it has no place. Raises StaleResult."""
    if (members := mover.again) is not None:
        return places.move_gang(members, mover.spots, mover.cost_seconds, now, aside)
    [pod], [spot] = mover.pods, mover.spots
    move = places.move(pod, spot.gpus, mover.cost_seconds)
    return [] if move is None else [move]


def _pods_of(movers: Iterable[Mover]) -> list[PodRecord]:
    return [pod for mover in movers for pod in mover.pods]


def _tears(movers: Iterable[Mover]) -> bool:
    """Whether two of them are of one gang: the members of a gang move together, or one does."""
    gangs = [mover.pods[0].gang for mover in movers if mover.members is not None]
    return len({*gangs}) < len(gangs)


def _overlap(one: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return any(gpus & other.get(node, 0) for node, gpus in one.items())
