"""What is to be placed: members that are alike, and those of their gang that have GPUs already."""

from dataclasses import dataclass

from linkwise.extender.api.records import ResourceList, Template
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.cache.node_table import Bools


@dataclass(frozen=True, slots=True)
class PodSet:
    """Members that are alike, and the nodes that may take them."""

    request: GpuRequest
    needs: ResourceList
    template: Template
    members: tuple[int, ...]  # their places among all members, rising
    unit: int  # so many after each other belong closest together; 1: each for itself
    nodes: Bools  # [rows]


@dataclass(frozen=True, slots=True)
class PlacedMembers:
    """Where members of the gang are already."""

    rows: tuple[int, ...] = ()  # each once
    gpus: tuple[int, ...] = ()  # on each of these rows, all members' together, as a bitmask
    next_to: tuple[int, ...] = ()  # of these rows, those of the next members in rank
    models: frozenset[str] = frozenset()  # of their GPUs


NOBODY = PlacedMembers()
