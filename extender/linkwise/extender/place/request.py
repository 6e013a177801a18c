"""What a search places, and its results."""

from dataclasses import dataclass

from linkwise.extender.state.cache.machine_kind import GpuRequest
from linkwise.extender.state.cache.node_table import Bools
from linkwise.extender.state.records import ResourceList, Template


@dataclass(frozen=True, slots=True)
class Spot:
    """The results of a search."""

    node: str
    gpus: int  # bitmask


@dataclass(frozen=True, slots=True)
class NoRoom:
    """*had* of *wanted* members have room at once, by the GPUs of the nodes."""

    wanted: int
    had: int
    nearest: str  # the node or domain with room for most members; empty: none has room for any
    nearest_had: int
    level: str = ""  # the required span that failed, of which `nearest` is a domain. If only a
    # combination failed: its levels with commas, and `nearest` has one part for each


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
