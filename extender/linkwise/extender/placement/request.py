"""What to place: members that are alike, and the members of their gang that have GPUs already."""

from dataclasses import dataclass

from linkwise.extender.api.records import ResourceList, Template
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.node_table import Bools


@dataclass(frozen=True, slots=True)
class PodSet:
    """Members that are alike, and the nodes on which they may run."""

    request: GpuRequest
    needs: ResourceList
    template: Template
    members: tuple[int, ...]  # their indices among all members, ascending
    unit: int  # consecutive members that belong closest together; 1: no such subgroups
    nodes: Bools  # [rows]


@dataclass(frozen=True, slots=True)
class PlacedMembers:
    """The nodes and GPUs that members of the gang have already."""

    rows: tuple[int, ...] = ()  # without repeats
    gpus: tuple[int, ...] = ()  # for each of these rows, bitmask of all members' GPUs there
    next_to: tuple[int, ...] = ()  # those of the rows with the next members in rank
    models: frozenset[str] = frozenset()  # of their GPUs


NONE_PLACED = PlacedMembers()
