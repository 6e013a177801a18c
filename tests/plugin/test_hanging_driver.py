"""A call that does not return costs its caller a bounded wait, and only its own GPU its health."""

import threading
from contextlib import closing
from threading import Event

import pynvml
import pytest

from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.calls import Calls, NoAnswerError
from linkwise.plugin.nvml.source import NvmlInventory
from tests.machines import PCIE_8
from tests.plugin.fake_nvml import DRIVER_HANGS, NO_SYSFS, FakeNvml
from tests.waiting import wait_for


def test_a_call_gives_its_answer_or_its_error() -> None:
    with closing(Calls()) as calls:
        assert calls.run("sum", lambda: 1 + 1, seconds=60) == 2
        with pytest.raises(ZeroDivisionError):
            calls.run("quotient", lambda: 1 // 0, seconds=60)
        assert calls.run("sum", lambda: 2 + 2, seconds=60) == 4


def test_a_call_that_does_not_return_is_left_behind_and_not_made_again(released: Event) -> None:
    made: list[int] = []

    def hang() -> str:
        made.append(1)
        released.wait()
        return "late"

    with closing(Calls()) as calls:
        for _ in range(3):
            with pytest.raises(NoAnswerError, match="slow: no answer for") as caught:
                calls.run("slow", hang, seconds=0.02)
        assert caught.value.seconds >= 0.02
        assert made == [1]
        assert calls.run("quick", lambda: "at once", seconds=60) == "at once"
        assert calls.stuck
        released.set()
        wait_for(lambda: not calls.stuck, "its return")
        assert calls.run("slow", lambda: "new", seconds=60) == "new"  # not the late one


def test_threads_that_are_left_behind_end_when_their_call_does(released: Event) -> None:
    before = set(threading.enumerate())
    calls = Calls()
    for number in range(5):
        with pytest.raises(NoAnswerError):
            calls.run(f"call {number}", released.wait, seconds=0.01)
    ours = set(threading.enumerate()) - before
    assert len(ours) == 5
    released.set()
    calls.close()
    wait_for(lambda: not any(thread.is_alive() for thread in ours), "their end")


def test_a_gpu_that_hangs_is_unhealthy_and_the_others_are_probed(
    driver: FakeNvml, source: NvmlInventory
) -> None:
    machine = source.read().machine
    bad, other = machine.gpus[2].uuid, machine.gpus[6].uuid
    driver.hang("nvmlDeviceGetMemoryInfo", gpu=2)
    wait_for(lambda: source.probe(machine).findings, "the finding")
    (finding,) = source.probe(machine).findings[bad]
    assert (finding.condition, finding.text) == ("no-answer", DRIVER_HANGS)
    driver.faults["nvmlDeviceGetMigMode"] = lambda gpu: [int(gpu == 6), 0]
    assert set(source.probe(machine).findings) == {bad, other}
    driver.released.set()
    driver.faults.clear()
    wait_for(lambda: not source.probe(machine).findings, "its return")


def test_until_it_is_a_hang_nothing_is_known_of_the_gpu(driver: FakeNvml) -> None:
    source = NvmlInventory(driver, sys_root=NO_SYSFS, driver_seconds=3600)
    machine = source.read().machine
    driver.hang("nvmlDeviceGetMemoryInfo", gpu=2)
    probe = source.probe(machine)
    assert probe.findings == {}
    assert probe.unanswered == {machine.gpus[2].uuid}


def test_a_gpu_that_hangs_at_the_start_is_left_out_and_the_others_are_read(
    driver: FakeNvml, source: NvmlInventory
) -> None:
    driver.hang("nvmlDeviceGetNvLinkState", gpu=2)
    snapshot = source.read()
    assert snapshot.left_out == {2: DRIVER_HANGS}
    assert [gpu.index for gpu in snapshot.machine.gpus] == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_a_driver_that_hangs_altogether_is_an_error_that_says_so(
    driver: FakeNvml, source: NvmlInventory, call: str
) -> None:
    driver.hang(call)
    with pytest.raises(InventoryError, match=DRIVER_HANGS):
        source.read()
    with pytest.raises(InventoryError, match=DRIVER_HANGS):  # and is not waited for twice
        source.read()


def test_while_distances_and_versions_hang_the_last_ones_stay(
    driver: FakeNvml, source: NvmlInventory
) -> None:
    before = source.read().machine
    driver.hang("nvmlDeviceGetTopologyCommonAncestor")
    driver.hang("nvmlSystemGetDriverVersion")
    after = source.read()
    assert after.machine == before
    assert after.warnings == (f"distances between GPUs: {DRIVER_HANGS}",)


def test_a_library_is_not_closed_under_a_call_that_runs(
    driver: FakeNvml, source: NvmlInventory
) -> None:
    machine = source.read().machine
    driver.hang("nvmlDeviceGetMemoryInfo", gpu=2)
    source.probe(machine)
    source.close()
    assert "nvmlShutdown" not in driver.calls


def test_a_driver_that_hangs_as_it_is_closed_does_not_keep_us(
    driver: FakeNvml, source: NvmlInventory, caplog: pytest.LogCaptureFixture
) -> None:
    source.read()
    driver.hang("nvmlShutdown")
    source.close()
    assert "nvmlShutdown" in caplog.text


def test_xids_are_heard_of_each_gpu_by_its_own(driver: FakeNvml, source: NvmlInventory) -> None:
    machine = source.read().machine
    assert source.events(machine, 0.01) == ()
    assert driver.registered == set(range(8))
    for handle, number in ((3, 79), (5, 31), (3, 154)):
        driver.xids.put((handle, number))
    heard = source.events(machine, 60)
    assert heard is not None
    assert [(xid.uuid, xid.number) for xid in heard] == [
        (machine.gpus[3].uuid, 79),
        (machine.gpus[5].uuid, 31),
        (machine.gpus[3].uuid, 154),
    ]


def test_an_xid_of_a_gpu_that_cannot_be_told_is_of_none(
    driver: FakeNvml, source: NvmlInventory
) -> None:
    machine = source.read().machine
    source.events(machine, 0.01)
    driver.fail("nvmlDeviceGetUUID", pynvml.NVML_ERROR_GPU_IS_LOST)
    driver.xids.put((99, 79))
    heard = source.events(machine, 60)
    assert heard is not None
    assert [xid.uuid for xid in heard] == [""]


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN])
@pytest.mark.parametrize(
    "call",
    ["nvmlEventSetCreate", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"],
)
def test_where_no_xids_can_be_heard_nothing_is_waited_for_and_nobody_is_blamed(
    driver: FakeNvml, source: NvmlInventory, call: str, error: int
) -> None:
    machine = source.read().machine
    driver.fail(call, error)
    assert source.events(machine, 60) is None
    assert source.probe(machine).findings == {}


def test_a_wait_that_fails_is_said_once_marks_nobody_and_begins_again(
    driver: FakeNvml, source: NvmlInventory, caplog: pytest.LogCaptureFixture
) -> None:
    machine = source.read().machine
    source.events(machine, 0.01)
    driver.fail("nvmlEventSetWait_v2", pynvml.NVML_ERROR_GPU_IS_LOST)
    for _ in range(3):
        assert source.events(machine, 60) is None
    assert source.probe(machine).findings == {}
    assert caplog.text.count("nvmlEventSetWait: GPU is lost") == 1
    driver.faults.clear()
    driver.xids.put((1, 48))
    heard = source.events(machine, 60)
    assert heard is not None
    assert [xid.number for xid in heard] == [48]


def test_a_wait_that_hangs_keeps_nobody(driver: FakeNvml, source: NvmlInventory) -> None:
    machine = source.read().machine
    driver.hang("nvmlEventSetWait_v2")
    for _ in range(2):
        assert source.events(machine, 0.01) is None
    assert source.probe(machine).findings == {}


def test_a_gpu_that_answers_again_is_registered_again(
    driver: FakeNvml, source: NvmlInventory
) -> None:
    machine = source.read().machine
    source.events(machine, 0.01)
    driver.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_GPU_IS_LOST, gpu=4)
    source.probe(machine)
    driver.registered.clear()
    driver.faults.clear()
    source.probe(machine)
    source.events(machine, 0.01)
    assert driver.registered == {4}


def test_a_machine_without_a_driver_has_no_xids() -> None:
    driver = FakeNvml(PCIE_8)
    assert NvmlInventory(driver, sys_root=NO_SYSFS).events(PCIE_8, 60) is None
