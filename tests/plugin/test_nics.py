"""RDMA network cards, from a /sys that is built here as Linux builds it."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.plugin.gpus.nics import NicReading, read_nics
from linkwise.topology.machine.model import LinkClass, Nic

PIX, PXB, PHB = LinkClass.PIX, LinkClass.PXB, LinkClass.PHB
NODE, SYS = LinkClass.NODE, LinkClass.SYS

SWITCH = "pci0000:00/0000:00:01.0/0000:01:00.0"
GPU0 = f"{SWITCH}/0000:02:00.0/0000:03:00.0"
SAME_SWITCH = f"{SWITCH}/0000:02:01.0/0000:04:00.0"
ITS_TWIN = f"{SWITCH}/0000:02:01.0/0000:04:00.1"
SWITCH_BELOW = f"{SWITCH}/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0"
SAME_BRIDGE = "pci0000:00/0000:00:02.0/0000:08:00.0"
OTHER_BRIDGE = "pci0000:40/0000:40:01.0/0000:41:00.0"
OTHER_SOCKET = "pci0000:80/0000:80:01.0/0000:81:00.0"
VIRTUAL = [f"{SWITCH}/0000:02:01.0/0000:04:00.{number}" for number in (2, 3)]
ALL = (GPU0, SAME_SWITCH, ITS_TWIN, SWITCH_BELOW, SAME_BRIDGE, OTHER_BRIDGE, OTHER_SOCKET, *VIRTUAL)
BUS_ID = "0000:03:00.0"
UP, NDR = "4: ACTIVE", "400 Gb/sec (4X NDR)"


class Tree:
    """A made-up /sys with one GPU, and cards that tests plug in."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)
        for way in ALL:
            device = self.device(way)
            device.mkdir(parents=True)
            (device / "numa_node").write_text("1\n" if way == OTHER_SOCKET else "0\n")
            (root / "bus/pci/devices" / device.name).symlink_to(device)

    def device(self, way: str) -> Path:
        return self.root / "devices" / way

    def plug(self, name: str, way: str, ports: Mapping[str, str] | None = None) -> Path:
        """An RDMA device, by default with one port that is up; *ports*: files below ports/1."""
        card = self.device(way) / "infiniband" / name
        (card / "ports/1").mkdir(parents=True)
        (card / "device").symlink_to("../..")
        for file, text in ({"state": UP, "rate": NDR} if ports is None else ports).items():
            path = card / "ports" / "1" / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{text}\n")
        classes = self.root / "class/infiniband"
        classes.mkdir(parents=True, exist_ok=True)
        (classes / name).symlink_to(f"../../devices/{way}/infiniband/{name}")
        return card

    def virtual(self, way: str, of: str) -> None:
        (self.device(way) / "physfn").symlink_to(os.path.relpath(self.device(of), self.device(way)))

    def read(self, *bus_ids: str | None) -> NicReading:
        return read_nics(bus_ids or (BUS_ID,), sysfs=self.root)

    def names(self) -> list[str]:
        reading = self.read()
        assert reading.nics is not None
        assert reading.warnings == ()
        return [nic.name for nic in reading.nics]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


# How close


@pytest.mark.parametrize(
    ("way", "closeness"),
    [
        (SAME_SWITCH, PIX),
        (SWITCH_BELOW, PXB),
        (SAME_BRIDGE, PHB),
        (OTHER_BRIDGE, NODE),
        (OTHER_SOCKET, SYS),
    ],
)
def test_a_card_is_as_close_as_nvidia_smi_would_print_it(
    tree: Tree, way: str, closeness: LinkClass
) -> None:
    tree.plug("mlx5_0", way)
    assert tree.read() == NicReading((Nic("mlx5_0", (closeness,), 400),))


def test_two_devices_whose_numa_node_is_unknown_share_none(tree: Tree) -> None:
    for way in (GPU0, OTHER_BRIDGE):
        (tree.device(way) / "numa_node").write_text("-1\n")
    tree.plug("mlx5_0", OTHER_BRIDGE)
    assert tree.read() == NicReading((Nic("mlx5_0", (SYS,), 400),))


def test_cards_come_by_name_with_one_entry_per_gpu(tree: Tree) -> None:
    tree.plug("mlx5_1", OTHER_SOCKET)
    tree.plug("mlx5_0", SAME_SWITCH)
    assert tree.read(BUS_ID, "0000:81:00.0") == NicReading(
        (Nic("mlx5_0", (PIX, SYS), 400), Nic("mlx5_1", (SYS, PIX), 400))
    )


def test_without_one_of_the_gpus_nothing_is_known(tree: Tree) -> None:
    tree.plug("mlx5_0", SAME_SWITCH)
    gone = tree.root / "bus/pci/devices/0000:ff:00.0"
    unknown = "how close network cards are to this GPU is not known"
    assert tree.read(BUS_ID, gone.name) == NicReading(
        None, (f"{gone}: it does not exist: {unknown}",)
    )
    gone.symlink_to(tree.root / "devices")
    assert tree.read(BUS_ID, gone.name) == NicReading(
        None, (f"{gone}: expected a link to a PCI device: {unknown}",)
    )
    assert tree.read(BUS_ID, None) == NicReading(None)


# Which count


def test_a_machine_without_rdma_has_no_cards(tree: Tree) -> None:
    assert tree.read() == NicReading(())
    assert tree.read("0000:ff:00.0") == NicReading(())  # then the GPU's place does not matter
    assert read_nics([BUS_ID], sysfs=tree.root / "none") == NicReading(())


def test_a_card_for_plain_ethernet_only_does_not_count(tree: Tree) -> None:
    net = tree.device(SAME_BRIDGE) / "net/eth0"
    net.mkdir(parents=True)
    (net / "device").symlink_to("../..")
    (tree.root / "class/net").mkdir(parents=True)
    (tree.root / "class/net/eth0").symlink_to(net)
    tree.plug("mlx5_0", SAME_SWITCH, {"state": UP, "rate": NDR, "link_layer": "Ethernet"})  # RoCE
    assert tree.names() == ["mlx5_0"]


@pytest.mark.parametrize("state", ["1: DOWN", "2: INIT", "3: ARMED", "5: ACTIVE_DEFER", "0: NOP"])
def test_a_port_that_is_not_active_carries_nothing(tree: Tree, state: str) -> None:
    tree.plug("mlx5_0", SAME_SWITCH, {"state": state, "rate": "10 Gb/sec (4X SDR)"})
    tree.plug("mlx5_1", SAME_BRIDGE)
    assert tree.names() == ["mlx5_1"]


def test_all_ports_down_is_known_and_not_unknown(tree: Tree) -> None:
    tree.plug("mlx5_0", SAME_SWITCH, {"state": "1: DOWN"})
    assert tree.read() == NicReading(())


def test_a_card_with_a_port_that_is_up_counts_with_the_speed_of_that_port(tree: Tree) -> None:
    card = tree.plug("mlx4_0", SAME_SWITCH, {"state": "1: DOWN", "rate": "40 Gb/sec (4X QDR)"})
    for number, rate in ((2, "56 Gb/sec (4X FDR)"), (3, "2.5 Gb/sec (1X SDR)")):
        (card / f"ports/{number}").mkdir()
        (card / f"ports/{number}/state").write_text(f"{UP}\n")
        (card / f"ports/{number}/rate").write_text(f"{rate}\n")
    assert tree.read() == NicReading((Nic("mlx4_0", (PIX,), 58),))


@pytest.mark.parametrize("ports", [{}, {"state": UP}, {"rate": NDR}])
def test_what_the_kernel_does_not_show_is_unknown_and_no_trouble(
    tree: Tree, ports: Mapping[str, str]
) -> None:
    tree.plug("mlx5_0", SAME_SWITCH, ports)
    assert tree.read() == NicReading((Nic("mlx5_0", (PIX,)),))


def test_virtual_functions_count_with_the_card_whose_port_they_share(tree: Tree) -> None:
    tree.plug("mlx5_1", SAME_SWITCH)
    for name, way in zip(("mlx5_0", "mlx5_2"), VIRTUAL, strict=True):
        tree.plug(name, way)
        tree.virtual(way, of=SAME_SWITCH)
    tree.plug("mlx5_3", ITS_TWIN)  # the card's second port, with a physical function of its own
    assert tree.names() == ["mlx5_1", "mlx5_3"]


def test_virtual_functions_of_a_card_that_is_given_away_count_once(tree: Tree) -> None:
    for name, way in zip(("mlx5_1", "mlx5_0"), VIRTUAL, strict=True):
        tree.plug(name, way)
        tree.virtual(way, of=SAME_SWITCH)
    assert tree.names() == ["mlx5_0"]


def test_in_a_virtual_machine_a_virtual_function_is_a_card_like_any(tree: Tree) -> None:
    for number, way in enumerate(VIRTUAL):  # no physfn there
        tree.plug(f"mlx5_{number}", way)
    assert tree.names() == ["mlx5_0", "mlx5_1"]


def test_a_sub_function_counts_with_its_card(tree: Tree) -> None:
    for number in (4, 5):
        way = f"{SAME_SWITCH}/mlx5_core.sf.{number}"
        tree.device(way).mkdir()
        tree.plug(f"mlx5_{number}", way)
    assert tree.read() == NicReading((Nic("mlx5_4", (PIX,), 400),))
    tree.plug("mlx5_9", SAME_SWITCH)
    assert tree.names() == ["mlx5_9"]


def test_a_card_that_is_no_pci_device_is_left_out(tree: Tree) -> None:
    tree.device("virtual/net/eth0").mkdir(parents=True)
    tree.plug("rxe0", "virtual/net/eth0")
    assert tree.names() == []


def test_a_card_that_is_unplugged_meanwhile_is_left_out(tree: Tree) -> None:
    tree.plug("mlx5_0", SAME_SWITCH)
    (tree.root / "class/infiniband/gone0").symlink_to("../../devices/gone/infiniband/gone0")
    assert tree.names() == ["mlx5_0"]


# What is wrong


def test_links_in_a_circle_are_named(tree: Tree) -> None:
    tree.plug("mlx5_0", SAME_SWITCH)
    circle = tree.root / "class/infiniband/mlx5_1"
    circle.mkdir()
    (circle / "device").symlink_to("device")
    assert tree.read() == NicReading(
        (Nic("mlx5_0", (PIX,), 400),),
        (f"{circle}/device: Too many levels of symbolic links",),
    )


@pytest.mark.parametrize(
    ("file", "text", "why", "gbit_per_s"),
    [
        ("state", "ACTIVE", "'ACTIVE': expected like '4: ACTIVE'", None),
        ("rate", "fast", "'fast': expected like '400 Gb/sec (4X NDR)'", None),
        ("rate", "9" * 50, f"'{'9' * 40}': expected like '400 Gb/sec (4X NDR)'", None),
    ],
)
def test_a_value_that_is_none_is_named_and_unknown(
    tree: Tree, file: str, text: str, why: str, gbit_per_s: int | None
) -> None:
    tree.plug("mlx5_0", SAME_SWITCH, {"state": UP, "rate": NDR, file: text})
    path = tree.root / "class/infiniband/mlx5_0/ports/1" / file
    assert tree.read() == NicReading((Nic("mlx5_0", (PIX,), gbit_per_s),), (f"{path}: {why}",))


def test_a_path_that_is_no_directory_is_named(tree: Tree) -> None:
    card = tree.plug("mlx5_0", SAME_SWITCH)
    (card / "ports").rename(card / "aside")
    (card / "ports").write_text("")
    ports = tree.root / "class/infiniband/mlx5_0/ports"
    assert tree.read() == NicReading((Nic("mlx5_0", (PIX,)),), (f"{ports}: Not a directory",))
    (tree.root / "class").rename(tree.root / "aside")
    (tree.root / "class").mkdir()
    (tree.root / "class/infiniband").write_text("")
    whole = tree.root / "class/infiniband"
    assert tree.read() == NicReading(None, (f"{whole}: Not a directory",))


# Anything at all

PARTS = st.sampled_from(
    [
        *("bus", "pci", "devices", "class", "infiniband", "device", "ports", "1", "state", "rate"),
        *("pci0000:00", "0000:00:01.0", BUS_ID, "0000:04:00.0", "mlx5_0", "mlx5_1", "physfn"),
        *("numa_node", "mlx5_core.sf.1", b"\xff".decode("utf-8", "surrogateescape"), "a b"),
    ]
)
HOMES = st.sampled_from(
    [
        "",
        "class/infiniband",
        "class/infiniband/mlx5_0",
        "class/infiniband/mlx5_0/ports/1",
        "bus/pci/devices",
        "devices/pci0000:00",
        f"devices/pci0000:00/{BUS_ID}",
        "devices/pci0000:00/0000:04:00.0",
    ]
)
PATHS = st.tuples(HOMES, st.lists(PARTS, min_size=1, max_size=3)).map(
    lambda drawn: "/".join(filter(None, (drawn[0], *drawn[1])))
)
CONTENTS = st.one_of(
    st.sampled_from([b"4: ACTIVE\n", b"1: DOWN", b"400 Gb/sec (4X NDR)\n", b"0\n", b"-1", b""]),
    st.binary(max_size=20),
)
ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.just("file"), PATHS, CONTENTS),
        st.tuples(st.just("link"), PATHS, PATHS),
        st.tuples(st.just("directory"), PATHS, st.none()),
    ),
    max_size=25,
)


def grow(root: Path, entries: list[tuple[str, str, bytes | str | None]]) -> None:
    """Make what can be made; where a file is in the way, or a link leads nowhere, leave it out."""
    for kind, relative, content in entries:
        path = root / relative
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif isinstance(content, str):
                path.symlink_to(os.path.relpath(root / content, path.parent))
            elif kind == "directory":
                path.mkdir(exist_ok=True)
        except OSError:
            continue


@settings(max_examples=300)
@given(entries=ENTRIES, plugged=st.booleans())
def test_no_tree_ends_the_reading_and_each_warning_names_a_path(
    entries: list[tuple[str, str, bytes | str | None]], plugged: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        grow(root, entries)
        if plugged:
            grow(
                root,
                [
                    ("directory", f"devices/pci0000:00/{BUS_ID}", None),
                    ("directory", "devices/pci0000:00/0000:04:00.0", None),
                    ("link", f"bus/pci/devices/{BUS_ID}", f"devices/pci0000:00/{BUS_ID}"),
                    ("link", "class/infiniband/mlx5_0/device", "devices/pci0000:00/0000:04:00.0"),
                ],
            )
        reading = read_nics([BUS_ID], sysfs=root)
        for warning in reading.warnings:
            assert warning.startswith(f"{root}/")
            warning.encode()  # it can be logged
        for nic in reading.nics or ():
            assert len(nic.closeness) == 1
            nic.name.encode()
        assert read_nics([BUS_ID], sysfs=root) == reading
