"""A question about many nodes at once gives each the answer that it would get alone."""

from dataclasses import replace

import numpy as np
import pytest

from linkwise.extender.state.cache.machine_kind import (
    GpuRequest,
    MachineKind,
    containers_on,
    will_do,
)
from linkwise.pods.requirement import TopologyRequirement
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.machine.topology_manager import Policy, Scope, TopologyManager
from tests.machines import DGX_1V, MIXED_5, TWO_ISLANDS, machine

TWO = PodDemand((ContainerDemand("main", Role.MAIN, 2),))
TWO_CONTAINERS = PodDemand((*TWO.containers, ContainerDemand("side", Role.MAIN, 1)))

LARGER_INIT = PodDemand(
    (ContainerDemand("init", Role.INIT, 4), ContainerDemand("main", Role.MAIN, 2))
)
NVLINKS = TopologyRequirement(require=LinkClass.NVLINK)


@pytest.mark.parametrize("demand", [TWO, TWO_CONTAINERS, LARGER_INIT])
@pytest.mark.parametrize("require", [LinkClass.SYS, LinkClass.NVLINK])
@pytest.mark.parametrize("recorded", [DGX_1V, MIXED_5])
def test_the_sets_of_all_masks_are_those_of_each(
    recorded: Machine, require: LinkClass, demand: PodDemand
) -> None:
    kind = MachineKind(recorded, 0)
    wish = GpuRequest(demand, TopologyRequirement(require=require))
    free = np.arange(kind.all_gpus, -1, -1)
    alone = [kind.take(wish, mask) or 0 for mask in free.tolist()]
    assert kind.taken_within(wish, free).tolist() == alone
    assert kind.taken_within(wish, free[::-1]).tolist() == alone[::-1]


def test_sets_that_another_thread_forgets_meanwhile_are_still_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("linkwise.extender.state.cache.machine_kind._MOST_MASKS", 0)
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


RING_AND_MESH = machine("""
        GPU0  GPU1  GPU2  GPU3  GPU4  GPU5  GPU6  GPU7
  GPU0   X    NV4   SYS   NV4   SYS   SYS   SYS   SYS
  GPU1  NV4    X    NV4   SYS   SYS   SYS   SYS   SYS
  GPU2  SYS   NV4    X    NV4   SYS   SYS   SYS   SYS
  GPU3  NV4   SYS   NV4    X    SYS   SYS   SYS   SYS
  GPU4  SYS   SYS   SYS   SYS    X    NV1   NV1   NV1
  GPU5  SYS   SYS   SYS   SYS   NV1    X    NV1   NV1
  GPU6  SYS   SYS   SYS   SYS   NV1   NV1    X    NV1
  GPU7  SYS   SYS   SYS   SYS   NV1   NV1   NV1    X
""")
RING, MESH = 0b00001111, 0b11110000


@pytest.mark.parametrize("requirement", [TopologyRequirement(), NVLINKS])
def test_any_gpus_that_the_kubelet_may_hand_on_are_linked(requirement: TopologyRequirement) -> None:
    kind, request = MachineKind(RING_AND_MESH, 0), GpuRequest(LARGER_INIT, requirement)
    alone = GpuRequest(PodDemand((ContainerDemand("main", Role.MAIN, 4),)), requirement)
    assert kind.take(alone, kind.all_gpus) == RING, "as long as it has them all"
    assert kind.take(request, kind.all_gpus) == MESH
    assert kind.quality(alone, RING) > kind.quality(alone, MESH)
    pair_apart = float(kind.table.values[0b0101])
    assert kind.quality(request, RING) == pair_apart
    assert pair_apart < kind.quality(request, MESH) == float(kind.table.values[0b110000])


def test_no_set_will_do_if_the_kubelet_may_hand_on_gpus_without_the_required_link() -> None:
    request = GpuRequest(LARGER_INIT, NVLINKS)
    assert MachineKind(RING_AND_MESH, 0).take(request, RING) is None
    liked = GpuRequest(LARGER_INIT, TopologyRequirement())
    assert MachineKind(RING_AND_MESH, 0).take(liked, RING) == RING


def test_if_some_gpus_handed_on_are_apart_anyway_the_init_containers_ring_decides() -> None:
    kind, request = MachineKind(DGX_1V, 0), GpuRequest(LARGER_INIT, TopologyRequirement())
    assert kind.take(request, 0b110111) == 0b110011


def test_a_sidecar_before_the_init_container_may_be_apart_from_what_is_handed_on() -> None:
    demand = PodDemand((ContainerDemand("side", Role.SIDECAR, 1), *LARGER_INIT.containers))
    kind, request = MachineKind(TWO_ISLANDS, 0), GpuRequest(demand, NVLINKS)
    gpus = kind.take(request, 0b1111_0001)
    shares = containers_on(kind, TWO_ISLANDS, request, gpus or 0)
    assert {name: TWO_ISLANDS.mask_of(share) for name, share in shares.items()} == {
        "side": 0b1,
        "init": 0b1111_0000,
        "main": 0b1111_0000,
    }


def test_the_plan_names_all_gpus_that_a_container_may_get() -> None:
    kind, request = MachineKind(DGX_1V, 0), GpuRequest(LARGER_INIT, NVLINKS)
    uuids = DGX_1V.uuids_of(0b1111)
    shares = containers_on(kind, DGX_1V, request, 0b1111)
    assert {name: set(share) for name, share in shares.items()} == {
        "init": set(uuids),
        "main": set(uuids),
    }
    assert will_do(kind, DGX_1V, request, shares)
    # as plans said it before, and as they do once the kubelet has chosen
    assert will_do(kind, DGX_1V, request, {**shares, "main": uuids[1:3]})
    assert not will_do(kind, DGX_1V, request, {"init": uuids[:3], "main": uuids[:3]})
    assert not will_do(kind, DGX_1V, request, {"init": uuids})
    apart = DGX_1V.uuids_of(0b10011001)  # a ring, though neither 0 and 7 nor 3 and 4 are linked
    assert not will_do(kind, DGX_1V, request, {"init": apart, "main": apart})


def test_equal_plans_on_machines_of_a_kind_are_judged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = []

    def admits(_: MachineKind, *asked: object) -> bool:
        judged.append(asked)
        return True

    monkeypatch.setattr(MachineKind, "admits", admits)
    kind, request = MachineKind(DGX_1V, 0), GpuRequest(TWO, NVLINKS)
    for number in range(3):
        gpus = tuple(replace(gpu, uuid=f"{number}-{gpu.uuid}") for gpu in DGX_1V.gpus)
        like = replace(DGX_1V, gpus=gpus)
        assert will_do(kind, like, request, {"main": like.uuids_of(0b11)})
    assert len(judged) == 1


@pytest.mark.parametrize(("free", "taken"), [(RING | MESH, MESH), (RING, None)])
def test_a_kubelet_that_aligns_each_container_hands_on_linked_gpus_too(
    free: int, taken: int | None
) -> None:
    manager = TopologyManager(Policy.RESTRICTED, Scope.CONTAINER)
    gpus = tuple(replace(gpu, numa_nodes=(0,)) for gpu in RING_AND_MESH.gpus)
    aligned = replace(RING_AND_MESH, gpus=gpus, topology_manager=manager)
    request = GpuRequest(LARGER_INIT, NVLINKS)
    assert MachineKind(aligned, 0).take(request, free) == taken
