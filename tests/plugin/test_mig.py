"""MIG devices as the driver counts them."""

import pynvml
import pytest

from linkwise.plugin.nvml.mig import profile_gib
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.topology.machine.parts import MigProfile, Part
from tests.machines import HGX_H100
from tests.plugin.fake_nvml import NO_SYSFS, FakeNvml

GIB = 1 << 30


def test_a_gpu_in_mig_mode_tells_its_devices_and_the_others_are_whole() -> None:
    driver = FakeNvml(HGX_H100)
    driver.mig = {
        2: [("MIG-a", 1, 1, 9856), None, ("MIG-b", 3, 3, 40192), ("MIG-c", 4, 2, 40192), None],
        5: [None] * 7,
    }
    snapshot = NvmlInventory(driver, sys_root=NO_SYSFS).read()
    parts = {gpu.index: gpu.parts for gpu in snapshot.machine.gpus}
    assert parts[2] == (
        Part("MIG-a", mig=MigProfile("1g.10gb", 1, 9856)),
        Part("MIG-b", mig=MigProfile("3g.40gb", 3, 40192)),
        Part("MIG-c", mig=MigProfile("2c.4g.40gb", 4, 40192)),
    )
    assert parts[5] == ()
    assert [index for index, each in parts.items() if each is None] == [0, 1, 3, 4, 6, 7]
    assert snapshot.warnings == ()


def test_a_driver_that_fails_keeps_the_devices_of_the_last_reading() -> None:
    driver = FakeNvml(HGX_H100)
    driver.mig = {2: [("MIG-a", 1, 1, 9856)]}
    inventory = NvmlInventory(driver, sys_root=NO_SYSFS)
    before = inventory.read().machine.gpus[2].parts
    assert before
    driver.fail("nvmlDeviceGetMigDeviceHandleByIndex", pynvml.NVML_ERROR_UNKNOWN)
    assert inventory.read().machine.gpus[2].parts == before


@pytest.mark.parametrize(
    ("mib", "gpu_memory", "gib"),
    [  # as nvidia-smi names the profiles of these cards
        (4864, 40 * GIB - (500 << 20), 5),  # A100 40GB: 1g.5gb
        (19968, 40 * GIB - (500 << 20), 20),  # 3g.20gb
        (9728, 80 * GIB - (800 << 20), 10),  # A100 80GB: 1g.10gb
        (9856, 81559 << 20, 10),  # H100 80GB: 1g.10gb
        (80640, 81559 << 20, 80),  # 7g.80gb
        (16384, 143771 << 20, 18),  # H200: 1g.18gb
        (5000, 0, 0),
    ],
)
def test_the_memory_in_a_profiles_name(mib: int, gpu_memory: int, gib: int) -> None:
    assert profile_gib(mib, gpu_memory) == gib
