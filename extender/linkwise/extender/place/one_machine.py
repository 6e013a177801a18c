"""The GPU sets that a gang gets on one machine, and what else it could have: the cluster's search
with a single node."""

from collections.abc import Sequence

import numpy as np

from linkwise.extender.place.cluster_view import ClusterView
from linkwise.extender.place.gang_placement import place
from linkwise.extender.place.request import NoRoom, PodSet
from linkwise.extender.place.runner_up import RunnerUp, runner_up
from linkwise.extender.state.cache.machine_kind import GpuRequest, MachineKind
from linkwise.extender.state.cache.node_table import BY_KUBELET, NodeTable
from linkwise.extender.state.records import ResourceList, Template
from linkwise.pods.requirement import TopologyRequirement
from linkwise.pods.spans import ANYWHERE
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.machine.model import LinkClass

_ANY_NODE = Template(0, {}, None, ())


def gang_on(
    kind: MachineKind,
    free: int,
    members: int,
    size: int,
    *,
    require: LinkClass = LinkClass.SYS,
    prefer: LinkClass = LinkClass.NVLINK,
) -> tuple[int, ...]:
    """The GPU set (bitmask) of each of *members* members with *size* GPUs, in the order of ranks;
    empty if the *free* GPUs (bitmask) have no room for all."""
    found = place(*_question(kind, free, members, size, require, prefer))
    return () if isinstance(found, NoRoom) else tuple(spot.gpus for spot in found)


def runner_up_on(
    kind: MachineKind,
    free: int,
    members: Sequence[int],
    *,
    require: LinkClass = LinkClass.SYS,
    prefer: LinkClass = LinkClass.NVLINK,
) -> RunnerUp | None:
    """The best other placement than *members*, which `gang_on` returned for the same *free* GPUs;
    None if there is no other."""
    size = members[0].bit_count()
    view, pod_sets = _question(kind, free, len(members), size, require, prefer)
    return runner_up(view, pod_sets, [(0, gpus) for gpus in members], ANYWHERE)


def _question(
    kind: MachineKind,
    free: int,
    members: int,
    size: int,
    require: LinkClass,
    prefer: LinkClass,
) -> tuple[ClusterView, list[PodSet]]:
    rows = NodeTable()
    row = rows.add("machine")
    rows.kinds[row], rows.free[row] = 0, free
    rows.show(row, ResourceList(), members, offering=BY_KUBELET)
    pods = PodSet(
        GpuRequest(
            PodDemand((ContainerDemand("", Role.MAIN, size),)), TopologyRequirement(require, prefer)
        ),
        ResourceList(),
        _ANY_NODE,
        tuple(range(members)),
        1,
        np.ones(1, dtype=np.bool_),
    )
    return ClusterView(rows.copy(), (kind,), ()), [pods]
