"""NUMA nodes and network cards out of Linux's tree of PCI devices, built here as it is there."""

from pathlib import Path

import pytest

from linkwise.plugin.gpus import sysfs
from linkwise.topology.machine.model import LinkClass, Nic

GPU0 = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0"  # behind a switch
SAME_SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0"
SWITCH_BELOW = (
    "pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0"
)
SAME_BRIDGE = "pci0000:00/0000:00:02.0/0000:08:00.0"
OTHER_BRIDGE = "pci0000:40/0000:40:01.0/0000:41:00.0"
OTHER_SOCKET = "pci0000:80/0000:80:01.0/0000:81:00.0"
NODES = {GPU0: 0, SAME_SWITCH: 0, SWITCH_BELOW: 0, SAME_BRIDGE: 0, OTHER_BRIDGE: 0, OTHER_SOCKET: 1}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "class/infiniband").mkdir(parents=True)
    for way, node in NODES.items():
        device = tmp_path / "devices" / way
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        (tmp_path / "bus/pci/devices" / device.name).symlink_to(device)
    return tmp_path


def plug(tree: Path, name: str, way: str) -> None:
    (tree / "class/infiniband" / name).mkdir()
    (tree / "class/infiniband" / name / "device").symlink_to(tree / "devices" / way)


@pytest.mark.parametrize(
    ("way", "closeness"),
    [
        (SAME_SWITCH, LinkClass.PIX),
        (SWITCH_BELOW, LinkClass.PXB),
        (SAME_BRIDGE, LinkClass.PHB),
        (OTHER_BRIDGE, LinkClass.NODE),
        (OTHER_SOCKET, LinkClass.SYS),
    ],
)
def test_a_card_is_as_close_as_nvidia_smi_would_print_it(
    tree: Path, way: str, closeness: LinkClass
) -> None:
    plug(tree, "mlx5_0", way)
    assert sysfs.nics(["0000:03:00.0"], sysfs=tree) == (Nic("mlx5_0", (closeness,)),)


def test_two_devices_whose_numa_node_nobody_knows_share_none(tree: Path) -> None:
    for way in (GPU0, OTHER_BRIDGE):
        (tree / "devices" / way / "numa_node").write_text("-1\n")
    plug(tree, "mlx5_0", OTHER_BRIDGE)
    assert sysfs.nics(["0000:03:00.0"], sysfs=tree) == (Nic("mlx5_0", (LinkClass.SYS,)),)


def test_cards_come_by_name_with_one_entry_per_gpu(tree: Path) -> None:
    plug(tree, "mlx5_1", OTHER_SOCKET)
    plug(tree, "mlx5_0", SAME_SWITCH)
    assert sysfs.nics(["0000:03:00.0", "0000:81:00.0"], sysfs=tree) == (
        Nic("mlx5_0", (LinkClass.PIX, LinkClass.SYS)),
        Nic("mlx5_1", (LinkClass.SYS, LinkClass.PIX)),
    )


def test_a_gpu_that_linux_does_not_show_means_no_table_at_all(tree: Path) -> None:
    plug(tree, "mlx5_0", SAME_SWITCH)
    assert sysfs.nics(["0000:03:00.0", "0000:ff:00.0"], sysfs=tree) == ()
    assert sysfs.nics(["0000:03:00.0", None], sysfs=tree) == ()


def test_a_card_that_is_no_pci_device_is_left_out(tree: Path) -> None:
    (tree / "devices/virtual/rxe0").mkdir(parents=True)
    plug(tree, "rxe0", "virtual/rxe0")
    plug(tree, "gone0", "pci0000:00/unplugged")
    assert sysfs.nics(["0000:03:00.0"], sysfs=tree) == ()


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", -1), ("", None), ("x", None)])
def test_numa_nodes_as_they_are_written(tree: Path, text: str, node: int | None) -> None:
    (tree / "devices" / GPU0 / "numa_node").write_text(text)
    assert sysfs.numa_node("0000:03:00.0", sysfs=tree) == node


def test_a_device_that_is_not_there_has_an_unknown_node(tree: Path) -> None:
    assert sysfs.numa_node("0000:99:00.0", sysfs=tree) is None
