"""The worth of unequal members on one node."""

import pytest

from linkwise.extender.place.communicator import ONE_NODE
from linkwise.extender.place.search.node_loads import load_of
from linkwise.extender.state.cache.machine_kind import GpuRequest, MachineKind
from linkwise.pods.requirement import TopologyRequirement
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from tests.machines import DGX_1V


def members_of(gpus: int) -> GpuRequest:
    containers = (ContainerDemand("main", Role.MAIN, gpus),)
    return GpuRequest(PodDemand(containers), TopologyRequirement())


@pytest.mark.parametrize("gpus", [(4, 2), (2, 4), (3, 2)])
def test_of_the_members_own_rings_the_slowest_counts(gpus: tuple[int, int]) -> None:
    kind = MachineKind(DGX_1V, 0)
    requests = tuple(map(members_of, gpus))
    found = load_of(kind, requests, (1, 1), kind.all_gpus, 0, ONE_NODE)
    assert found is not None
    ((one,), (other,)) = found.sets
    alone = [
        load_of(kind, (request,), (1,), mask, 0, ONE_NODE)
        for request, mask in zip(requests, (one, other), strict=True)
    ]
    assert None not in alone
    rings = [each.own for each in alone if each is not None]
    assert rings[0] != rings[1]
    assert found.own == min(rings)
