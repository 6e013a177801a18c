"""Health, and the book of devices that everything is answered from."""

from dataclasses import replace
from threading import Thread

import pytest

from linkwise.plugin.containers import ContainerGrant, Granting, grant
from linkwise.plugin.devices import GONE, DeviceBook
from linkwise.plugin.errors import UnknownDeviceError
from linkwise.plugin.health import Change, Fault, changes, next_faults
from linkwise.plugin.inventory import Snapshot
from linkwise.topology.model import Machine
from tests.machines import DGX_1V

UUIDS = [gpu.uuid for gpu in DGX_1V.gpus]


def book() -> DeviceBook:
    minors = {uuid: 7 - index for index, uuid in enumerate(UUIDS)}
    return DeviceBook(Snapshot(DGX_1V, minors), clean_probes_needed=2)


def healthy(devices: DeviceBook) -> list[bool]:
    return [gpu.healthy for gpu in devices.now.machine.gpus]


def test_a_bad_probe_counts_at_once_and_only_for_its_gpu() -> None:
    devices = book()
    assert devices.probed({UUIDS[3]: "GPU is lost"}) == (Change(UUIDS[3], False, "GPU is lost"),)
    assert healthy(devices) == [True] * 3 + [False] + [True] * 4
    assert devices.now.version == 2


def test_it_takes_several_clean_probes_in_a_row_to_come_back() -> None:
    faults = {"GPU-a": Fault("GPU is lost")}
    faults = next_faults(faults, {}, clean_probes_needed=3)
    faults = next_faults(faults, {}, clean_probes_needed=3)
    assert faults == {"GPU-a": Fault("GPU is lost", clean_probes=2)}
    faults = next_faults(faults, {"GPU-a": "again"}, clean_probes_needed=3)
    assert faults == {"GPU-a": Fault("again")}
    for _ in range(3):
        before, faults = faults, next_faults(faults, {}, clean_probes_needed=3)
    assert changes(before, faults) == (Change("GPU-a", True, "clean again after: again"),)


def test_a_probe_that_changes_nothing_wakes_nobody() -> None:
    devices = book()
    devices.probed({UUIDS[0]: "lost"})
    version = devices.now.version
    assert devices.probed({UUIDS[0]: "lost"}) == ()
    assert devices.now.version == version


def test_a_gpu_gone_from_a_reading_stays_listed_and_is_unhealthy() -> None:
    devices = book()
    alone = Machine(gpus=DGX_1V.gpus[:1], links=())
    told = devices.discovered(Snapshot(alone))
    assert {change.reason for change in told} == {GONE}
    assert healthy(devices) == [True] + [False] * 7


def test_of_a_gpu_that_is_gone_the_probes_reason_stays() -> None:
    """Else two reasons would take turns, with a line of log each time."""
    devices = book()
    devices.probed({UUIDS[7]: "NVML: Not Found"})
    rest = Machine(gpus=DGX_1V.gpus[:7], links=DGX_1V.links[:21])
    assert devices.discovered(Snapshot(rest)) == ()
    assert devices.now.faults[UUIDS[7]].reason == "NVML: Not Found"


def test_a_new_gpu_that_is_not_offered_has_no_health_to_tell() -> None:
    devices = book()
    new = replace(DGX_1V.gpus[0], uuid="GPU-new")
    snapshot = Snapshot(
        replace(DGX_1V, gpus=(new, *DGX_1V.gpus[1:])), problems={"GPU-new": "MIG mode is on"}
    )
    assert devices.discovered(snapshot) == (Change(UUIDS[0], False, GONE),)
    assert set(devices.now.faults) == {UUIDS[0]}


def test_a_new_reading_replaces_links_and_minors() -> None:
    devices = book()
    other = replace(DGX_1V, driver_version="560.35.03")
    assert devices.discovered(Snapshot(other, {UUIDS[0]: 5})) == ()
    assert devices.now.machine.driver_version == "560.35.03"
    assert devices.now.minors == {UUIDS[0]: 5}


def test_who_waits_is_woken_by_news_and_by_having_given_up() -> None:
    devices = book()
    seen: list[int] = []
    waiting = Thread(
        target=lambda: seen.append(devices.wait_newer(1, given_up=lambda: False).version)
    )
    waiting.start()
    devices.probed({UUIDS[0]: "lost"})
    waiting.join(5)
    assert seen == [2]
    assert devices.wait_newer(2, given_up=lambda: True).version == 2


def test_a_container_sees_its_gpus_in_index_order() -> None:
    now = book().now
    assert grant(now, [UUIDS[2], UUIDS[0]], Granting()) == ContainerGrant(
        {"NVIDIA_VISIBLE_DEVICES": f"{UUIDS[0]},{UUIDS[2]}"}
    )


def test_device_files_go_by_minor_number_not_by_index() -> None:
    paths = grant(book().now, [UUIDS[0], UUIDS[7]], Granting(device_specs=True)).device_paths
    assert paths == (
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
        "/dev/nvidia7",
        "/dev/nvidia0",
    )


def test_cdi_devices_are_named_and_the_image_cannot_ask_for_all() -> None:
    given = grant(book().now, [UUIDS[4]], Granting(cdi_kind="nvidia.com/gpu"))
    assert given.cdi_names == (f"nvidia.com/gpu={UUIDS[4]}",)
    assert given.envs == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(UnknownDeviceError, match="unknown devices GPU-x: expected some of"):
        grant(book().now, [UUIDS[0], "GPU-x"], Granting())
