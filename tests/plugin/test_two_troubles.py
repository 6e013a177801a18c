"""Two troubles at once: what is wrong with one GPU, or call, leaves the others what they are."""

from collections.abc import Callable
from types import SimpleNamespace

import pynvml
import pytest

from linkwise.plugin.gpus.inventory import Xid
from linkwise.plugin.nvml.source import NvmlInventory
from linkwise.topology.machine.model import Machine
from tests.plugin.fake_nvml import DRIVER_HANGS, NO_SYSFS, FakeNvml
from tests.waiting import wait_for

LOST = pynvml.NVML_ERROR_GPU_IS_LOST


@pytest.fixture
def machine(source: NvmlInventory) -> Machine:
    return source.read().machine


def hear(source: NvmlInventory, machine: Machine, count: int) -> list[Xid]:
    heard: list[Xid] = []

    def enough() -> bool:
        heard.extend(source.events(machine, 0.05) or ())
        return len(heard) >= count

    wait_for(enough, "XIDs")
    return heard


def test_a_library_that_is_lost_and_hangs_as_it_is_opened_again_has_not_answered(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    driver.fail("nvmlDeviceGetMemoryInfo", LOST)
    source.probe(machine)
    driver.hang("nvmlInit")
    for _ in range(2):
        findings = source.probe(machine).findings
        assert len(findings) == 8
        assert {(f.condition, f.text) for found in findings.values() for f in found} == {
            (
                "no-answer",
                f"nvmlInit: {DRIVER_HANGS}; see dmesg on the node; mostly only a reboot helps",
            )
        }


def test_a_library_that_was_opened_late_or_in_vain_is_closed_as_often(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    """The driver counts: one that stays open never sees that it was loaded again."""
    driver.hang("nvmlEventSetWait_v2")
    assert source.events(machine, 0.01) is None
    driver.fail("nvmlDeviceGetMemoryInfo", LOST)
    for _ in range(3):
        source.probe(machine)  # it cannot be closed under the call that hangs
    driver.hang("nvmlInit")
    source.probe(machine)
    driver.released.set()
    driver.faults.clear()
    wait_for(lambda: not source.probe(machine).findings, "the driver's return")
    wait_for(lambda: source.events(machine, 0.01) is not None, "the wait's return")
    source.close()
    assert driver.opened == 0


def test_xids_that_a_hanging_wait_brings_late_are_heard(
    driver: FakeNvml, source: NvmlInventory, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    driver.hang("nvmlEventSetWait_v2")
    for _ in range(3):
        assert source.events(machine, 0.01) is None
    assert caplog.text.count("the wait for XIDs does not return") == 1
    driver.xids.put((3, 79))
    driver.released.set()
    assert hear(source, machine, 1) == [Xid(machine.gpus[3].uuid, 79)]


def test_a_gpu_that_is_lost_leaves_the_others_their_xids(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    """Though the driver still knows its handle, and fails every wait that has to do with it."""
    right: Callable[[object, int], SimpleNamespace] = driver.nvmlEventSetWait_v2

    def create() -> object:
        driver.registered.clear()
        return object()

    def wait(events: object, milliseconds: int) -> SimpleNamespace:
        if 4 in driver.registered:
            raise pynvml.NVMLError(LOST)
        return right(events, milliseconds)

    assert source.events(machine, 0.01) == ()
    driver.fail("nvmlDeviceGetMemoryInfo", LOST, gpu=4)
    driver.faults["nvmlEventSetCreate"], driver.faults["nvmlEventSetWait_v2"] = create, wait
    assert source.probe(machine).findings.keys() == {machine.gpus[4].uuid}
    driver.xids.put((1, 48))
    assert hear(source, machine, 1) == [Xid(machine.gpus[1].uuid, 48)]
    del driver.faults["nvmlDeviceGetMemoryInfo"], driver.faults["nvmlEventSetWait_v2"]
    assert source.probe(machine).findings == {}
    assert source.events(machine, 0.01) == ()
    assert driver.registered == set(range(8))


def test_a_gpu_that_hangs_is_not_waited_for_where_xids_are_heard_again(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    driver.hang("nvmlDeviceGetMemoryInfo", gpu=2)
    source.probe(machine)
    driver.hang("nvmlDeviceGetHandleByUUID", gpu=machine.gpus[2].uuid)
    driver.xids.put((1, 48))
    assert hear(source, machine, 1) == [Xid(machine.gpus[1].uuid, 48)]


def test_a_gpu_whose_registration_hung_while_the_library_was_lost_is_registered_again(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    """The set of events that it was registered with is void."""
    driver.hang("nvmlDeviceRegisterEvents", gpu=2)
    assert source.events(machine, 0.01) is None
    driver.fail("nvmlDeviceGetMemoryInfo", LOST)
    source.probe(machine)
    driver.released.set()
    driver.faults.clear()
    wait_for(lambda: 2 in driver.registered, "the registration's return")
    driver.registered.clear()
    source.probe(machine)
    wait_for(lambda: source.events(machine, 0.01) is not None, "XIDs")
    assert driver.registered == set(range(8))


def test_xids_without_end_are_heard_some_at_a_time(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    def flood(_events: object, _milliseconds: int) -> SimpleNamespace:
        if driver.released.is_set():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(
            device=3, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=31
        )

    driver.faults["nvmlEventSetWait_v2"] = flood
    heard = source.events(machine, 0.05)
    assert heard is not None
    assert {*heard} == {Xid(machine.gpus[3].uuid, 31)}


@pytest.mark.parametrize(
    "error",
    [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_CORRUPTED_INFOROM],
)
@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetSramEccErrorStatus",
    ],
)
def test_a_question_that_is_refused_does_not_make_a_gpu_lost(
    driver: FakeNvml, machine: Machine, call: str, error: int
) -> None:
    driver.fail(call, error, gpu=2)
    # Nothing hangs here, and a busy machine may take longer than the second of other tests.
    source = NvmlInventory(driver, sys_root=NO_SYSFS, driver_seconds=3600)
    assert source.probe(machine).findings == {}


def test_a_name_that_is_no_text_costs_its_own_gpu_only(
    driver: FakeNvml, source: NvmlInventory
) -> None:
    driver.faults["nvmlDeviceGetName"] = lambda gpu: b"\xff".decode() if gpu == 5 else "H100"
    snapshot = source.read()
    assert [gpu.index for gpu in snapshot.machine.gpus] == [0, 1, 2, 3, 4, 6, 7]
    assert "can't decode" in snapshot.left_out[5]


def test_a_gpu_that_has_never_answered_a_probe_is_not_offered_on_trust(
    driver: FakeNvml, machine: Machine
) -> None:
    fresh = NvmlInventory(driver, sys_root=NO_SYSFS, driver_seconds=3600)
    driver.hang("nvmlDeviceGetFieldValues", gpu=2)
    snapshot = fresh.read()
    (finding,) = snapshot.probe.findings[machine.gpus[2].uuid]
    assert (finding.condition, finding.text) == ("no-answer", "the driver has not answered yet")
    assert len(snapshot.probe.findings) == 1
    driver.released.set()
    wait_for(lambda: not fresh.probe(snapshot.machine).findings, "its answer")


def test_nvlinks_that_the_driver_does_without_for_a_while_are_down_and_not_forgotten(
    driver: FakeNvml, source: NvmlInventory, machine: Machine
) -> None:
    uuid = machine.gpus[2].uuid
    driver.fail("nvmlDeviceGetNvLinkState", pynvml.NVML_ERROR_NOT_SUPPORTED, gpu=2)
    (finding,) = source.read().probe.findings[uuid]
    assert (finding.condition, finding.text) == ("nvlink-down", "0 of 18 NVLinks are up")
    driver.faults.clear()
    again = source.read()
    assert again.machine == machine
    assert again.probe.findings == {}


def test_nvlinks_are_looked_for_again_when_the_driver_has_been_loaded_again(
    driver: FakeNvml, source: NvmlInventory
) -> None:
    driver.fail("nvmlDeviceGetNvLinkState", pynvml.NVML_ERROR_NOT_SUPPORTED)
    bare = source.read().machine
    assert bare.link(0, 1).nvlinks == 0
    driver.faults.clear()
    driver.fail("nvmlDeviceGetMemoryInfo", LOST)
    source.probe(bare)
    driver.faults.clear()
    assert source.probe(bare).recount
    assert source.read().machine.link(0, 1).nvlinks == 18
