"""A question about many nodes at once gives each the answer that it would get alone."""

import numpy as np
import pytest

from linkwise.extender.api.annotations import TopologyRequirement
from linkwise.extender.cache.machine_kind import GpuRequest, MachineKind
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.machine.model import LinkClass, Machine
from tests.machines import DGX_1V, MIXED_5

TWO = PodDemand((ContainerDemand("main", Role.MAIN, 2),))
TWO_CONTAINERS = PodDemand((*TWO.containers, ContainerDemand("side", Role.MAIN, 1)))


@pytest.mark.parametrize("demand", [TWO, TWO_CONTAINERS])
@pytest.mark.parametrize("require", [LinkClass.SYS, LinkClass.NVLINK])
@pytest.mark.parametrize("machine", [DGX_1V, MIXED_5])
def test_the_sets_of_all_masks_are_those_of_each(
    machine: Machine, require: LinkClass, demand: PodDemand
) -> None:
    kind = MachineKind(machine, 0)
    wish = GpuRequest(demand, TopologyRequirement(require=require))
    free = np.arange(kind.all_gpus, -1, -1)
    alone = [kind.take(wish, mask) or 0 for mask in free.tolist()]
    assert kind.taken_within(wish, free).tolist() == alone
    assert kind.taken_within(wish, free[::-1]).tolist() == alone[::-1]
