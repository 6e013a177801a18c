"""The node and GPU set of each member of a gang, and what the whole is worth."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from linkwise.extender.place.cluster_view import Counts
from linkwise.extender.place.communicator import TOLERANCE
from linkwise.extender.place.criteria import OF_ASSIGNMENTS
from linkwise.extender.place.request import PodSet


@dataclass(frozen=True, slots=True)
class AssignedPart:
    """Members of one pod set on one node."""

    row: int
    pod_set: int  # its index among the pod sets
    sets: tuple[int, ...]  # GPU sets as bitmasks, in the order of ranks


@dataclass(frozen=True, slots=True)
class Assignment:
    """The parts in the order of ranks, and the values by which assignments are compared."""

    parts: tuple[AssignedPart, ...]
    worth: float  # GB/s of the communicator
    own: float  # GB/s of the slowest member's own ring
    damage: float  # GB/s that later jobs lose
    level: int = 0  # the nearest level at which one domain holds all; 0: one node
    domains: Counts = ()  # of each nearer level, the widest first

    @property
    def nodes(self) -> int:
        return len({part.row for part in self.parts})

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key among assignments of equal worth; the greater is better."""
        values = ((getattr(self, of.of), of.more) for of in OF_ASSIGNMENTS)
        return tuple(
            each if more else -each
            for value, more in values
            for each in (value if isinstance(value, tuple) else (value,))
        )

    def of_members(self, pod_sets: Sequence[PodSet]) -> Iterator[tuple[int, int, int]]:
        """(member, row, GPU set) of each member."""
        for number, pods in enumerate(pod_sets):
            dealt = [
                (part.row, gpus)
                for part in self.parts
                if part.pod_set == number
                for gpus in part.sets
            ]
            for member, (row, gpus) in zip(pods.members, dealt, strict=True):
                yield member, row, gpus


def best_of(found: Sequence[Assignment]) -> Assignment:
    """The best by `order` among those whose worth is within the tolerance of the highest."""
    least = (1 - TOLERANCE) * max(each.worth for each in found)
    return max((each for each in found if each.worth >= least), key=lambda each: each.order)
