"""Health, and the device book, from which the plugin answers everything."""

from dataclasses import replace
from pathlib import Path
from threading import Thread

from linkwise.plugin.device_plugin.cdi import Cdi, CdiMode
from linkwise.plugin.device_plugin.containers import ContainerGrant, Granting, grant
from linkwise.plugin.gpus.inventory import Finding, Probe, Stock, Xid
from linkwise.plugin.health.book import GONE, NOT_OFFERED, DeviceBook
from linkwise.plugin.health.faults import Change, Policy
from linkwise.topology.machine.model import Machine
from tests.machines import DGX_1V
from tests.plugin.grants import NO_CDI

UUIDS = [gpu.uuid for gpu in DGX_1V.gpus]
LOST = Finding("lost", "GPU is lost")
POLICY = Policy(clean_probes=2, probe_seconds=10)


def book() -> DeviceBook:
    minors = {uuid: 7 - index for index, uuid in enumerate(UUIDS)}
    return DeviceBook(Stock(DGX_1V, minors), POLICY)


def found(gpu: int, *findings: Finding) -> Probe:
    return Probe({UUIDS[gpu]: findings or (LOST,)})


def healthy(devices: DeviceBook) -> list[bool]:
    return [gpu.healthy for gpu in devices.now.machine.gpus]


def test_a_bad_probe_counts_at_once_and_only_for_its_gpu() -> None:
    devices = book()
    news = devices.probed(found(3), now=10)
    assert news.changes == (Change(UUIDS[3], False, "GPU is lost"),)
    assert healthy(devices) == [True] * 3 + [False] + [True] * 4
    assert devices.now.version == 2


def test_a_gpu_that_is_not_well_at_the_start_is_not_given_out_either() -> None:
    devices = DeviceBook(Stock(DGX_1V, probe=found(3)), POLICY)
    assert healthy(devices) == [True] * 3 + [False] + [True] * 4
    assert devices.now.healths[UUIDS[3]].reason == "GPU is lost"


def test_it_takes_clean_probes_and_time_to_come_back() -> None:
    devices = book()
    devices.probed(found(3), now=10)
    assert devices.probed(Probe(), now=20).changes == ()
    assert devices.probed(Probe(), now=30).changes == (
        Change(UUIDS[3], True, "clean again after: GPU is lost"),
    )
    assert all(healthy(devices))


def test_a_probe_that_changes_nothing_wakes_nobody() -> None:
    devices = book()
    devices.probed(found(0), now=10)
    version = devices.now.version
    assert devices.probed(found(0), now=20).changes == ()
    assert devices.now.version == version


def test_an_xid_takes_its_gpu_out_and_no_other() -> None:
    devices = book()
    xids = (Xid(UUIDS[1], 31), Xid(UUIDS[2], 79), Xid("", 79), Xid("GPU-elsewhere", 79))
    news = devices.struck(xids, now=10)
    assert news.changes == (Change(UUIDS[2], False, "XID 79: the GPU has fallen off the bus"),)
    assert news.ignored == (xids[0], *xids[2:])
    assert healthy(devices) == [True] * 2 + [False] + [True] * 5


def test_a_note_is_told_and_changes_nothing_for_the_kubelet() -> None:
    devices = book()
    news = devices.probed(found(0, Finding("memory-repair-pending", "worn")), now=10)
    assert news.notes == ((UUIDS[0], "worn"),)
    assert all(healthy(devices))
    assert devices.now.version == 1


def without(*gone: int) -> Machine:
    """The machine as the driver shows it when these GPUs are gone, its last ones."""
    left = [gpu for gpu in DGX_1V.gpus if gpu.index not in gone]
    links = [link for i, j, link in DGX_1V.pairs() if i not in gone and j not in gone]
    return Machine(gpus=tuple(left), links=tuple(links))


def test_a_gpu_gone_from_a_reading_stays_listed_and_is_unhealthy() -> None:
    devices = book()
    told = devices.discovered(Stock(without(*range(1, 8))), now=10)
    assert {change.reason for change in told.changes} == {GONE.text}
    assert healthy(devices) == [True] + [False] * 7


def test_a_gpu_that_was_listed_once_is_unhealthy_and_not_left_out_as_well() -> None:
    devices = book()
    assert not devices.incomplete
    devices.discovered(Stock(without(7), left_out={7: "lost", 8: "no uuid"}), now=10)
    assert devices.now.left_out == {8: "no uuid"}
    assert devices.incomplete
    devices.discovered(Stock(DGX_1V), now=20)
    assert not devices.incomplete


def test_of_a_gpu_that_is_gone_the_probes_reason_stays() -> None:
    """Else two reasons would take turns, with a line of log each time."""
    devices = book()
    devices.probed(found(7), now=10)
    assert devices.discovered(Stock(without(7)), now=20).changes == ()
    assert devices.now.healths[UUIDS[7]].reason == "GPU is lost"


def test_a_gpu_gone_from_the_readings_does_not_flap_though_probes_find_it_well() -> None:
    devices, now = book(), 0.0
    told: list[Change] = []
    for reading in ((6, 7), (), (6, 7), (6, 7), ()):  # 8 GPUs, 6, 8, 6, 6, 8
        now += 10
        told += devices.discovered(Stock(without(*reading)), now=now).changes
        for _ in range(30):
            now += 10
            told += devices.probed(Probe(), now=now).changes
            if reading:
                assert healthy(devices) == [True] * 6 + [False] * 2
    assert len(told) == 8  # twice gone and twice back, two GPUs


def test_a_gpu_that_is_gone_and_was_out_already_stays_out_until_a_reading_has_it() -> None:
    devices = book()
    devices.probed(found(7), now=10)
    devices.discovered(Stock(without(7)), now=20)
    for now in range(30, 500, 10):
        assert devices.probed(Probe(), now=now).changes == ()
    devices.discovered(Stock(DGX_1V), now=500)
    devices.probed(Probe(), now=510)
    assert all(healthy(devices))


def test_a_new_gpu_that_is_not_offered_has_no_health_to_tell() -> None:
    devices = book()
    new = replace(DGX_1V.gpus[0], uuid="GPU-new")
    snapshot = Stock(
        replace(DGX_1V, gpus=(new, *DGX_1V.gpus[1:])), probe=Probe({"GPU-new": (LOST,)})
    )
    news = devices.discovered(snapshot, now=10)
    assert news.changes == (Change(UUIDS[0], False, GONE.text),)
    assert set(devices.now.healths) == {UUIDS[0]}
    assert devices.now.left_out == {0: NOT_OFFERED.format("GPU-new")}  # and so it is counted


def test_a_new_reading_replaces_links_and_minors() -> None:
    devices = book()
    other = replace(DGX_1V, driver_version="560.35.03")
    assert devices.discovered(Stock(other, {UUIDS[0]: 5}), now=10).changes == ()
    assert devices.now.machine.driver_version == "560.35.03"
    assert devices.now.minors == {UUIDS[0]: 5}


def test_device_files_that_were_renumbered_are_a_change_by_themselves() -> None:
    """As after the driver was loaded again. The containers to come need the new ones."""
    devices = book()
    minors = devices.now.minors
    devices.discovered(Stock(DGX_1V, minors), now=10)
    assert devices.now.version == 1
    devices.discovered(Stock(DGX_1V, dict(zip(UUIDS, range(8), strict=True))), now=20)
    assert devices.now.version == 2


def test_when_a_gpu_is_gone_the_device_files_are_those_of_the_new_reading() -> None:
    """A driver that was loaded again without it renumbers the others."""
    devices = book()
    devices.discovered(Stock(without(7), {UUIDS[0]: 0, UUIDS[1]: 1}), now=10)
    assert devices.now.minors == {UUIDS[0]: 0, UUIDS[1]: 1}
    assert len(devices.now.machine.gpus) == 8


def test_who_waits_is_woken_by_news_and_by_having_given_up() -> None:
    devices = book()
    seen: list[int] = []
    waiting = Thread(
        target=lambda: seen.append(devices.wait_newer(1, given_up=lambda: False).version)
    )
    waiting.start()
    devices.probed(found(0), now=10)
    waiting.join(5)
    assert seen == [2]
    assert devices.wait_newer(2, given_up=lambda: True).version == 2


def test_a_container_sees_its_gpus_in_index_order() -> None:
    now = book().now
    assert grant(now, [UUIDS[2], UUIDS[0]], Granting(NO_CDI)) == ContainerGrant(
        {"NVIDIA_VISIBLE_DEVICES": f"{UUIDS[0]},{UUIDS[2]}"}
    )


def test_device_files_go_by_minor_number_not_by_index_and_only_those_that_exist_are_passed(
    tmp_path: Path,
) -> None:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia7", "unrelated"):
        (tmp_path / name).touch()
    how = Granting(NO_CDI, device_specs=True, host_dev=tmp_path)
    paths = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    gpus = ["/dev/nvidia7", "/dev/nvidia0"]
    given = grant(book().now, [UUIDS[0], UUIDS[7]], how)
    assert list(given.device_paths) == paths + gpus
    assert given.envs == {"NVIDIA_VISIBLE_DEVICES": f"{UUIDS[0]},{UUIDS[7]}"}
    (tmp_path / "nvidia-modeset").touch()  # loaded later
    given = grant(book().now, [UUIDS[0], UUIDS[7]], how)
    assert list(given.device_paths) == [*paths, "/dev/nvidia-modeset", *gpus]


def test_a_machine_that_is_played_has_no_device_files() -> None:
    played = DeviceBook(Stock(DGX_1V)).now
    assert grant(played, UUIDS[:1], Granting(NO_CDI, device_specs=True)).device_paths == ()


def test_cdi_devices_are_named_and_the_image_cannot_ask_for_all() -> None:
    given = grant(book().now, [UUIDS[4]], Granting(Cdi(CdiMode.ON), device_specs=True))
    assert given.device_paths == ()  # CDI brings them
    assert given.cdi_names == (f"nvidia.com/gpu={UUIDS[4]}",)
    assert given.envs == {"NVIDIA_VISIBLE_DEVICES": "void"}
