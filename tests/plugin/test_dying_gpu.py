"""What is known of a GPU stays known while it dies; nothing of it is guessed, no other GPU pays."""

import os
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linkwise.plugin.device_plugin.containers import Granting, grant
from linkwise.plugin.errors import NoDeviceFileError
from linkwise.plugin.gpus.inventory import Stock
from linkwise.plugin.health.book import DeviceBook
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.topology.annotations.labels import node_labels
from linkwise.topology.machine.model import Machine
from tests.machines import BRIDGED_8, DGX_1V, DGX_2, DGX_A100, HGX_H100, PCIE_8
from tests.plugin.fake_nvml import NO_SYSFS, Fabric, FakeNvml, nvml_bus_id
from tests.plugin.grants import NO_CDI

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
FACTS = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetFieldValues",
)


def inventory(driver: FakeNvml, **options: bool) -> NvmlInventory:
    return NvmlInventory(driver, sys_root=NO_SYSFS, **options)


def ids(machine: Machine) -> list[str]:
    return [gpu.uuid for gpu in machine.gpus]


def lines_of(snapshot: Stock) -> int:
    """How many reports a user gets: each GPU that is not well, and each warning."""
    return len(snapshot.probe.findings) + len(snapshot.warnings) + len(snapshot.left_out)


@pytest.mark.parametrize("machine", [DGX_1V, BRIDGED_8, DGX_A100, HGX_H100, DGX_2, PCIE_8])
def test_a_gpu_that_answers_nothing_but_its_uuid_leaves_the_machine_as_it_was(
    machine: Machine,
) -> None:
    driver = FakeNvml(machine, fabric={gpu.index: Fabric() for gpu in machine.gpus})
    source = inventory(driver)
    before = source.read()
    for call in FACTS:
        driver.fail(call, LOST, gpu=len(machine.gpus) - 1)  # of GFD's labels, the last one counts
    after = source.read()
    assert after.machine == before.machine
    assert node_labels(after.machine) == node_labels(before.machine)
    assert after.minors == before.minors
    assert set(after.probe.findings) == {machine.gpus[-1].uuid}
    assert lines_of(after) == 1
    assert source.read().machine == before.machine


@given(st.sets(st.sampled_from(FACTS)), st.integers(0, 7), st.sampled_from([LOST, UNKNOWN]))
@example({"nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"}, 0, LOST)
@settings(deadline=None)
def test_whatever_it_does_not_answer_any_more_stays_what_it_was(
    calls: set[str], gpu: int, error: int
) -> None:
    driver = FakeNvml(DGX_1V)
    source = inventory(driver)
    before = source.read()
    for call in calls:
        driver.fail(call, error, gpu=gpu)
    after = source.read()
    assert (after.machine, after.minors) == (before.machine, before.minors)
    assert set(after.probe.findings) <= {DGX_1V.gpus[gpu].uuid}
    assert lines_of(after) <= 1


def test_once_it_answers_again_its_answers_count_again() -> None:
    driver = FakeNvml(PCIE_8)
    source = inventory(driver)
    source.read()
    driver.fail("nvmlDeviceGetCudaComputeCapability", LOST, gpu=3)
    source.read()
    driver.faults["nvmlDeviceGetCudaComputeCapability"] = lambda _: (12, 0)
    assert source.read().machine.gpus[3].compute_capability == (12, 0)


def test_not_supported_is_an_answer_also_of_what_was_known() -> None:
    driver = FakeNvml(PCIE_8)
    source = inventory(driver)
    source.read()
    driver.fail("nvmlDeviceGetCudaComputeCapability", pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=3)
    assert source.read().machine.gpus[3].compute_capability is None


def test_versions_of_a_driver_that_does_not_tell_them_any_more_stay() -> None:
    driver = FakeNvml(PCIE_8)
    source = inventory(driver)
    source.read()
    driver.fail("nvmlSystemGetDriverVersion", UNKNOWN)
    driver.fail("nvmlSystemGetCudaDriverVersion_v2", UNKNOWN)
    machine = source.read().machine
    assert (machine.driver_version, machine.cuda_version) == ("550.54.15", "12.4")


def test_links_to_a_gpu_that_died_stay_though_their_other_ends_see_them_down() -> None:
    driver = FakeNvml(DGX_1V)
    source = inventory(driver)
    before = source.read()
    driver.fail("nvmlDeviceGetMemoryInfo", LOST, gpu=3)
    ends = {gpu: driver.ends(gpu) for gpu in range(8)}
    driver.down = {
        (gpu, link)
        for gpu in range(8)
        for link, (_, bus_id) in enumerate(ends[gpu])
        if gpu == 3 or bus_id == nvml_bus_id(3)
    }
    after = source.read()
    assert after.machine == before.machine
    assert set(after.probe.findings) == {DGX_1V.gpus[3].uuid}


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_links_to_a_gpu_that_is_gone_do_not_mark_its_neighbours(call: str) -> None:
    driver = FakeNvml(DGX_1V)
    source = inventory(driver)
    before = source.read()
    ends = {gpu: driver.ends(gpu) for gpu in range(8)}
    driver.down = {
        (gpu, link)
        for gpu in range(8)
        for link, (_, bus_id) in enumerate(ends[gpu])
        if bus_id == nvml_bus_id(3)
    }
    driver.fail(call, LOST, gpu=3)
    after = source.read()
    assert after.probe.findings == {}
    assert after.warnings == ()
    assert list(after.left_out) == [3]
    driver.faults.clear()
    driver.down.clear()
    assert source.read().machine == before.machine


def test_a_link_of_a_gpu_with_another_trouble_is_found_down_too() -> None:
    driver = FakeNvml(HGX_H100)
    source = inventory(driver)
    source.read()
    driver.fields[5, pynvml.NVML_FI_DEV_REMAPPED_PENDING] = 1
    driver.down = {(5, 3)}
    found = source.read().probe.findings[HGX_H100.gpus[5].uuid]
    assert [finding.condition for finding in found] == ["memory-repair-pending", "nvlink-down"]


def test_a_link_that_goes_down_between_gpus_that_are_well_is_found_and_counted_no_more() -> None:
    driver = FakeNvml(DGX_1V)
    source = inventory(driver)
    machine = source.read().machine
    ends = driver.ends(0)
    driver.down = {(0, next(link for link, end in enumerate(ends) if end[1] == nvml_bus_id(3)))}
    after = source.read()
    assert machine.link(0, 3).nvlinks == 2
    assert after.machine.link(0, 3).nvlinks == 1
    (finding,) = after.probe.findings[machine.gpus[0].uuid]
    assert (finding.condition, finding.text) == ("nvlink-down", "5 of 6 NVLinks are up")
    assert set(source.probe(machine).findings) == {machine.gpus[0].uuid}  # until the next reading
    driver.down = set()
    assert source.read().probe.findings == {}


def test_a_gpu_with_fewer_links_to_the_switch_than_its_likes_is_found_at_the_start() -> None:
    driver = FakeNvml(HGX_H100, down={(5, 17)})
    snapshot = inventory(driver).read()
    (finding,) = snapshot.probe.findings[HGX_H100.gpus[5].uuid]
    assert finding.text == "17 of 18 NVLinks are up"
    assert snapshot.machine.link(0, 5) == replace(HGX_H100.link(0, 5), nvlinks=17)


def test_one_gpu_whose_fabric_is_not_up_yet_does_not_take_the_clique_of_the_node() -> None:
    driver = FakeNvml(HGX_H100, fabric={gpu: Fabric() for gpu in range(8)})
    driver.fabric[2] = Fabric(state=pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS)
    snapshot = inventory(driver).read()
    assert snapshot.machine.clique == "00010203-0405-0607-0809-0a0b0c0d0e0f.7"
    assert set(snapshot.probe.findings) == {HGX_H100.gpus[2].uuid}
    assert snapshot.warnings == ()


TWO = Machine(gpus=PCIE_8.gpus[:2], links=PCIE_8.links[:1])


def tree_of_two(root: Path) -> Path:
    """A /sys with two GPUs and a network card; returns the directory of the card's port."""
    devices = root / "bus/pci/devices"
    devices.mkdir(parents=True)
    for number, name in enumerate([nvml_bus_id(0), nvml_bus_id(1), b"00000000:99:00.0"]):
        bus_id = name.decode().lower()[4:]
        place = root / "devices/pci0000:00" / bus_id
        place.mkdir(parents=True)
        (place / "numa_node").write_text(str(number % 2))
        (devices / bus_id).symlink_to(place)
    card = root / "class/infiniband/mlx5_0"
    card.mkdir(parents=True)
    (card / "device").symlink_to(root / "devices/pci0000:00/0000:99:00.0")
    port = card / "ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")
    return port


def test_a_gpu_that_fell_off_the_bus_keeps_the_network_cards_of_all(tmp_path: Path) -> None:
    tree_of_two(tmp_path)
    source = NvmlInventory(FakeNvml(TWO), sys_root=tmp_path)
    before = source.read().machine
    assert [nic.name for nic in before.nics] == ["mlx5_0"]
    assert [gpu.numa_nodes for gpu in before.gpus] == [(0,), (1,)]
    (tmp_path / "bus/pci/devices/0000:1b:00.0").unlink()
    assert source.read().machine == before


def test_a_network_card_that_goes_down_is_published_no_longer(tmp_path: Path) -> None:
    port = tree_of_two(tmp_path)
    source = NvmlInventory(FakeNvml(TWO), sys_root=tmp_path)
    (card,) = source.read().machine.nics
    assert card.gbit_per_s == 200
    (port / "state").write_text("1: DOWN\n")
    after = source.read()
    assert after.machine.nics == ()
    assert after.warnings == ()
    (port / "state").write_text("4: ACTIVE\n")
    assert source.read().machine.nics == (card,)


def test_a_network_card_that_does_not_answer_stays_and_delays_no_reading_for_long(
    tmp_path: Path,
) -> None:
    port = tree_of_two(tmp_path)
    source = NvmlInventory(FakeNvml(TWO), sys_root=tmp_path, driver_seconds=2.0)
    before = source.read().machine
    (port / "state").unlink()
    os.mkfifo(port / "state")  # a reader waits
    after = source.read()
    try:
        assert after.machine == before
        hangs = f"{tmp_path}/class/infiniband: no answer within 2 s"
        assert after.warnings == (hangs,)
        assert source.read().warnings == (hangs,)
    finally:
        (port / "state").open("w").close()  # lets the reader go


def test_an_old_driver_still_tells_an_nvswitch(tmp_path: Path) -> None:
    """Without nvmlDeviceGetNvLinkRemoteDeviceType, what is at the other end's bus id counts."""
    driver = FakeNvml(HGX_H100)
    driver.fail("nvmlDeviceGetNvLinkRemoteDeviceType", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    switch = tmp_path / "bus/pci/devices/0000:bb:00.0"
    switch.mkdir(parents=True)
    (switch / "class").write_text("0x068000\n")
    assert NvmlInventory(driver, sys_root=tmp_path).read().machine.links == HGX_H100.links
    # A virtual machine does not show it.
    assert inventory(driver).read().machine.links == HGX_H100.links
    (switch / "class").write_text("0x068001\n")  # IBM's links into a CPU
    machine = NvmlInventory(driver, sys_root=tmp_path).read().machine
    assert {link.nvlinks for link in machine.links} == {0}


def test_a_device_file_that_is_not_told_any_more_is_the_one_that_was_told() -> None:
    driver = FakeNvml(PCIE_8)
    source = inventory(driver, minors_needed=True)
    source.read()
    driver.fail("nvmlDeviceGetMinorNumber", UNKNOWN, gpu=3)
    snapshot = source.read()
    book = DeviceBook(snapshot)
    given = grant(
        book.now,
        [PCIE_8.gpus[3].uuid],
        Granting(NO_CDI, device_specs=True, host_dev=NO_SYSFS),
    )
    assert given.device_paths == ("/dev/nvidia103",)
    assert snapshot.probe.findings == {}


def test_a_device_file_that_was_never_told_is_refused_and_its_gpu_is_not_offered() -> None:
    driver = FakeNvml(PCIE_8)
    driver.fail("nvmlDeviceGetMinorNumber", UNKNOWN, gpu=3)
    snapshot = inventory(driver, minors_needed=True).read()
    book = DeviceBook(snapshot)
    how = Granting(NO_CDI, device_specs=True, host_dev=NO_SYSFS)
    uuids = ids(PCIE_8)
    with pytest.raises(NoDeviceFileError, match=rf"GPU 3 \({uuids[3]}\): its device file is not"):
        grant(book.now, uuids[2:4], how)
    assert grant(book.now, uuids[4:5], how).device_paths == ("/dev/nvidia104",)
    assert [gpu.healthy for gpu in book.now.machine.gpus] == [True] * 3 + [False] + [True] * 4
    without = DeviceBook(inventory(driver).read())
    assert all(gpu.healthy for gpu in without.now.machine.gpus)  # nothing needs the file there


def test_device_files_told_by_a_driver_that_was_reloaded_since_are_forgotten() -> None:
    """It numbers the devices that it finds, and may have lost one."""
    driver = FakeNvml(PCIE_8)
    source = inventory(driver)
    machine = source.read().machine
    driver.fail("nvmlDeviceGetHandleByUUID", pynvml.NVML_ERROR_UNINITIALIZED)
    source.probe(machine)
    driver.faults.clear()
    driver.fail("nvmlDeviceGetMinorNumber", UNKNOWN, gpu=3)
    minors = source.read().minors
    assert minors is not None
    assert set(ids(machine)) - set(minors) == {machine.gpus[3].uuid}


def test_of_two_gpus_with_one_device_file_the_one_that_is_in_trouble_has_none() -> None:
    driver = FakeNvml(PCIE_8)
    source = inventory(driver)
    source.read()
    driver.fail("nvmlDeviceGetMinorNumber", UNKNOWN, gpu=3)  # it keeps 103
    failing = driver.faults["nvmlDeviceGetMinorNumber"]
    driver.faults["nvmlDeviceGetMinorNumber"] = lambda gpu: 103 if gpu == 4 else failing(gpu)
    minors = source.read().minors
    assert minors is not None
    assert PCIE_8.gpus[3].uuid not in minors
    assert minors[PCIE_8.gpus[4].uuid] == 103
    driver.faults["nvmlDeviceGetMinorNumber"] = lambda _: 7
    assert inventory(driver).read().minors == {}


def test_links_beyond_what_a_chip_has_are_not_asked_about() -> None:
    driver = FakeNvml(HGX_H100)
    inventory(driver).read()
    assert driver.calls.count("nvmlDeviceGetNvLinkState") == 8 * 19  # 18, and one too many


def test_a_gpu_that_is_lost_is_asked_about_one_nvlink_not_about_36() -> None:
    driver = FakeNvml(HGX_H100)
    source = inventory(driver)
    source.read()
    driver.calls.clear()
    driver.fail("nvmlDeviceGetNvLinkState", LOST, gpu=2)
    source.read()
    assert driver.calls.count("nvmlDeviceGetNvLinkState") == 7 * 19 + 1


def test_a_card_without_nvlinks_is_asked_about_them_once() -> None:
    driver = FakeNvml(PCIE_8)
    source = inventory(driver)
    for _ in range(3):
        source.read()
    assert driver.calls.count("nvmlDeviceGetNvLinkState") == 8 * 36


def test_links_that_were_there_are_not_beyond_what_the_chip_has() -> None:
    driver = FakeNvml(DGX_1V)
    source = inventory(driver)
    before = source.read()
    driver.fail("nvmlDeviceGetNvLinkState", pynvml.NVML_ERROR_INVALID_ARGUMENT, gpu=2)
    assert source.read().machine == before.machine


@pytest.mark.parametrize(("machine", "before"), [(HGX_H100, 568), (DGX_2, 1004), (DGX_1V, 520)])
def test_a_full_reading_costs_less_than_before_xids_ecc_and_nvlinks_were_read(
    machine: Machine, before: int
) -> None:
    fabric = {gpu: Fabric() for gpu in range(8)} if machine is HGX_H100 else {}
    driver = FakeNvml(machine, fabric=fabric)
    inventory(driver).read()
    assert len(driver.calls) < before
