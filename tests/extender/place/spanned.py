"""Clusters in a few words, in which nodes and domains alone decide, and what the search says.

On their machines all GPU sets of one size are worth the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linkwise.extender.place.cluster_view import ClusterView, Level
from linkwise.extender.place.gang_placement import place
from linkwise.extender.place.request import NoRoom, PlacedMembers, PodSet, Spot
from linkwise.extender.state.cache.machine_kind import GpuRequest, MachineKind
from linkwise.extender.state.cache.node_table import NO_DOMAIN, NodeTable
from linkwise.extender.state.records import ResourceList, Template
from linkwise.pods.requirement import TopologyRequirement
from linkwise.pods.spans import Spans
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.machine.recorded import recorded_machine

LEVELS = ("clique", "leaf", "zone")
KIND = MachineKind(recorded_machine("gb200-tray", node="n"), 0)


@dataclass(frozen=True)
class Node:
    name: str
    free: int  # GPUs
    domains: tuple[str, ...]  # one for each level; empty: no label


@dataclass(frozen=True)
class Case:
    nodes: tuple[Node, ...]
    size: int  # GPUs of a member
    wanted: int
    require: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    company: tuple[int, ...] = ()  # nodes where members are already
    unit: int = 1  # members after each other that belong closest together
    levels: tuple[str, ...] = LEVELS  # of the nodes' domains

    def domain(self, node: int, level: str) -> str:
        return self.nodes[node].domains[self.levels.index(level)]

    def room(self, node: int) -> int:
        return self.nodes[node].free // self.size


def searched(case: Case, order: Sequence[int] | None = None) -> list[Spot] | NoRoom:
    """What the search says; the nodes come to its arrays in this *order*."""
    order = range(len(case.nodes)) if order is None else order
    rows = NodeTable()
    for number in order:
        row = rows.add(case.nodes[number].name)
        rows.kinds[row], rows.free[row] = 0, (1 << case.nodes[number].free) - 1
        rows.show(row, ResourceList(gpus=case.nodes[number].free), 110, offering=True)
    levels = []
    for key in case.levels:
        of = [case.domain(number, key) for number in order]
        values = sorted({value for value in of if value})
        numbers = [values.index(value) if value else NO_DOMAIN for value in of]
        levels.append(Level(key, np.array(numbers), values))
    demand = PodDemand((ContainerDemand("main", Role.MAIN, case.size),))
    members = PodSet(
        GpuRequest(demand, TopologyRequirement()),
        ResourceList(gpus=case.size),
        Template(0, {}, None, ()),
        tuple(range(case.wanted)),
        case.unit,
        np.ones(len(rows), dtype=np.bool_),
    )
    company = tuple(rows.row_of[case.nodes[number].name] for number in case.company)
    ground = ClusterView(rows.copy(), (KIND,), tuple(levels))
    return place(
        ground,
        [members],
        PlacedMembers(company, (1,) * len(company), company),  # each has the node's first GPU
        Spans(case.require, case.prefer),
    )


def nodes_of(case: Case, spots: list[Spot]) -> list[int]:
    """The node of each member."""
    names = [node.name for node in case.nodes]
    return [names.index(spot.node) for spot in spots]
