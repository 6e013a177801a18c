"""A plan of moves: which pods go, where their replacements go, and who gets the room."""

from collections.abc import Iterable
from dataclasses import dataclass

from linkwise.extender.place.request import Spot
from linkwise.extender.state.records import GangKey, PodRecord
from linkwise.extender.state.views import MoveState
from linkwise.topology.annotations.plan import PlannedShares
from linkwise.topology.machine.model import MAX_GPUS

_MOST_MOVES = 1024  # that a note, an annotation, has room for


@dataclass(frozen=True, slots=True)
class Move:
    pod: PodRecord  # as it runs
    spot: Spot  # of its replacement
    cost_seconds: float  # of its run that the restart loses
    shares: tuple[PlannedShares, ...] = ()  # of its replacement

    @property
    def gang(self) -> GangKey | None:
        """The gang with which the pod moves, or which spares it; None: it is a single pod."""
        return None if self.pod.ask.gang is None else self.pod.gang

    @property
    def lost(self) -> float:
        """GPU seconds; only whole GPUs count."""
        return self.cost_seconds * self.spot.gpus.bit_count()


@dataclass(frozen=True, slots=True)
class MovePlan:
    moves: tuple[Move, ...]
    spots: tuple[Spot, ...]  # of the open members for which the others move
    saved: float = 0.0  # GPU seconds; infinity: they would never start without the moves
    empties: str = ""  # the node that is being emptied; else it makes room for a gang or pod

    @property
    def lost(self) -> float:
        """GPU seconds."""
        return sum(move.lost for move in self.moves)


@dataclass(frozen=True, slots=True)
class MoveUnderWay:
    move: Move
    plan: MovePlan
    for_whom: GangKey
    # Until when its target is kept for its replacement; None: the pod has not begun to leave.
    kept_until: float | None

    @property
    def state(self) -> MoveState:
        return MoveState.EVICTING if self.kept_until is None else MoveState.LEFT


def most_moves(members: int) -> int:
    """How many pods move at most for so many that wait: more of one node make no room for one."""
    return min(members * MAX_GPUS, _MOST_MOVES)


def gpus_by_node(spots: Iterable[Spot]) -> dict[str, int]:
    found: dict[str, int] = {}
    for spot in spots:
        found[spot.node] = found.get(spot.node, 0) | spot.gpus
    return found
