"""The driver's answers, good and bad, read as a machine. No GPU needed: the library's own errors
and structures, a played driver behind them."""

from dataclasses import replace

import pynvml
import pytest

from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.inventory import Finding, Probe, Stock
from linkwise.plugin.health.conditions import DEFAULTS, Treatment
from linkwise.plugin.nvml.library import Nvml, sysfs_bus_id
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.topology.annotations.labels import node_labels
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.model import Link, LinkClass, Machine
from tests.machines import (
    BRIDGED_8,
    DGX_1V,
    DGX_2,
    DGX_A100,
    GEFORCE_4,
    HGX_H100,
    PCIE_8,
    TWO_ISLANDS,
)
from tests.plugin.fake_nvml import NO_SYSFS, WRITING, Fabric, FakeNvml, nvml_bus_id

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN


def read(driver: FakeNvml) -> Stock:
    return NvmlInventory(driver, sys_root=NO_SYSFS).read()


@pytest.mark.parametrize(
    "machine", [DGX_1V, BRIDGED_8, DGX_A100, HGX_H100, TWO_ISLANDS, DGX_2, PCIE_8, GEFORCE_4]
)
def test_a_driver_that_answers_well_tells_the_machine_as_it_is(machine: Machine) -> None:
    snapshot = read(FakeNvml(machine))
    assert snapshot.warnings == ()
    assert snapshot.probe.findings == {}
    assert snapshot.left_out == {}
    told = snapshot.machine
    assert told.links == machine.links
    assert told.driver_version == "550.54.15"
    assert told.cuda_version == "12.4"
    for gpu, real in zip(told.gpus, machine.gpus, strict=True):
        assert (gpu.uuid, gpu.model, gpu.memory_mib) == (real.uuid, real.model, real.memory_mib)
        assert gpu.numa_node == real.numa_node
    assert told.gpus[0].pci_bus_id == "0000:1a:00.0"
    assert snapshot.minors is not None
    assert snapshot.minors[machine.gpus[2].uuid] == 102


OPTIONAL = {  # not supported, and the value in its place
    "nvmlDeviceGetName": ("model", "GPU"),
    "nvmlDeviceGetMemoryInfo": ("memory_mib", 0),
    "nvmlDeviceGetPciInfo": ("pci_bus_id", None),
    "nvmlDeviceGetCudaComputeCapability": ("compute_capability", None),
    "nvmlDeviceGetMemoryAffinity": ("numa_nodes", ()),
}


@pytest.mark.parametrize("call", OPTIONAL)
def test_not_supported_has_a_stated_fallback_and_no_warning(call: str) -> None:
    driver = FakeNvml(PCIE_8)
    driver.fail(call, NOT_SUPPORTED, gpu=3)
    snapshot = read(driver)
    what, fallback = OPTIONAL[call]
    assert getattr(snapshot.machine.gpus[3], what) == fallback
    assert getattr(snapshot.machine.gpus[2], what) != fallback
    assert snapshot.warnings == ()
    assert snapshot.probe.findings == {}


@pytest.mark.parametrize("call", OPTIONAL)
def test_any_other_error_names_the_call_and_the_gpu_and_no_label_is_made_of_it(call: str) -> None:
    driver = FakeNvml(PCIE_8)
    driver.fail(call, UNKNOWN, gpu=3)
    snapshot = read(driver)
    if call in ("nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo"):  # labels would be wrong
        assert snapshot.left_out == {3: f"{call}: Unknown Error"}
        assert node_labels(snapshot.machine)["linkwise.dev/gpu.model"] != "mixed"
    else:
        assert snapshot.warnings == (f"GPU 3: {call}: Unknown Error",)


@pytest.mark.parametrize(
    "call",
    [
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion_v2",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetCurrPcieLinkWidth",
    ],
)
def test_a_driver_too_old_for_a_call_still_tells_its_gpus(call: str) -> None:
    driver = FakeNvml(PCIE_8)
    driver.fail(call, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    snapshot = read(driver)
    assert len(snapshot.machine.gpus) == 8
    assert snapshot.machine.links == PCIE_8.links
    assert snapshot.probe.findings == {}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "RM has detected an NVML/RM version mismatch"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"),
    ],
)
def test_a_driver_that_is_not_there_or_in_trouble_is_named(error: int, said: str) -> None:
    driver = FakeNvml(PCIE_8)
    driver.fail("nvmlInit", error)
    with pytest.raises(InventoryError, match=f"^nvmlInit: {said}"):
        read(driver)


class Reloaded(FakeNvml):
    """A driver that was unloaded and loaded again: its library wants a fresh start."""

    def unload(self) -> None:
        for call in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByUUID"):
            self.fail(call, pynvml.NVML_ERROR_UNINITIALIZED)

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own
        self.faults.clear()


def reasons(probe: Probe) -> dict[str, str]:
    return {uuid: "; ".join(f.text for f in found) for uuid, found in probe.findings.items()}


def test_a_driver_that_was_reloaded_is_found_again_by_probing() -> None:
    driver = Reloaded(PCIE_8)
    inventory = NvmlInventory(driver, sys_root=NO_SYSFS)
    machine = inventory.read().machine
    driver.unload()
    problems = reasons(inventory.probe(machine))
    assert set(problems.values()) == {"NVML: Uninitialized"}
    assert len(problems) == 8
    again = inventory.probe(machine)
    assert again.findings == {}
    assert again.recount  # it may renumber its device files
    assert not inventory.probe(machine).recount


def test_a_driver_that_was_reloaded_is_found_again_by_reading() -> None:
    driver = Reloaded(PCIE_8)
    inventory = NvmlInventory(driver, sys_root=NO_SYSFS)
    before = inventory.read()
    driver.unload()
    with pytest.raises(InventoryError, match="nvmlDeviceGetCount: Uninitialized"):
        inventory.read()
    assert inventory.read() == before


def test_while_the_driver_is_gone_each_gpu_is_unhealthy_for_that_reason() -> None:
    driver = FakeNvml(PCIE_8)
    inventory = NvmlInventory(driver, sys_root=NO_SYSFS)
    machine = inventory.read().machine
    for call in ("nvmlInit", "nvmlDeviceGetHandleByUUID"):
        driver.fail(call, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    inventory.probe(machine)
    assert set(reasons(inventory.probe(machine)).values()) == {"nvmlInit: Driver Not Loaded"}


def test_one_gpu_that_is_lost_does_not_restart_the_library() -> None:
    driver = FakeNvml(PCIE_8)
    inventory = NvmlInventory(driver, sys_root=NO_SYSFS)
    machine = inventory.read().machine
    driver.fail("nvmlDeviceGetMemoryInfo", LOST, gpu=2)
    inventory.probe(machine)
    assert "nvmlShutdown" not in driver.calls


def test_every_call_we_make_is_one_of_the_librarys() -> None:
    ours = [name for name in vars(Nvml) if name.startswith("nvml")]
    assert len(ours) == 35
    assert [name for name in ours if not callable(getattr(pynvml, name, None))] == []


def test_a_count_that_fails_names_the_call() -> None:
    driver = FakeNvml(PCIE_8)
    driver.fail("nvmlDeviceGetCount", UNKNOWN)
    with pytest.raises(InventoryError, match=r"^nvmlDeviceGetCount: Unknown Error"):
        read(driver)


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_gpu_that_does_not_say_who_it_is_is_left_out_and_the_others_keep_their_links(
    call: str,
) -> None:
    driver = FakeNvml(BRIDGED_8)  # NVLink pairs (0,2) (1,3) (4,5) (6,7)
    driver.fail(call, LOST, gpu=1)
    snapshot = read(driver)
    assert [gpu.index for gpu in snapshot.machine.gpus] == [0, 2, 3, 4, 5, 6, 7]
    assert snapshot.machine.link(0, 1) == BRIDGED_8.link(0, 2)
    assert snapshot.left_out == {1: "GPU is lost: no handle or no uuid"}
    (warning,) = snapshot.warnings  # for all twelve links
    assert warning.startswith("NVLinks of GPU 3 end at what is no other GPU here, and are left out")
    assert "0 at 0000:1b:00.0 (GPU), 1 at 0000:1b:00.0 (GPU)" in warning


def test_no_usable_gpu_at_all_is_an_error_that_says_why() -> None:
    driver = FakeNvml(PCIE_8)
    driver.fail("nvmlDeviceGetHandleByIndex", LOST)
    with pytest.raises(
        InventoryError, match=r"reports 8 GPUs, none usable; GPU 0: GPU is lost: no handle"
    ):
        read(driver)


def test_seventeen_gpus_are_refused_with_the_number() -> None:
    driver = FakeNvml(DGX_2)
    driver.faults["nvmlDeviceGetCount"] = lambda: 17
    driver.faults["nvmlDeviceGetHandleByIndex"] = lambda index: index % 16
    driver.faults["nvmlDeviceGetUUID"] = lambda handle: f"GPU-{handle}"
    with pytest.raises(InventoryError, match="makes no machine: machine: 17 GPUs: expected 1 to"):
        read(driver)


def test_two_gpus_of_one_uuid_are_refused() -> None:
    driver = FakeNvml(PCIE_8)
    driver.faults["nvmlDeviceGetUUID"] = lambda _: "GPU-same"
    with pytest.raises(InventoryError, match="uuid GPU-same on two GPUs"):
        read(driver)


def test_links_that_one_side_counts_differently_count_as_the_fewer_with_a_warning() -> None:

    class Asymmetric(FakeNvml):
        def ends(self, handle: int) -> list[tuple[int, bytes]]:
            ends = super().ends(handle)
            if handle == 0:
                ends.remove((pynvml.NVML_NVLINK_DEVICE_TYPE_GPU, nvml_bus_id(3)))
            return ends

    snapshot = read(Asymmetric(DGX_1V))
    assert DGX_1V.link(0, 3).nvlinks == 2
    assert snapshot.machine.link(0, 3).nvlinks == 1
    assert snapshot.warnings == ("NVLink: GPU 0 counts 1 to GPU 3, which counts 2 back; 1 taken",)


def test_through_an_nvswitch_a_pair_has_what_its_poorer_end_has() -> None:
    class OneLinkDown(FakeNvml):
        def ends(self, handle: int) -> list[tuple[int, bytes]]:
            return super().ends(handle)[: 17 if handle == 5 else 18]

    told = read(OneLinkDown(HGX_H100)).machine
    assert told.link(0, 5) == replace(HGX_H100.link(0, 5), nvlinks=17)
    assert told.link(0, 1) == HGX_H100.link(0, 1)


def test_an_old_driver_that_knows_no_device_types_still_finds_gpus_by_their_bus_id() -> None:
    driver = FakeNvml(DGX_1V)
    driver.fail("nvmlDeviceGetNvLinkRemoteDeviceType", NOT_SUPPORTED)
    assert read(driver).machine.links == DGX_1V.links


def test_links_with_an_end_nobody_knows_are_left_out_with_a_warning() -> None:
    driver = FakeNvml(TWO_ISLANDS)
    driver.fail("nvmlDeviceGetNvLinkRemotePciInfo", UNKNOWN, gpu=0)
    snapshot = read(driver)
    assert snapshot.machine.link(0, 1).nvlinks == 0
    assert snapshot.machine.link(1, 2) == TWO_ISLANDS.link(1, 2)
    assert snapshot.warnings == ("GPU 0: nvmlDeviceGetNvLinkRemotePciInfo: Unknown Error",)


def test_a_link_to_a_cpu_is_no_link_between_gpus() -> None:
    driver = FakeNvml(DGX_1V)
    driver.faults["nvmlDeviceGetNvLinkRemoteDeviceType"] = lambda *_: (
        pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU
    )
    driver.faults["nvmlDeviceGetNvLinkRemotePciInfo"] = lambda *_: type(
        "Pci", (), {"busId": b"00000004:04:00.0"}
    )
    assert all(link.nvlinks == 0 for link in read(driver).machine.links)


def test_a_distance_that_the_driver_does_not_know_comes_from_numa_with_a_warning() -> None:
    driver = FakeNvml(BRIDGED_8)
    driver.fail("nvmlDeviceGetTopologyCommonAncestor", NOT_SUPPORTED)
    snapshot = read(driver)
    assert {link.pcie for link in snapshot.machine.links} == {LinkClass.NODE, LinkClass.SYS}
    for first, second, link in snapshot.machine.pairs():
        same = BRIDGED_8.gpus[first].numa_node == BRIDGED_8.gpus[second].numa_node
        assert link.pcie is (LinkClass.NODE if same else LinkClass.SYS)
    (warning,) = snapshot.warnings  # one for all: in virtual machines it is every pair
    assert "the distance of 28 pairs of GPUs; taken from their NUMA nodes: 0-1 " in warning


@pytest.mark.parametrize(
    ("level", "link"),
    [(0, LinkClass.PIX), (15, LinkClass.PXB), (30, LinkClass.PHB), (99, LinkClass.SYS)],
)
def test_a_level_between_the_known_ones_counts_as_the_farther(level: int, link: LinkClass) -> None:
    driver = FakeNvml(PCIE_8)
    driver.faults["nvmlDeviceGetTopologyCommonAncestor"] = lambda *_: level
    assert set(read(driver).machine.links) == {Link(link)}


def test_the_driver_says_which_gpus_have_peer_to_peer_access() -> None:
    driver = FakeNvml(GEFORCE_4)
    told = read(driver).machine
    assert told.links == GEFORCE_4.links
    assert '"no_p2p":[[1,2,3],[2,3],[3]]' in write_topology(told)
    driver.faults["nvmlDeviceGetP2PStatus"] = lambda *_: pynvml.NVML_P2P_STATUS_OK
    assert all(link.peer_to_peer for link in read(driver).machine.links)


def test_access_one_way_is_none() -> None:
    driver = FakeNvml(PCIE_8)
    driver.faults["nvmlDeviceGetP2PStatus"] = lambda first, _, access: (
        pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY
        if (first, access) == (0, WRITING)
        else pynvml.NVML_P2P_STATUS_OK
    )
    pairs = read(driver).machine.pairs()
    assert {first for first, _, link in pairs if not link.peer_to_peer} == {0}


@pytest.mark.parametrize("machine", [GEFORCE_4, PCIE_8])
def test_where_the_driver_does_not_know_of_access_the_models_names_decide(
    machine: Machine,
) -> None:
    silent, unsure = FakeNvml(machine), FakeNvml(machine)
    silent.fail("nvmlDeviceGetP2PStatus", NOT_SUPPORTED)
    unsure.faults["nvmlDeviceGetP2PStatus"] = lambda *_: pynvml.NVML_P2P_STATUS_UNKNOWN
    for driver in (silent, unsure):
        snapshot = read(driver)
        assert snapshot.machine.links == machine.links
        assert snapshot.warnings == ()


def test_an_access_that_the_driver_fails_to_tell_again_stays_with_a_warning() -> None:
    driver = FakeNvml(PCIE_8)
    driver.faults["nvmlDeviceGetP2PStatus"] = lambda *_: pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
    inventory = NvmlInventory(driver, sys_root=NO_SYSFS)
    inventory.read()
    driver.fail("nvmlDeviceGetP2PStatus", UNKNOWN)
    snapshot = inventory.read()
    assert not any(link.peer_to_peer for link in snapshot.machine.links)
    assert snapshot.warnings == (
        "nvmlDeviceGetP2PStatus of GPUs 0-1: Unknown Error (and 27 more pairs)",
    )


def test_a_clique_is_told_when_all_gpus_share_it() -> None:
    driver = FakeNvml(HGX_H100, fabric={gpu: Fabric() for gpu in range(8)})
    assert read(driver).machine.clique == "00010203-0405-0607-0809-0a0b0c0d0e0f.7"


def test_an_all_zero_cluster_means_one_machine_only() -> None:
    driver = FakeNvml(HGX_H100, fabric={gpu: Fabric(cluster=bytes(16)) for gpu in range(8)})
    assert read(driver).machine.clique is None


def test_a_fabric_that_came_up_with_an_error_is_no_clique() -> None:
    driver = FakeNvml(HGX_H100, fabric={gpu: Fabric(status=UNKNOWN) for gpu in range(8)})
    assert read(driver).machine.clique is None


def test_gpus_of_two_cliques_have_none_in_common_and_no_links_between() -> None:
    fabric = {gpu: Fabric(clique=gpu // 4) for gpu in range(8)}
    snapshot = read(FakeNvml(HGX_H100, fabric=fabric))
    assert snapshot.machine.clique is None
    assert snapshot.machine.link(0, 3).nvlinks == 18
    assert snapshot.machine.link(0, 4).nvlinks == 0
    assert "expected one; none taken" in snapshot.warnings[0]


def test_a_fabric_that_is_not_supported_is_no_problem() -> None:
    fabric = {2: Fabric(state=pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED)}
    assert read(FakeNvml(HGX_H100, fabric=fabric)).probe.findings == {}


@pytest.mark.parametrize(
    ("told", "linux"),
    [
        (b"00000000:1A:00.0", "0000:1a:00.0"),
        ("00000001:00:00.0", "0001:00:00.0"),
        (b"00010000:3F:00.0", "10000:3f:00.0"),
    ],
)
def test_bus_ids_as_linux_writes_them(told: bytes | str, linux: str) -> None:
    assert sysfs_bus_id(told) == linux


def test_the_driver_is_started_once_and_closed_once() -> None:
    driver = FakeNvml(PCIE_8)
    inventory = NvmlInventory(driver, sys_root=NO_SYSFS)
    inventory.read()
    inventory.read()
    inventory.close()
    inventory.close()
    assert driver.calls.count("nvmlInit") == 1
    assert driver.calls.count("nvmlShutdown") == 1


def narrow(machine: Machine, gpu: int, lanes: int, most: int = 16) -> Machine:
    gpus = list(machine.gpus)
    gpus[gpu] = replace(gpus[gpu], pcie_lanes=lanes, most_pcie_lanes=most)
    return replace(machine, gpus=tuple(gpus))


def test_a_gpu_that_came_up_with_half_of_its_lanes_is_told_and_noted() -> None:
    source = NvmlInventory(FakeNvml(narrow(PCIE_8, 3, 8)), sys_root=NO_SYSFS)
    snapshot = source.read()
    told = snapshot.machine
    assert [gpu.pcie_lanes for gpu in told.gpus] == [16, 16, 16, 8, 16, 16, 16, 16]
    assert '"pcie_lanes":[[3,8,16]]' in write_topology(told)
    noted = {told.gpus[3].uuid: (Finding("pcie-width", "8 of 16 PCIe lanes are up"),)}
    assert snapshot.probe.findings == source.probe(told).findings == noted
    assert DEFAULTS["pcie-width"] is Treatment.NOTE
    assert snapshot.warnings == ()


def test_a_slot_of_eight_lanes_is_told_and_nothing_is_wrong_with_it() -> None:
    snapshot = read(FakeNvml(narrow(PCIE_8, 3, 8, 8)))
    assert '"pcie_lanes":[[3,8,8]]' in write_topology(snapshot.machine)
    assert snapshot.probe.findings == {}


@pytest.mark.parametrize(
    ("up", "most", "told"),
    [(0, 16, (16, 16)), (32, 32, (16, 16)), (8, 32, (8, 16)), (16, 8, (16, 16)), (8, 0, (8, 8))],
)
def test_impossible_lanes_are_no_reason_to_leave_a_gpu_out(
    up: int, most: int, told: tuple[int, int]
) -> None:
    driver = FakeNvml(PCIE_8)
    driver.faults["nvmlDeviceGetCurrPcieLinkWidth"] = lambda _: up
    driver.faults["nvmlDeviceGetMaxPcieLinkWidth"] = lambda _: most
    snapshot = read(driver)
    assert {(gpu.pcie_lanes, gpu.most_pcie_lanes) for gpu in snapshot.machine.gpus} == {told}


@pytest.mark.parametrize("error", [NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, UNKNOWN])
def test_a_driver_that_refuses_to_tell_the_lanes_costs_only_them(error: int) -> None:
    driver = FakeNvml(narrow(PCIE_8, 3, 8))
    driver.fail("nvmlDeviceGetCurrPcieLinkWidth", error)
    snapshot = read(driver)
    assert {gpu.pcie_lanes for gpu in snapshot.machine.gpus} == {16}
    assert (snapshot.warnings, snapshot.probe.findings, snapshot.left_out) == ((), {}, {})
    assert snapshot.minors == read(FakeNvml(PCIE_8)).minors
    unbounded = FakeNvml(narrow(PCIE_8, 3, 8))
    unbounded.fail("nvmlDeviceGetMaxPcieLinkWidth", error)
    assert read(unbounded).machine.gpus[3].pcie_lanes == 8
    assert read(unbounded).probe.findings == {}


def test_the_lanes_of_a_gpu_that_does_not_tell_them_any_more_stay() -> None:
    driver = FakeNvml(narrow(PCIE_8, 3, 8))
    source = NvmlInventory(driver, sys_root=NO_SYSFS)
    before = source.read().machine
    driver.fail("nvmlDeviceGetCurrPcieLinkWidth", LOST, gpu=3)
    driver.fail("nvmlDeviceGetMaxPcieLinkWidth", LOST, gpu=3)
    assert source.read().machine == before
