"""NUMA nodes and classes of PCI devices, from a tree that is built here as Linux builds it."""

import sys
from pathlib import Path

import pytest

from linkwise.plugin.gpus import sysfs

GPU = "0000:03:00.0"


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "devices/pci0000:00" / GPU
    path.mkdir(parents=True)
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "bus/pci/devices" / GPU).symlink_to(path)
    return path


@pytest.mark.parametrize(
    ("text", "node"),
    [("1\n", 1), ("-1\n", -1), ("", None), ("x", None), ("-7", None), ("9" * 30, None)],
)
def test_numa_nodes_as_they_are_written(
    device: Path, tmp_path: Path, text: str, node: int | None
) -> None:
    (device / "numa_node").write_text(text)
    assert sysfs.numa_node(GPU, sysfs=tmp_path) == node


def test_what_is_no_text_is_unknown(device: Path, tmp_path: Path) -> None:
    for name in ("numa_node", "class"):
        (device / name).write_bytes(b"\xff")
    assert sysfs.numa_node(GPU, sysfs=tmp_path) is None
    assert sysfs.pci_class(GPU, sysfs=tmp_path) is None


def test_a_device_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    assert sysfs.numa_node("0000:99:00.0", sysfs=tmp_path) is None
    assert sysfs.pci_class("0000:99:00.0", sysfs=tmp_path) is None


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/sys/devices/pci0000:00/0000:00:01.0", ("pci0000:00", "0000:00:01.0")),
        # A sub-function of a network card.
        (
            "/sys/devices/pci0000:80/0000:80:01.0/mlx5_core.sf.4",
            ("pci0000:80", "0000:80:01.0"),
        ),
        # Azure: each device has a root of its own, below Hyper-V's bus.
        (
            "/sys/devices/LNXSYSTM:00/VMBUS:00/47505500-0001/pci0001:00/0001:00:00.0",
            ("pci0001:00", "0001:00:00.0"),
        ),
        # Behind Intel's VMD there is a second root.
        (
            "/sys/devices/pci0000:97/0000:97:00.5/pci10000:00/10000:00:02.0",
            ("pci0000:97", "0000:97:00.5", "pci10000:00", "10000:00:02.0"),
        ),
        ("/sys/devices/virtual/net/rxe0", ()),
        ("/sys/devices/pci0000:00", ()),
        ("/home/pcity/0000:00:01.0", ()),
    ],
)
def test_the_place_of_a_device_is_read_from_its_path(path: str, place: sysfs.Place) -> None:
    assert sysfs.place_of(Path(path)) == place


def test_an_error_names_the_path_whatever_its_bytes_are(tmp_path: Path) -> None:
    odd = Path("/sys") / bytes([0xFF]).decode(sys.getfilesystemencoding(), "surrogateescape")
    with pytest.raises(sysfs.MissingError) as error:
        sysfs.text_of(odd)
    assert str(error.value) == "/sys/\\xff: it does not exist"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(sysfs.SysfsError, match=f"{loop}: Too many levels of symbolic links"):
        sysfs.resolved(loop)
