"""A machine is checked when it is made, and odd but true facts pass."""

from dataclasses import replace

import pytest

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine, Nic
from tests.machines import DGX_1V, DGX_A100, MIXED_5

GPU = Gpu("GPU-a", 0, "Tesla T4", 15360)
PAIR = Machine(gpus=(GPU, replace(GPU, uuid="GPU-b", index=1)), links=(Link(LinkClass.PHB),))


def test_links_are_found_from_both_ends() -> None:
    for first, second, link in DGX_1V.pairs():
        assert DGX_1V.link(first, second) is link
        assert DGX_1V.link(second, first) is link
    assert DGX_1V.link(0, 3).nvlinks == 2
    assert DGX_1V.link(0, 5).kind is LinkClass.SYS


def test_a_set_is_a_bitmask_over_positions() -> None:
    uuids = DGX_A100.uuids_of(0b101)
    assert uuids == (DGX_A100.gpus[0].uuid, DGX_A100.gpus[2].uuid)
    assert DGX_A100.mask_of([*uuids, "GPU-of-another-machine"]) == 0b101
    assert DGX_A100.all_gpus == 0xFF
    gapped = replace(PAIR, gpus=(GPU, replace(GPU, uuid="GPU-b", index=5)))
    assert gapped.indices_of(0b11) == (0, 5)


def test_only_healthy_gpus_are_counted_as_healthy() -> None:
    sick = replace(PAIR, gpus=(replace(GPU, healthy=False), PAIR.gpus[1]))
    assert sick.healthy_gpus == 0b10


@pytest.mark.parametrize(
    ("numa_nodes", "node"),
    [((), None), ((3,), 3), ((-1,), None), ((0, 1), None), ((-1, 2), 2)],
)
def test_the_numa_node_is_known_when_there_is_one(
    numa_nodes: tuple[int, ...], node: int | None
) -> None:
    assert replace(GPU, numa_nodes=numa_nodes).numa_node == node


def test_odd_but_true_facts_pass() -> None:
    assert replace(GPU, pci_bus_id="10de0001:00:1e.0").pci_bus_id == "10de0001:00:1e.0"
    assert replace(GPU, memory_mib=0).memory_mib == 0
    assert [gpu.numa_node for gpu in MIXED_5.gpus] == [1, 0, 0, 0, 0]
    assert Machine(gpus=(GPU,), links=()).all_gpus == 1


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"uuid": ""}, "uuid '': expected 1 to 63 characters"),
        ({"uuid": "x" * 64}, "expected 1 to 63 characters"),
        ({"uuid": "GPU a"}, "no blanks"),
        ({"index": -1}, "index -1: expected 0 or more"),
        ({"memory_mib": -1}, "memory -1 MiB: expected 0 or more"),
        ({"pci_bus_id": "0000:1A:00.0"}, "PCI bus id '0000:1A:00.0': expected like 0000:1a:00.0"),
        ({"pci_bus_id": ""}, "PCI bus id ''"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused(changes: dict[str, object], error: str) -> None:
    fields: dict[str, object] = {"uuid": "GPU-a", "index": 0, "model": "T4", "memory_mib": 1}
    with pytest.raises(MachineError, match=error):
        Gpu(**(fields | changes))  # type: ignore[arg-type]  # the table holds all kinds


@pytest.mark.parametrize(
    ("pcie", "nvlinks", "through_switch", "error"),
    [
        (LinkClass.NVLINK, 1, False, "pcie NVLINK: expected SYS, NODE, PHB, PXB or PIX"),
        (LinkClass.SYS, -1, False, "-1 NVLinks: expected 0 to 36"),
        (LinkClass.SYS, 37, False, "37 NVLinks: expected 0 to 36"),
        (LinkClass.SYS, 0, True, "NVSwitch with no NVLink"),
    ],
)
def test_a_link_that_cannot_be_is_refused(
    pcie: LinkClass, nvlinks: int, through_switch: bool, error: str
) -> None:
    with pytest.raises(MachineError, match=error):
        Link(pcie, nvlinks, through_switch)


TWIN = replace(GPU, uuid="GPU-b", index=1)
BUS = "0000:1a:00.0"


@pytest.mark.parametrize(
    ("gpus", "links", "nics", "error"),
    [
        ((), (), (), "0 GPUs: expected 1 to 16"),
        ((GPU,) * 17, (), (), "17 GPUs: expected 1 to 16"),
        ((GPU, TWIN), (), (), "0 links for 2 GPUs: expected 1"),
        ((TWIN, GPU), PAIR.links, (), r"indices \[1, 0\]: expected rising"),
        ((GPU, replace(GPU, index=1)), PAIR.links, (), "uuid GPU-a on two GPUs"),
        (
            (replace(GPU, pci_bus_id=BUS), replace(TWIN, pci_bus_id=BUS)),
            PAIR.links,
            (),
            "PCI bus id 0000:1a:00.0 on two GPUs",
        ),
        ((GPU,), (), (Nic("mlx5_0", ()),), "NIC mlx5_0: 0 entries: expected 1"),
    ],
)
def test_a_machine_that_contradicts_itself_is_refused(
    gpus: tuple[Gpu, ...], links: tuple[Link, ...], nics: tuple[Nic, ...], error: str
) -> None:
    with pytest.raises(MachineError, match=error):
        Machine(gpus=gpus, links=links, nics=nics)


def test_a_nic_has_no_nvlink() -> None:
    with pytest.raises(MachineError, match="NIC mlx5_0: NVLINK: expected SYS, NODE, PHB, PXB"):
        Nic("mlx5_0", (LinkClass.PIX, LinkClass.NVLINK))


@pytest.mark.parametrize("speed", [0, -1, 100_001])
def test_a_nic_has_a_speed_that_can_be(speed: int) -> None:
    with pytest.raises(MachineError, match=f"NIC mlx5_0: {speed} Gbit/s: expected 1 to 100000"):
        Nic("mlx5_0", (LinkClass.PIX,), speed)
