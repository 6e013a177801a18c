"""GPUs are probed and read anew; what comes of it is told, and what fails changes nothing."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from linkwise.plugin.caretaker import Caretaker, first_reading
from linkwise.plugin.devices import DeviceBook, Devices
from linkwise.plugin.errors import InventoryError
from linkwise.plugin.inventory import Snapshot
from linkwise.plugin.recorded import RecordedInventory
from linkwise.topology.model import Machine
from tests.machines import DGX_1V
from tests.waiting import wait_for

UUIDS = [gpu.uuid for gpu in DGX_1V.gpus]


class Source:
    """GPUs that a test changes as it goes."""

    def __init__(self) -> None:
        self.snapshot = Snapshot(DGX_1V)
        self.error: Exception | None = None
        self.readings = self.probes = 0

    def read(self) -> Snapshot:
        self.readings += 1
        if self.error is not None:
            raise self.error
        return self.snapshot

    def probe(self, machine: Machine) -> Mapping[str, str]:
        assert machine.gpus
        self.probes += 1
        if isinstance(self.error, ZeroDivisionError):
            raise self.error
        return self.snapshot.problems

    def close(self) -> None: ...


class Care:
    def __init__(self, *, health_seconds: float) -> None:
        self.source = Source()
        self.book = DeviceBook(self.source.snapshot, clean_probes_needed=2)
        self.told: list[Devices] = []
        self.taker = Caretaker(
            self.source,
            self.book,
            health_seconds=health_seconds,
            discovery_seconds=3600,
            on_devices=self.told.append,
            warned=("GPU 1: known",),
        )
        self.taker.start()


@pytest.fixture
def probing() -> Iterator[Care]:
    care = Care(health_seconds=0.005)
    yield care
    care.taker.stop()


@pytest.fixture
def resting() -> Iterator[Care]:
    """Does nothing but what it is woken for."""
    care = Care(health_seconds=3600)
    yield care
    care.taker.stop()


def test_a_fault_and_its_end_are_told_once_each(
    probing: Care, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    probing.source.snapshot = Snapshot(DGX_1V, problems={UUIDS[5]: "GPU is lost"})
    wait_for(lambda: len(probing.told) == 1, "the fault")
    seen = probing.source.probes
    wait_for(lambda: probing.source.probes > seen + 5, "more probes")
    probing.source.snapshot = Snapshot(DGX_1V)
    wait_for(lambda: len(probing.told) == 2, "the recovery")
    assert [len(devices.faults) for devices in probing.told] == [1, 0]
    assert f"GPU 5 ({UUIDS[5]}) is unhealthy: GPU is lost" in caplog.text
    assert f"GPU 5 ({UUIDS[5]}) is healthy: clean again after: GPU is lost" in caplog.text


def test_on_demand_everything_is_read_anew(resting: Care) -> None:
    resting.source.snapshot = Snapshot(replace(DGX_1V, cuda_version="13.0"))
    resting.taker.discover()
    wait_for(lambda: resting.told, "the new reading")
    assert resting.book.now.machine.cuda_version == "13.0"
    assert (resting.source.readings, resting.source.probes) == (1, 0)


def test_a_reading_that_fails_leaves_the_last_one_and_still_probes(
    resting: Care, caplog: pytest.LogCaptureFixture
) -> None:
    resting.source.error = InventoryError("nvmlDeviceGetCount, the driver: Unknown Error")
    resting.source.snapshot = Snapshot(DGX_1V, problems={UUIDS[0]: "NVML: Unknown Error"})
    resting.taker.discover()
    wait_for(lambda: resting.told, "the probe's finding")
    assert [gpu.healthy for gpu in resting.book.now.machine.gpus] == [False] + [True] * 7
    assert "nvmlDeviceGetCount, the driver: Unknown Error; the last reading stays" in caplog.text


def test_a_warning_is_said_once(resting: Care, caplog: pytest.LogCaptureFixture) -> None:
    resting.source.snapshot = Snapshot(DGX_1V, warnings=("GPU 1: known", "GPU 3: odd"))
    resting.taker.discover()
    wait_for(lambda: resting.source.readings == 1, "the first reading")
    resting.taker.discover()
    wait_for(lambda: resting.source.readings == 2, "the second reading")
    resting.taker.stop()
    assert caplog.text.count("GPU 3: odd") == 1
    assert "GPU 1: known" not in caplog.text  # said at the start


def test_a_gpu_put_in_place_of_another_is_not_offered_and_that_is_said(
    resting: Care, caplog: pytest.LogCaptureFixture
) -> None:
    new = replace(DGX_1V.gpus[0], uuid="GPU-new")
    resting.source.snapshot = Snapshot(replace(DGX_1V, gpus=(new, *DGX_1V.gpus[1:])))
    resting.taker.discover()
    wait_for(lambda: resting.told, "the new reading")
    assert [gpu.healthy for gpu in resting.book.now.machine.gpus] == [False] + [True] * 7
    assert resting.book.now.known == set(UUIDS)
    wait_for(lambda: "GPU GPU-new is new" in caplog.text, "the warning")


def test_a_fault_of_ours_does_not_end_the_care(
    probing: Care, caplog: pytest.LogCaptureFixture
) -> None:
    probing.source.error = ZeroDivisionError()
    wait_for(lambda: "looking after the GPUs failed" in caplog.text, "the complaint")
    probing.source.error = None
    probing.source.snapshot = Snapshot(DGX_1V, problems={UUIDS[5]: "GPU is lost"})
    wait_for(lambda: probing.told, "the next finding")


def test_gpus_that_come_later_are_waited_for_and_the_reason_told() -> None:
    source, reasons = Source(), []
    source.error = InventoryError("nvmlInit: NVML Shared Library Not Found")

    def told(reason: str) -> None:
        reasons.append(reason)
        source.error = None

    found = first_reading(source, stopping=Event(), on_waiting=told)
    assert found == source.snapshot
    assert reasons == ["nvmlInit: NVML Shared Library Not Found"]


def test_waiting_for_gpus_ends_when_told_to_stop() -> None:
    source, stopping = Source(), Event()
    source.error = InventoryError("none")
    answers: list[Snapshot | None] = []
    waiting = Thread(
        target=lambda: answers.append(
            first_reading(source, stopping=stopping, on_waiting=lambda _: None)
        )
    )
    waiting.start()
    wait_for(lambda: source.readings, "the first reading")
    stopping.set()
    waiting.join(10)
    assert answers == [None]


def test_a_played_machine_fails_as_its_file_says(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    inventory = RecordedInventory(DGX_1V, faults=faults)
    assert inventory.read().problems == {}
    faults.write_text(f'{{"2": "XID 79", "{UUIDS[4]}": "XID 48"}}')
    assert inventory.probe(DGX_1V) == {UUIDS[2]: "XID 79", UUIDS[4]: "XID 48"}
    faults.write_text("[]")
    assert "Expected `object`, got `array`; expected" in inventory.probe(DGX_1V)[UUIDS[0]]


def test_a_machine_file_is_named_when_it_cannot_be_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("no table")
    with pytest.raises(InventoryError, match=r"machine file .*/bad\.txt: "):
        RecordedInventory.from_file(str(bad))
