"""A question about many nodes at once gives each the answer that it would get alone."""

import numpy as np
import pytest

from linkwise.extender.api.requirement import TopologyRequirement
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


def test_sets_that_another_thread_forgets_meanwhile_are_still_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("linkwise.extender.cache.machine_kind._MOST_MASKS", 0)
    kind = MachineKind(DGX_1V, 0)
    wish = GpuRequest(TWO, TopologyRequirement())
    masks = np.array([0b1111, 0b11110000])
    take = kind.take

    def beside_another_thread(request: GpuRequest, free: int) -> int | None:
        if free == masks[1]:
            monkeypatch.setattr(kind, "take", take)
            kind.taken_within(request, np.array([0b111]))  # forgets the set of the first mask
        return take(request, free)

    monkeypatch.setattr(kind, "take", beside_another_thread)
    assert kind.taken_within(wish, masks).tolist() == [take(wish, mask) for mask in masks.tolist()]
