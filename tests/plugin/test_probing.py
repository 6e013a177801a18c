"""What is wrong with a GPU now: each trouble with its reason, and of no GPU but its own."""

from collections.abc import Callable

import pynvml
import pytest

from linkwise.plugin.gpus.inventory import Probe
from linkwise.plugin.nvml.fabric import health_findings
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.topology.machine.model import Machine
from tests.machines import HGX_H100
from tests.plugin.fake_nvml import NO_SYSFS, Fabric, FakeNvml

LOST = pynvml.NVML_ERROR_GPU_IS_LOST
UNKNOWN = pynvml.NVML_ERROR_UNKNOWN
BAD = HGX_H100.gpus[2].uuid


def reasons(probe: Probe) -> dict[str, list[tuple[str, str]]]:
    return {uuid: [(f.condition, f.text) for f in found] for uuid, found in probe.findings.items()}


@pytest.fixture
def driver() -> FakeNvml:
    return FakeNvml(HGX_H100)


@pytest.fixture
def source(driver: FakeNvml) -> NvmlInventory:
    return NvmlInventory(driver, sys_root=NO_SYSFS)


@pytest.fixture
def machine(source: NvmlInventory) -> Machine:
    return source.read().machine


def sram(exceeded: int) -> Callable[..., int]:
    def answer(handle: int, status: object) -> int:
        status._obj.bThresholdExceeded = exceeded if handle == 2 else 0  # type: ignore[attr-defined]
        return 0

    return answer


PROBLEMS: dict[str, tuple[Callable[[FakeNvml], object], tuple[str, str]]] = {
    "lost": (
        lambda d: d.fail("nvmlDeviceGetMemoryInfo", LOST, gpu=2),
        ("lost", "NVML: GPU is lost"),
    ),
    "gone": (
        lambda d: d.fail("nvmlDeviceGetHandleByUUID", pynvml.NVML_ERROR_NOT_FOUND, gpu=BAD),
        ("lost", "NVML: Not Found"),
    ),
    "reset": (
        lambda d: d.fail("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_RESET_REQUIRED, gpu=2),
        ("lost", "NVML: GPU requires restart"),
    ),
    "fabric is lost": (
        lambda d: d.fail("nvmlDeviceGetGpuFabricInfoV", LOST, gpu=2),
        ("lost", "NVML: GPU is lost"),
    ),
    "mig": (
        lambda d: d.faults.update(nvmlDeviceGetMigMode=lambda gpu: [int(gpu == 2), 0]),
        ("mig", "MIG mode is on"),
    ),
    "fabric": (
        lambda d: d.fabric.update({2: Fabric(state=pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS)}),
        ("fabric-down", "NVLink fabric in state 2: expected 3 (completed)"),
    ),
    "fabric-error": (
        lambda d: d.fabric.update({2: Fabric(status=UNKNOWN)}),
        ("fabric-down", "NVLink fabric completed with NVML error 999"),
    ),
    "route": (
        lambda d: d.fabric.update({2: Fabric(health=1 << 4)}),
        ("fabric-route", "NVLink fabric: route unhealthy"),
    ),
    "row remap failure": (
        lambda d: d.fields.update({(2, pynvml.NVML_FI_DEV_REMAPPED_FAILURE): 1}),
        ("row-remap-failure", "a row of its memory could not be remapped"),
    ),
    "row remap pending": (
        lambda d: d.fields.update({(2, pynvml.NVML_FI_DEV_REMAPPED_PENDING): 1}),
        ("memory-repair-pending", "its memory is repaired at the next reset of the GPU"),
    ),
    "page retirement pending": (
        lambda d: d.fields.update({(2, pynvml.NVML_FI_DEV_RETIRED_PENDING): 1}),
        ("memory-repair-pending", "its memory is repaired at the next reset of the GPU"),
    ),
    "recovery action": (
        lambda d: d.fields.update({(2, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION): 4}),
        ("recovery-action", "the driver says: drain and reset the GPU"),
    ),
    "recovery action of a newer driver": (
        lambda d: d.fields.update({(2, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION): 99}),
        ("recovery-action", "the driver says: recovery action 99"),
    ),
    "SRAM": (
        lambda d: d.faults.update(nvmlDeviceGetSramEccErrorStatus=sram(1)),
        ("sram-threshold", "too many uncorrectable errors in SRAM"),
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_gpu_that_is_not_well_is_told_with_the_reason_and_no_other_is(
    driver: FakeNvml, source: NvmlInventory, machine: Machine, name: str
) -> None:
    break_it, reason = PROBLEMS[name]
    break_it(driver)
    assert reasons(source.probe(machine)) == {BAD: [reason]}
    driver.faults.clear()
    driver.fabric.clear()
    driver.fields.clear()
    assert source.probe(machine).findings == {}


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL, ("ecc", "uncorrectable ECC errors")),
        (
            pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
            ("nvlink-errors", "NVLinks had to be recovered"),
        ),
        (
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
            ("nvlink-errors", "NVLinks had to be recovered"),
        ),
    ],
)
def test_a_counter_counts_when_it_rises_and_not_for_what_it_was(
    driver: FakeNvml, field: int, reason: tuple[str, str]
) -> None:
    driver.fields[2, field] = 7
    source = NvmlInventory(driver, sys_root=NO_SYSFS)
    snapshot = source.read()
    assert snapshot.probe.findings == {}
    driver.fields[2, field] = 9
    assert reasons(source.probe(snapshot.machine)) == {BAD: [reason]}
    assert source.probe(snapshot.machine).findings == {}
    driver.fields[2, field] = 0  # the GPU was reset
    assert source.probe(snapshot.machine).findings == {}


def test_several_troubles_of_one_gpu_are_all_told(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    driver.fields[2, pynvml.NVML_FI_DEV_REMAPPED_FAILURE] = 1
    driver.faults["nvmlDeviceGetMigMode"] = lambda gpu: [int(gpu == 2), 0]
    found = reasons(source.probe(machine))[BAD]
    assert [condition for condition, _ in found] == ["mig", "row-remap-failure"]


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetGpuFabricInfoV",
    ],
)
@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    ],
)
def test_what_a_card_or_a_driver_does_not_have_is_no_trouble(
    driver: FakeNvml, source: NvmlInventory, machine: Machine, call: str, error: int
) -> None:
    driver.fail(call, error)
    assert source.probe(machine).findings == {}


def test_whether_the_driver_says_what_a_gpu_needs_is_told_of_each(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    assert source.probe(machine).recovery_told == frozenset()
    driver.fields[5, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION] = 0
    probe = source.probe(machine)
    assert probe.recovery_told == {machine.gpus[5].uuid}
    assert probe.findings == {}


def test_a_count_that_differs_from_the_readings_asks_for_another_reading(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    assert not source.probe(machine).recount
    driver.faults["nvmlDeviceGetCount"] = lambda: 6
    assert source.probe(machine).recount
    source.read()
    assert not source.probe(machine).recount


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (0, []),  # drivers that fill none in
        (0b0110_10_10_10_10, ["incorrect configuration: incompatible GPU firmware"]),
        (0b0001_10_10_10_10, []),  # all well
        (0b0001_10_10_10_01, ["bandwidth degraded"]),
        (0b0001_10_10_01_10, ["route recovery in progress"]),
        (0b0001_10_01_10_10, ["route unhealthy"]),
        (0b0001_01_10_10_10, ["access timeout recovery in progress"]),
        (0b0010_10_10_10_10, ["incorrect configuration: system GUID"]),
        (0b0011_10_10_10_10, ["incorrect configuration: chassis serial number"]),
        (0b0100_10_10_10_10, ["incorrect configuration: no partition"]),
        (0b0101_10_10_10_10, ["incorrect configuration: too few NVLinks"]),
        (0b0111_10_10_10_10, ["incorrect configuration: invalid location"]),
        (0b1000_10_10_10_10, ["incorrect configuration: GPU state invalid"]),
        (0b1111_10_10_10_10, ["incorrect configuration: kind 15"]),
        (0b0100_10_01_10_01, ["bandwidth degraded", "route unhealthy", "no partition"]),
    ],
)
def test_the_fabrics_health_mask_in_words(mask: int, said: list[str]) -> None:
    told = [finding.text for finding in health_findings(mask)]
    assert len(told) == len(said)
    assert all(text.endswith(word) for text, word in zip(told, said, strict=True))


def test_the_names_of_nvmls_masks_are_where_we_look_for_them() -> None:
    shift = pynvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
    for value, words in (
        (pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NO_PARTITION, "no partition"),
        (
            pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_GPU_STATE_INVALID,
            "GPU state invalid",
        ),
        (
            pynvml.NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INCORRECT_SYSGUID,
            "system GUID",
        ),
    ):
        assert health_findings(value << shift)[0].text.endswith(words)
