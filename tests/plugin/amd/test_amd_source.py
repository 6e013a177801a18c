"""AMD's GPUs, read from a /sys that is built here as the driver builds it."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from linkwise.plugin.amd import device, source
from linkwise.plugin.amd.device import Device, DeviceProbe, probe_device, read_device
from linkwise.plugin.amd.source import AmdInventory
from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.inventory import Finding, Load, Stock
from linkwise.plugin.gpus.sysfs import BusyError, text_of
from linkwise.topology.annotations.node_annotation import read_topology, write_topology
from linkwise.topology.machine.model import Link, LinkClass
from linkwise.topology.sets.bandwidth import bandwidth
from tests.plugin.amd.tree import PCIE, ROUTED, AmdTree, machine_of, mesh, xgmi
from tests.waiting import wait_for

A, B, C = (f"0000:{bus}:00.0" for bus in ("05", "26", "c3"))
SYS, PHB, PXB, PIX = LinkClass.SYS, LinkClass.PHB, LinkClass.PXB, LinkClass.PIX


@pytest.fixture
def tree(tmp_path: Path) -> AmdTree:
    return AmdTree(tmp_path)


def read(tree: AmdTree) -> Stock:
    return AmdInventory(sys_root=tree.root).read()


def trio(tree: AmdTree) -> AmdTree:
    """A and B have four links, A and C one, and B reaches C over the links of A."""
    for bus_id, numa in ((A, 0), (B, 0), (C, 1)):
        tree.gpu(bus_id, numa=numa, model="AMD Instinct MI250X")
    tree.ways({(A, B): xgmi(4), (A, C): xgmi(1), (B, C): ROUTED})
    return tree


# What is read.


def test_a_mesh_of_eight(tmp_path: Path) -> None:
    stock = read(machine_of(tmp_path, mesh(8)))
    machine = stock.machine
    assert (stock.warnings, stock.left_out, stock.probe.findings) == ((), {}, {})
    assert [gpu.uuid for gpu in machine.gpus] == [gpu.pci_bus_id for gpu in machine.gpus]
    assert machine.gpus[7].numa_nodes == (1,)
    assert (machine.gpus[0].model, machine.gpus[0].memory_mib) == ("AMD Instinct MI300X OAM", 65536)
    assert {(link.nvlinks, link.routed, link.peer_to_peer) for link in machine.links} == {
        (1, False, True)
    }
    assert bandwidth(machine, 0xFF) == 336
    assert machine.vendor == "amd"
    assert read_topology(write_topology(machine)) == machine


def test_links_are_counted_and_pairs_of_a_hive_without_one_are_routed(tree: AmdTree) -> None:
    machine = read(trio(tree)).machine
    assert [(link.nvlinks, link.routed) for link in machine.links] == [
        (4, False),
        (1, False),
        (0, True),
    ]
    assert read_topology(write_topology(machine)) == machine


def test_gpus_come_by_bus_id_whatever_the_order_of_kfd(tree: AmdTree) -> None:
    for bus_id in (C, A, B):
        tree.gpu(bus_id)
    assert [(gpu.index, gpu.uuid) for gpu in read(tree).machine.gpus] == [(0, A), (1, B), (2, C)]


def test_a_domain_that_is_not_zero(tree: AmdTree) -> None:
    tree.gpu("0002:07:01.0")
    assert read(tree).machine.gpus[0].uuid == "0002:07:01.0"


@pytest.mark.parametrize(
    ("weight", "link"), [(15, Link(SYS, 1)), (41, Link(SYS, 1)), (30, Link(SYS, routed=True))]
)
def test_without_a_bandwidth_the_weight_says_what_is_direct(
    tree: AmdTree, weight: int, link: Link
) -> None:
    """The kernel gives none before GC 9.4.2."""
    tree.gpu(A), tree.gpu(B, numa=1)
    tree.ways({(A, B): f"type 11\nweight {weight}\nmin_bandwidth 0\nmax_bandwidth 0\n"})
    assert read(tree).machine.links == (link,)


@pytest.mark.parametrize("kind", ["io_links", "p2p_links"])
def test_a_way_over_pcie_is_peer_access_and_a_missing_one_is_none(tree: AmdTree, kind: str) -> None:
    """A kernel without CONFIG_HSA_AMD_P2P shows none between two hives."""
    for bus_id in (A, B, C):
        tree.gpu(bus_id, numa=int(bus_id == C))
    tree.way(A, B, PCIE, kind)
    tree.way(B, A, PCIE, kind)
    machine = read(tree).machine
    assert [link.peer_to_peer for link in machine.links] == [True, False, False]
    assert bandwidth(machine, 0b011) > bandwidth(machine, 0b101)


def test_xgmi_counts_where_there_is_pcie_too(tree: AmdTree) -> None:
    tree.gpu(A), tree.gpu(B)
    for kind, properties in (("p2p_links", PCIE), ("io_links", xgmi(2))):
        tree.way(A, B, properties, kind)
        tree.way(B, A, properties, kind)
    assert read(tree).machine.links[0].nvlinks == 2


def test_two_gpus_are_as_close_as_their_slots(tree: AmdTree) -> None:
    """Each brings a switch of its own, of AMD."""
    switch = "pci0000:00/0000:00:01.0/0000:01:00.0"
    for bus_id, port, bus in ((A, "0000:02:00.0", "03"), (B, "0000:02:01.0", "24")):
        own = [f"0000:{bus}:00.0", f"0000:{int(bus, 16) + 1:02x}:00.0"]
        tree.gpu(bus_id, way="/".join([switch, port, *own]))
        for bridge in own:
            tree.device(bridge).mkdir()
            tree.write(bridge, "vendor", "0x1002")
    tree.gpu(C, way="pci0000:00/0000:00:02.0")
    assert [link.pcie for link in read(tree).machine.links] == [PIX, PHB, PHB]


def test_network_cards_are_read(tree: AmdTree) -> None:
    tree.gpu(A)
    card = tree.root / "devices/pci0000:05/0000:06:00.0/infiniband/mlx5_0"
    (card / "ports/1").mkdir(parents=True)
    (card / "device").symlink_to("../..")
    (card / "ports/1/state").write_text("4: ACTIVE\n")
    (card / "ports/1/rate").write_text("400 Gb/sec (4X NDR)\n")
    (tree.root / "class/infiniband").mkdir()
    (tree.root / "class/infiniband/mlx5_0").symlink_to(card)
    (nic,) = read(tree).machine.nics
    assert (nic.name, nic.closeness, nic.gbit_per_s) == ("mlx5_0", (PHB,), 400)


def test_a_gpu_whose_product_has_no_name_has_its_architecture_for_one(tree: AmdTree) -> None:
    """So in virtual machines. Its NUMA node is -1 there."""
    tree.gpu(A, numa=-1, model="")
    (gpu,) = read(tree).machine.gpus
    assert (gpu.model, gpu.numa_nodes) == ("AMD gfx942", (-1,))


# PCIe lanes.

PORT, UPSTREAM, DOWNSTREAM = "0000:00:01.0", "0000:01:00.0", "0000:02:00.0"


def behind_its_own_switch(tree: AmdTree, up: object, most: object, slot: object) -> AmdTree:
    """Between A and its own switch, all lanes are up."""
    tree.gpu(A, way=f"pci0000:00/{PORT}/{UPSTREAM}/{DOWNSTREAM}")
    for bridge in (PORT, UPSTREAM, DOWNSTREAM):
        tree.device(bridge).mkdir()
        tree.write(bridge, "vendor", "0x1022" if bridge == PORT else "0x1002")
    tree.write(UPSTREAM, "current_link_width", str(up))
    tree.write(UPSTREAM, "max_link_width", str(most))
    tree.write(PORT, "max_link_width", str(slot))
    return tree


def lanes_of(tree: AmdTree) -> tuple[int, int]:
    (gpu,) = read(tree).machine.gpus
    return gpu.pcie_lanes, gpu.most_pcie_lanes


@pytest.mark.parametrize(
    ("up", "most", "slot", "lanes"),
    [
        (16, 16, 16, (16, 16)),
        (8, 16, 16, (8, 16)),
        (8, 16, 8, (8, 8)),
        (4, 4, 16, (4, 4)),
        (8, 255, 16, (8, 8)),  # what the kernel does not know
        (8, 16, "", (8, 16)),
        (8, 4, 4, (8, 8)),
        (0, 16, 16, (16, 16)),  # a virtual machine
        (32, 32, 32, (16, 16)),
        ("-1", 16, 16, (16, 16)),
        ("x" * 5000, 16, 16, (16, 16)),
    ],
)
def test_the_lanes_of_the_slot_count(
    tree: AmdTree, up: object, most: object, slot: object, lanes: tuple[int, int]
) -> None:
    assert lanes_of(behind_its_own_switch(tree, up, most, slot)) == lanes


def test_lanes_that_the_driver_takes_with_the_load_are_not_counted(tree: AmdTree) -> None:
    tree.gpu(A)
    tree.write(A, "current_link_width", "1")
    assert lanes_of(tree) == (1, 16)
    tree.write(A, "pp_dpm_pcie", "0: 2.5GT/s, x1 310Mhz *\n1: 16.0GT/s, x16 619Mhz")
    assert lanes_of(tree) == (16, 16)


def test_lanes_that_are_down_are_published_and_reported_as_nvidias_are(tree: AmdTree) -> None:
    tree.gpu(A), tree.gpu(B)
    tree.ways({(A, B): PCIE})
    whole = read(tree).machine
    tree.write(B, "current_link_width", "8")
    inventory = AmdInventory(sys_root=tree.root)
    stock = inventory.read()
    narrow = Finding("pcie-width", "8 of 16 PCIe lanes are up")
    assert stock.probe.findings == {B: (narrow,)}
    assert '"pcie_lanes":[[1,8,16]]' in write_topology(stock.machine)
    assert bandwidth(stock.machine, 0b11) < bandwidth(whole, 0b11)
    uncorrectable(tree)
    ill = Finding("ecc", "uncorrectable errors: gfx, umc")
    assert inventory.probe(stock.machine).findings == {B: (ill, narrow)}


# Partitions.


def test_partitions_are_found_by_their_render_minors(tree: AmdTree) -> None:
    """The first has the id of the GPU."""
    first = tree.gpu(A, partitions=8, mode="CPX")
    second = tree.gpu(B, partitions=8, mode="CPX")
    tree.gpu(C, mode="SPX")
    for one in (first[0], second[0]):
        other = second[0] if one == first[0] else first[0]
        tree.way(one, other, "type 11\nweight 41\nmin_bandwidth 0\nmax_bandwidth 0\n")
    machine = read(tree).machine
    parts = [[part.uuid for part in gpu.parts or ()] for gpu in machine.gpus]
    assert parts == [first, second, []]
    assert [gpu.parts is None for gpu in machine.gpus] == [False, False, True]
    (mig,) = {part.mig for gpu in machine.gpus for part in gpu.parts or ()}
    assert mig is not None
    assert (mig.name, mig.memory_mib) == ("cpx_nps4", 8192)
    assert machine.link(0, 1).nvlinks == 1
    assert machine.healthy_gpus == 0b100
    # No plugin offers them, as far as the driver knows.
    assert read_topology(write_topology(machine)).gpus[0].parts is not None


def test_a_partition_without_a_device_is_left_out(tree: AmdTree) -> None:
    """AMD's own list of 64 had 63."""
    ids = tree.gpu(A, partitions=4, mode="CPX")
    (renders,) = (tree.root / "devices/platform" / ids[3] / "drm").iterdir()
    renders.rmdir()
    stock = read(tree)
    assert [part.uuid for part in stock.machine.gpus[0].parts or ()] == ids[:3]
    assert "no device of amdgpu has renderD133: this partition is left out" in stock.warnings[0]


def test_a_change_of_the_partitions_asks_for_another_reading(tree: AmdTree) -> None:
    tree.gpu(A)
    inventory = AmdInventory(sys_root=tree.root)
    machine = inventory.read().machine
    assert not inventory.probe(machine).recount
    (tree.root / "devices/platform/amdgpu_xcp.1/drm/renderD140").mkdir(parents=True)
    assert inventory.probe(machine).recount
    inventory.read()
    assert not inventory.probe(machine).recount


# Bad input costs its GPU or its link, and is named.


def cut(tree: AmdTree) -> None:
    (tree.node_of(C) / "properties").unlink()


def no_text(tree: AmdTree) -> None:
    (tree.node_of(C) / "properties").write_bytes(b"simd_count 304\n\xff\n")


def no_place(tree: AmdTree) -> None:
    (tree.node_of(C) / "properties").write_text("simd_count 304\ndrm_render_minor 130\n")


def no_render(tree: AmdTree) -> None:
    (tree.node_of(C) / "properties").write_text("simd_count 304\nlocation_id 49920\n")


def same_place(tree: AmdTree) -> None:
    text = (tree.node_of(B) / "properties").read_text()
    (tree.node_of(C) / "properties").write_text(text)


def same_render(tree: AmdTree) -> None:
    text = (tree.node_of(C) / "properties").read_text()
    (tree.node_of(C) / "properties").write_text(text.replace("minor 132", "minor 131"))


def no_device(tree: AmdTree) -> None:
    tree.device(C).unlink()


def other_driver(tree: AmdTree) -> None:
    (tree.root / "module/amdgpu/drivers/pci:amdgpu" / C).unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut, "nodes/4/properties: it does not exist: this node is left out"),
        (no_text, "nodes/4/properties: it is no text: this node is left out"),
        (no_place, "nodes/4/properties: no location_id: expected a line with a number for it"),
        (no_render, "nodes/4/properties: no drm_render_minor: expected that of /dev/dri/renderD"),
        (same_place, "KFD nodes 3 and 4 are both 0000:26:00.0, partition 0, or renderD131"),
        (same_render, "KFD nodes 3 and 4 are both 0000:c3:00.0, partition 0, or renderD131"),
        (no_device, f"bus/pci/devices/{C}: it does not exist"),
        (other_driver, f"{C}: not the device of renderD132"),
    ],
)
def test_a_gpu_that_cannot_be_read_costs_no_other(
    tree: AmdTree, spoil: Callable[[AmdTree], None], said: str
) -> None:
    spoil(trio(tree))
    stock = read(tree)
    assert [gpu.uuid for gpu in stock.machine.gpus] == [A, B]
    assert stock.machine.link(0, 1).nvlinks == 4
    assert said in "; ".join((*stock.warnings, *stock.left_out.values()))


def nothing(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def text(what: bytes) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        path.write_bytes(what)

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        nothing,
        a_folder,
        a_circle,
        *map(text, (b"", b"-1", b"0", b"9" * 20, b"\xff\x00", b"x" * 5000, b"simd_count 1\n")),
        text(b"".join(b"%s 99999999999999999999\n" % name for name in (b"domain", b"location_id"))),
    ],
)
@pytest.mark.parametrize("mode", ["", "CPX"])
def test_whatever_one_file_of_a_gpu_is_no_other_suffers(
    tmp_path: Path, spoil: Callable[[Path], None], mode: str
) -> None:
    count = len([*files_of(AmdTree(tmp_path / "count"), mode)])
    assert count > 8
    for number in range(count):
        tree = AmdTree(tmp_path / str(number))
        path = [*files_of(tree, mode)][number]
        inventory = AmdInventory(sys_root=tree.root)
        spoil(path)
        stock = inventory.read()
        assert [gpu.uuid for gpu in stock.machine.gpus[:2]] == [A, B], path
        assert stock.machine.link(0, 1).nvlinks == 4, path
        probe = inventory.probe(stock.machine)
        assert probe.findings.keys() <= {C}, path
        assert read_topology(write_topology(stock.machine)).links == stock.machine.links, path


def files_of(tree: AmdTree, mode: str) -> Iterator[Path]:
    """Make a machine of three; yield the files of the last GPU."""
    for bus_id in (A, B):
        tree.gpu(bus_id)
    ids = tree.gpu(C, mode=mode, partitions=2 if mode else 1)
    tree.ways({(A, B): xgmi(4), (A, C): xgmi(1), (B, C): ROUTED})
    for folder in (tree.device(C).resolve(), *map(tree.node_of, ids)):
        yield from sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ("type 9\nweight 15\n", "type 9: expected 2 for PCIe or 11 for xGMI"),
        ("weight 15\n", "no type: expected a line with a number for it"),
        (
            "type 11\nweight 15\nmin_bandwidth 0\nmax_bandwidth 64000\n",
            "bandwidth 0 to 64000 MB/s: expected 1 to 36 times the first",
        ),
        (
            "type 11\nweight 15\nmin_bandwidth 5\nmax_bandwidth 64000\n",
            "bandwidth 5 to 64000 MB/s: expected 1 to 36 times the first",
        ),
        (
            "type 11\nweight 15\nmin_bandwidth 64000\nmax_bandwidth 50000\n",
            "bandwidth 64000 to 50000 MB/s: expected 1 to 36 times the first",
        ),
        ("type -1\n", "no type: expected a line with a number for it"),
    ],
)
def test_a_link_that_cannot_be_read_costs_no_other_and_is_never_near(
    tree: AmdTree, properties: str, said: str
) -> None:
    for bus_id in (A, B, C):
        tree.gpu(bus_id)
    tree.ways({(A, B): properties, (A, C): xgmi(1)})
    stock = read(tree)
    assert [(link.nvlinks, link.peer_to_peer) for link in stock.machine.links] == [
        (0, False),
        (1, True),
        (0, False),
    ]
    assert len(stock.warnings) == 2
    assert all(f"{said}: this link is left out" in text for text in stock.warnings)


@pytest.mark.parametrize(
    ("there", "back", "links", "said"),
    [
        (xgmi(4), xgmi(2), 2, "4 xGMI links there, 2 xGMI links back"),
        (xgmi(4), "", 0, "4 xGMI links there, no way back"),
        (xgmi(4), PCIE, 0, "4 xGMI links there, pcie back"),
    ],
)
def test_the_lesser_counts_where_two_gpus_differ(
    tree: AmdTree, there: str, back: str, links: int, said: str
) -> None:
    tree.gpu(A), tree.gpu(B)
    tree.way(A, B, there)
    if back:
        tree.way(B, A, back)
    stock = read(tree)
    assert stock.machine.links[0].nvlinks == links
    assert stock.machine.links[0].peer_to_peer == bool(back)
    assert stock.warnings == (f"GPUs {A} and {B}: {said}: the lesser counts",)


def test_more_gpus_than_a_machine_has(tree: AmdTree) -> None:
    ids = [f"0000:{bus:02x}:00.0" for bus in range(1, 19)]
    for bus_id in ids:
        tree.gpu(bus_id)
    stock = read(tree)
    assert len(stock.machine.gpus) == 16
    assert stock.left_out == {n: f"{ids[n]}: expected at most 16 GPUs on a node" for n in (16, 17)}


def test_without_the_driver_or_a_gpu_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="topology/nodes: it does not exist"):
        AmdInventory(sys_root=tmp_path / "none").read()
    with pytest.raises(InventoryError, match="AMD's driver has 0 GPUs, none usable"):
        read(AmdTree(tmp_path))


# What a GPU does, and how it is.


def test_what_a_gpu_does(tree: AmdTree) -> None:
    tree.gpu(A), tree.gpu(B)
    inventory = AmdInventory(sys_root=tree.root)
    machine = inventory.read().machine
    tree.write(B, "gpu_busy_percent", "40")
    (tree.device(A) / "mem_info_vram_used").unlink()
    assert inventory.probe(machine).loads == {A: Load(0.0, False), B: Load(0.4, True, 3)}
    tree.write(A, "gpu_busy_percent", "?")
    assert inventory.probe(machine).loads.keys() == {B}


def test_what_a_partition_does_is_not_known(tree: AmdTree) -> None:
    tree.gpu(A)
    tree.gpu(B, partitions=4, mode="CPX")
    inventory = AmdInventory(sys_root=tree.root)
    assert inventory.probe(inventory.read().machine).loads.keys() == {A}


def uncorrectable(tree: AmdTree) -> None:
    tree.write(B, "ras/umc_err_count", "ue: 3\nce: 0\nde: 1")
    tree.write(B, "ras/gfx_err_count", "ue: 1\nce: 0")


def off_the_bus(tree: AmdTree) -> None:
    (tree.device(B) / "config").write_bytes(b"\xff" * 64)


def unbound(tree: AmdTree) -> None:
    (tree.root / "module/amdgpu/drivers/pci:amdgpu" / B).unlink()


def in_reset(tree: AmdTree) -> None:
    tree.write(B, "ras/umc_err_count", "Query currently inaccessible")


@pytest.mark.parametrize(
    ("happens", "finding"),
    [
        (uncorrectable, Finding("ecc", "uncorrectable errors: gfx, umc")),
        (off_the_bus, Finding("lost", "the GPU has fallen off the bus")),
        (unbound, Finding("lost", "amdgpu does not have the GPU any more")),
        (in_reset, Finding("no-answer", "the driver resets the GPU, or cannot look at it")),
    ],
)
def test_a_gpu_that_is_ill(
    tree: AmdTree, happens: Callable[[AmdTree], None], finding: Finding
) -> None:
    tree.gpu(A), tree.gpu(B)
    inventory = AmdInventory(sys_root=tree.root)
    machine = inventory.read().machine
    happens(tree)
    probe = inventory.probe(machine)
    assert probe.findings == {B: (finding,)}
    assert probe.recount == (happens is unbound)


@pytest.mark.parametrize(("status", "well"), [("active", False), ("suspended", True)])
def test_a_driver_that_refuses_to_look(
    tree: AmdTree, status: str, well: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EBUSY, or EPERM of older drivers: in a reset, or while the GPU sleeps."""
    tree.gpu(A)
    tree.write(A, "power/runtime_status", status)
    inventory = AmdInventory(sys_root=tree.root)
    machine = inventory.read().machine

    def refuse(path: Path) -> str:
        if path.name == "gpu_busy_percent":
            raise BusyError(path, "Device or resource busy")
        return text_of(path)

    monkeypatch.setattr(device, "text_of", refuse)
    assert (not inventory.probe(machine).findings) == well


def test_a_read_that_blocks_costs_its_gpu_only(
    tree: AmdTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.gpu(A), tree.gpu(B)
    go_on = Event()
    inventory = AmdInventory(sys_root=tree.root, driver_seconds=0.2)
    machine = inventory.read().machine

    def block(root: Path, bus_id: str) -> DeviceProbe:
        if bus_id == A:
            go_on.wait(30)
        return probe_device(root, bus_id)

    monkeypatch.setattr(source, "probe_device", block)
    with closing(inventory):
        assert inventory.probe(machine).findings == {
            A: (Finding("no-answer", f"a file in {tree.root} does not answer within 0.2 s"),)
        }
        go_on.set()
        wait_for(lambda: not inventory.probe(machine).findings, "the end of the read that blocked")


def test_a_reading_that_blocks_leaves_its_gpu_out(
    tree: AmdTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.gpu(A), tree.gpu(B)
    go_on = Event()

    def block(root: Path, bus_id: str) -> Device:
        if bus_id == A:
            go_on.wait(30)
        return read_device(root, bus_id)

    monkeypatch.setattr(source, "read_device", block)
    stock = AmdInventory(sys_root=tree.root, driver_seconds=0.2).read()
    go_on.set()
    assert [gpu.uuid for gpu in stock.machine.gpus] == [B]
    assert stock.left_out == {0: f"{A}: a file in {tree.root} does not answer within 0.2 s"}
