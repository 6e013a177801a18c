"""What the driver says a GPU does. If it does not say, nothing is known, and no GPU is ill."""

import pynvml
import pytest

from linkwise.plugin.gpus.inventory import Load, Probe
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.topology.machine.model import Machine
from tests.machines import HGX_H100
from tests.plugin.fake_nvml import DRIVER_SECONDS, NO_SYSFS, FakeNvml

UUIDS = [gpu.uuid for gpu in HGX_H100.gpus]
NOTHING = Load(0.0, worked=False, memory_mib=0)


@pytest.fixture
def driver() -> FakeNvml:
    return FakeNvml(HGX_H100)


@pytest.fixture
def source(driver: FakeNvml) -> NvmlInventory:
    return NvmlInventory(driver, sys_root=NO_SYSFS, driver_seconds=DRIVER_SECONDS)


@pytest.fixture
def machine(source: NvmlInventory) -> Machine:
    return source.read().machine


def test_each_gpu_has_its_busy_share_and_its_memory(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    driver.busy[1], driver.used_mib[1] = 73, 5000
    loads = source.probe(machine).loads
    assert loads[UUIDS[1]] == Load(0.73, worked=True, memory_mib=5000)
    assert {uuid: loads[uuid] for uuid in UUIDS if uuid != UUIDS[1]} == dict.fromkeys(
        [uuid for uuid in UUIDS if uuid != UUIDS[1]], NOTHING
    )


@pytest.mark.parametrize("sample", [(1_000, 4, 0), (1_000, 0, 9)], ids=["kernel", "video"])
def test_what_a_process_did_between_two_looks_counts_once(
    driver: FakeNvml, source: NvmlInventory, machine: Machine, sample: tuple[int, int, int]
) -> None:
    driver.samples[2] = [sample]
    assert source.probe(machine).loads[UUIDS[2]] == Load(0.0, worked=True, memory_mib=0)
    assert source.probe(machine).loads[UUIDS[2]] == NOTHING
    driver.samples[2].append((2_000, 0, 0))
    assert source.probe(machine).loads[UUIDS[2]] == NOTHING
    driver.samples[2].append((3_000, 1, 0))
    assert source.probe(machine).loads[UUIDS[2]].worked


def test_a_card_without_samples_of_processes_still_has_its_busy_share(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    driver.fail("nvmlDeviceGetProcessUtilization", pynvml.NVML_ERROR_NOT_SUPPORTED)
    driver.busy[0] = 100
    loads = source.probe(machine).loads
    assert loads[UUIDS[0]] == Load(1.0, worked=True, memory_mib=0)
    assert loads[UUIDS[1]] == NOTHING


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,  # MIG mode
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_UNKNOWN,
        pynvml.NVML_ERROR_GPU_IS_LOST,  # the next probe judges that
    ],
)
def test_if_the_driver_does_not_say_nothing_is_known_of_this_gpu_and_all_are_well(
    driver: FakeNvml, source: NvmlInventory, machine: Machine, error: int
) -> None:
    driver.fail("nvmlDeviceGetUtilizationRates", error, gpu=3)
    assert source.probe(machine) == Probe(
        loads={uuid: NOTHING for uuid in UUIDS if uuid != UUIDS[3]}
    )


def test_a_call_that_hangs_costs_its_own_gpu_its_load_and_no_gpu_its_health(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    driver.hang("nvmlDeviceGetUtilizationRates", gpu=5)
    for _ in range(3):
        probe = source.probe(machine)
        assert probe == Probe(loads={uuid: NOTHING for uuid in UUIDS if uuid != UUIDS[5]})
    assert driver.calls.count("nvmlDeviceGetUtilizationRates") == 3 * 7 + 1
    driver.released.set()


def test_a_gpu_that_does_not_answer_its_probe_is_not_asked_what_it_does(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    driver.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=4)
    probe = source.probe(machine)
    assert [finding.condition for finding in probe.findings[UUIDS[4]]] == ["lost"]
    assert UUIDS[4] not in probe.loads
    assert driver.calls.count("nvmlDeviceGetUtilizationRates") == 7
