"""A plan of moves: which pods go, where their replacements go, and who gets the room."""

from collections.abc import Iterable
from dataclasses import dataclass

from linkwise.extender.api.records import PodRecord
from linkwise.extender.placement.result import Spot


@dataclass(frozen=True, slots=True)
class Move:
    pod: PodRecord  # as it runs
    spot: Spot  # of its replacement
    cost_seconds: float  # of its run that the restart loses


@dataclass(frozen=True, slots=True)
class MovePlan:
    moves: tuple[Move, ...]
    spots: tuple[Spot, ...]  # of the open members for which the others move


def gpus_by_node(spots: Iterable[Spot]) -> dict[str, int]:
    found: dict[str, int] = {}
    for spot in spots:
        found[spot.node] = found.get(spot.node, 0) | spot.gpus
    return found
