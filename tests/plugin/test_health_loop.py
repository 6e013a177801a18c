"""The caretaker probes GPUs, reads them again and reports the result; a failure changes nothing."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread

import pytest

from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.inventory import Finding, Load, Probe, Stock, Xid
from linkwise.plugin.gpus.recorded import Played, RecordedInventory
from linkwise.plugin.health.book import DeviceBook, Devices
from linkwise.plugin.health.faults import Policy
from linkwise.plugin.health.health_loop import Caretaker, Listeners, first_reading
from linkwise.topology.machine.model import Machine
from tests.machines import DGX_1V
from tests.waiting import wait_for

UUIDS = [gpu.uuid for gpu in DGX_1V.gpus]


def found(gpu: int, text: str, condition: str = "lost") -> Probe:
    return Probe({UUIDS[gpu]: (Finding(condition, text),)})


class Source:
    """GPUs that a test changes as it goes."""

    def __init__(self) -> None:
        self.snapshot = Stock(DGX_1V)
        self.error: Exception | None = None
        self.readings = self.probes = 0
        self.xids: SimpleQueue[Xid] = SimpleQueue()
        self.hears = True
        self.closed = False

    def read(self) -> Stock:
        self.readings += 1
        if self.error is not None:
            raise self.error
        return self.snapshot

    def probe(self, machine: Machine) -> Probe:
        assert machine.gpus
        self.probes += 1
        if isinstance(self.error, ZeroDivisionError):
            raise self.error
        return self.snapshot.probe

    def events(self, machine: Machine, seconds: float) -> tuple[Xid, ...] | None:
        assert machine.gpus
        if not self.hears:
            return None
        try:
            return (self.xids.get(timeout=seconds),)
        except Empty:
            return ()

    def close(self) -> None:
        self.closed = True


class Care:
    def __init__(
        self,
        *,
        health_seconds: float,
        snapshot: Stock | None = None,
        policy: Policy | None = None,
        loads: Callable[[Mapping[str, Load]], None] = lambda _: None,
    ) -> None:
        self.source = Source()
        self.source.snapshot = snapshot or self.source.snapshot
        policy = policy or Policy(clean_probes=2, probe_seconds=0, probation_seconds=0)
        self.book = DeviceBook(self.source.snapshot, policy, now=0)
        self.told: list[Devices] = []
        self.xids: list[Xid] = []
        self.taker = Caretaker(
            self.source,
            self.book,
            self.source.snapshot,
            health_seconds=health_seconds,
            discovery_seconds=3600,
            listeners=Listeners(devices=self.told.append, xid=self.xids.append, loads=loads),
        )


@contextmanager
def started(health_seconds: float) -> Iterator[Care]:
    care = Care(health_seconds=health_seconds)
    care.taker.start()
    try:
        yield care
    finally:
        care.taker.stop()


def read_again(care: Care) -> None:
    seen = care.source.readings
    care.taker.discover()
    wait_for(lambda: care.source.readings > seen, "a reading")


@pytest.fixture
def probing() -> Iterator[Care]:
    with started(0.005) as care:
        yield care


@pytest.fixture
def resting() -> Iterator[Care]:
    """Does nothing but what it is woken for."""
    with started(3600) as care:
        yield care


def test_a_fault_and_its_end_are_told_once_each(
    probing: Care, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    probing.source.snapshot = Stock(DGX_1V, probe=found(5, "GPU is lost"))
    wait_for(lambda: len(probing.told) == 1, "the fault")
    seen = probing.source.probes
    wait_for(lambda: probing.source.probes > seen + 5, "more probes")
    probing.source.snapshot = Stock(DGX_1V)
    wait_for(lambda: len(probing.told) == 2, "the recovery")
    assert [devices.machine.gpus[5].healthy for devices in probing.told] == [False, True]
    assert caplog.text.count(f"GPU 5 ({UUIDS[5]}) is unhealthy: GPU is lost") == 1
    assert f"GPU 5 ({UUIDS[5]}) is healthy: clean again after: GPU is lost" in caplog.text


def test_what_is_not_well_at_the_start_is_said(caplog: pytest.LogCaptureFixture) -> None:
    findings = {
        **found(5, "GPU is lost").findings,
        **found(6, "worn", "memory-repair-pending").findings,
    }
    snapshot = Stock(
        DGX_1V, probe=Probe(findings), warnings=("odd",), left_out={8: "no handle or no uuid"}
    )
    Care(health_seconds=3600, snapshot=snapshot)
    assert [record.message for record in caplog.records] == [
        f"GPU 5 ({UUIDS[5]}) is unhealthy: GPU is lost",
        f"GPU 6 ({UUIDS[6]}): worn",
        "odd",
        "GPU 8 is left out: no handle or no uuid",
    ]


def test_an_xid_is_taken_in_at_once_counted_and_followed_by_a_probe(
    resting: Care, caplog: pytest.LogCaptureFixture
) -> None:
    resting.source.xids.put(Xid(UUIDS[3], 79))
    wait_for(lambda: resting.source.probes, "the probe")
    assert not resting.told[0].machine.gpus[3].healthy
    assert resting.xids == [Xid(UUIDS[3], 79)]
    assert "is unhealthy: XID 79: the GPU has fallen off the bus" in caplog.text


def test_xids_of_applications_are_counted_each_and_said_once(
    resting: Care, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(20):
        resting.source.xids.put(Xid(UUIDS[3], 31))
    wait_for(lambda: len(resting.xids) == 20, "all of them")
    resting.taker.stop()
    assert caplog.text.count("XID 31: memory page fault of an application") == 1
    assert resting.told == []
    assert resting.source.probes == 0  # they say nothing of the GPU


def test_where_no_xids_can_be_heard_probes_go_on(probing: Care) -> None:
    probing.source.hears = False
    seen = probing.source.probes
    wait_for(lambda: probing.source.probes > seen + 3, "more probes")


def test_a_flood_of_bad_xids_is_no_flood_of_probes(caplog: pytest.LogCaptureFixture) -> None:
    """The GPU is out at the first of them; the driver has enough to do."""
    care = Care(health_seconds=3600, policy=Policy())
    for _ in range(500):
        care.source.xids.put(Xid(UUIDS[3], 48))
    care.taker.start()
    wait_for(lambda: len(care.xids) == 500, "all of them")
    wait_for(lambda: care.source.probes > 0, "a probe")
    care.taker.stop()
    assert care.source.probes < 100
    assert caplog.text.count("is unhealthy") == 1


def test_a_gpu_that_comes_back_is_read_again() -> None:
    """It may have been reset: what joins it to others is what it is now."""
    with started(0.005) as care:
        care.source.snapshot = replace(care.source.snapshot, probe=found(3, "NVLink fabric"))
        wait_for(lambda: care.told and not care.told[-1].machine.gpus[3].healthy, "the GPU's end")
        assert care.source.readings == 0
        care.source.snapshot = Stock(DGX_1V)
        wait_for(lambda: care.source.readings == 1, "a reading")
        assert care.book.now.machine.gpus[3].healthy
        seen = care.source.probes
        wait_for(lambda: care.source.probes > seen + 3, "probes")
        assert care.source.readings == 1


def test_a_defect_in_hearing_xids_does_not_end_the_probes(
    probing: Care, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(probing.source, "events", fail)
    wait_for(lambda: "ZeroDivisionError" in caplog.text, "the complaint")
    seen = probing.source.probes
    wait_for(lambda: probing.source.probes > seen + 3, "probes")
    assert caplog.text.count("looking after the GPUs failed") == 1


def test_what_has_not_been_answered_ages_and_what_has_been_does_not(probing: Care) -> None:
    seen = probing.source.probes
    wait_for(lambda: probing.source.probes > seen + 3, "probes")
    probing.source.snapshot = Stock(DGX_1V, probe=Probe(unanswered=frozenset({UUIDS[0]})))
    seen = probing.source.probes
    wait_for(lambda: probing.source.probes > seen + 1, "a probe without an answer")
    age = probing.taker.probe_age_seconds
    wait_for(lambda: probing.source.probes > seen + 5, "more of them")
    assert probing.taker.probe_age_seconds > age
    probing.source.snapshot = Stock(DGX_1V, probe=found(0, "hangs", "no-answer"))
    seen = probing.source.probes
    age = probing.taker.probe_age_seconds
    wait_for(lambda: probing.source.probes > seen + 5, "a hang")
    assert probing.taker.probe_age_seconds > age
    old = probing.taker.probe_age_seconds
    probing.source.snapshot = Stock(DGX_1V, probe=found(0, "GPU is lost"))  # an answer, too
    wait_for(lambda: probing.taker.probe_age_seconds < old, "the answer")


def test_a_driver_that_counts_other_gpus_is_read_again_at_once(resting: Care) -> None:
    resting.source.snapshot = Stock(DGX_1V, probe=Probe(recount=True))
    resting.source.xids.put(Xid(UUIDS[3], 154))  # to have it probed
    wait_for(lambda: resting.source.readings, "the reading")


def test_who_stops_does_not_wait_for_a_source_that_hangs_which_is_closed_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    care = Care(health_seconds=0.005)
    hanging, released = Event(), Event()

    def hang(_: Machine) -> Probe:
        hanging.set()
        released.wait()
        return Probe()

    monkeypatch.setattr(care.source, "probe", hang)
    care.taker.start()
    assert hanging.wait(60)
    care.taker.stop()
    assert not care.source.closed
    released.set()
    wait_for(lambda: care.source.closed, "its end")


def test_on_demand_everything_is_read_again(resting: Care) -> None:
    resting.source.snapshot = Stock(replace(DGX_1V, cuda_version="13.0"))
    resting.taker.discover()
    wait_for(lambda: resting.told, "the new reading")
    assert resting.book.now.machine.cuda_version == "13.0"
    assert (resting.source.readings, resting.source.probes) == (1, 0)


def test_a_reading_that_fails_leaves_the_last_one_and_still_probes(
    resting: Care, caplog: pytest.LogCaptureFixture
) -> None:
    resting.source.error = InventoryError("nvmlDeviceGetCount: Unknown Error")
    resting.source.snapshot = Stock(DGX_1V, probe=found(0, "NVML: Unknown Error"))
    resting.taker.discover()
    wait_for(lambda: resting.told, "the probe's finding")
    assert [gpu.healthy for gpu in resting.book.now.machine.gpus] == [False] + [True] * 7
    assert "nvmlDeviceGetCount: Unknown Error; the last reading stays" in caplog.text


def test_a_reading_that_goes_on_failing_is_said_once(
    resting: Care, caplog: pytest.LogCaptureFixture
) -> None:
    resting.source.error = InventoryError("nvmlInit: Unknown Error")
    for _ in range(3):
        read_again(resting)
    assert caplog.text.count("nvmlInit: Unknown Error") == 1


def test_what_is_asked_for_while_a_reading_fails_is_read_after_it(
    resting: Care, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting.source.error = InventoryError("nvmlInit: Unknown Error")

    def probe(_machine: Machine) -> Probe:
        if resting.source.readings == 1:
            resting.taker.discover()
        return Probe()

    monkeypatch.setattr(resting.source, "probe", probe)
    resting.taker.discover()
    wait_for(lambda: resting.source.readings == 2, "the second reading")


def test_a_warning_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    known = Stock(DGX_1V, warnings=("GPU 1: known",), left_out={8: "no uuid"})
    care = Care(health_seconds=3600, snapshot=known)
    care.taker.start()
    care.source.snapshot = replace(known, warnings=("GPU 1: known", "GPU 3: odd"))
    for _ in range(3):
        read_again(care)
    care.taker.stop()
    assert caplog.text.count("GPU 3: odd") == 1
    assert caplog.text.count("GPU 1: known") == 1  # at the start
    assert caplog.text.count("GPU 8 is left out: no uuid") == 1


def test_a_gpu_put_in_place_of_another_is_not_offered_and_that_is_said(
    resting: Care, caplog: pytest.LogCaptureFixture
) -> None:
    new = replace(DGX_1V.gpus[0], uuid="GPU-new")
    resting.source.snapshot = Stock(replace(DGX_1V, gpus=(new, *DGX_1V.gpus[1:])))
    resting.taker.discover()
    wait_for(lambda: resting.told, "the new reading")
    assert [gpu.healthy for gpu in resting.book.now.machine.gpus] == [False] + [True] * 7
    assert resting.book.now.known == set(UUIDS)
    wait_for(lambda: "GPU 0 is left out: GPU-new is new" in caplog.text, "the warning")


def test_a_fault_of_ours_does_not_end_the_care(
    probing: Care, caplog: pytest.LogCaptureFixture
) -> None:
    probing.source.error = ZeroDivisionError()
    wait_for(lambda: "looking after the GPUs failed" in caplog.text, "the complaint")
    seen = probing.source.probes
    wait_for(lambda: probing.source.probes > seen + 3, "more of the same")
    assert caplog.text.count("looking after the GPUs failed") == 1
    probing.source.error = None
    probing.source.snapshot = Stock(DGX_1V, probe=found(5, "GPU is lost"))
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
    answers: list[Stock | None] = []
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
    inventory = RecordedInventory(DGX_1V, played=Played(faults=faults))
    assert inventory.read().probe.findings == {}
    faults.write_text(f'{{"2": "XID 79", "{UUIDS[4]}": "XID 48"}}')
    assert inventory.probe(DGX_1V).findings == {
        UUIDS[2]: (Finding("played", "XID 79"),),
        UUIDS[4]: (Finding("played", "XID 48"),),
    }
    faults.write_text("[]")
    (finding,) = inventory.probe(DGX_1V).findings[UUIDS[0]]
    assert "Expected `object`, got `array`; expected" in finding.text


def test_a_played_machine_does_what_its_file_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loads = tmp_path / "loads.json"
    inventory = RecordedInventory(DGX_1V, played=Played(loads=loads))
    assert inventory.probe(DGX_1V).loads == {}
    loads.write_text(f'{{"2": 0.5, "{UUIDS[4]}": 0}}')
    assert inventory.probe(DGX_1V).loads == {
        UUIDS[2]: Load(0.5, worked=True),
        UUIDS[4]: Load(0.0, worked=False),
    }
    loads.write_text('{"2": 1.5}')
    for _ in range(2):
        assert inventory.probe(DGX_1V) == Probe()
    assert (
        caplog.text.count(f'{loads}: Expected `float` <= 1.0 - at `$[...]`; expected {{"<uu') == 1
    )


def test_what_the_gpus_do_is_told_at_every_probe() -> None:
    told: list[object] = []
    care = Care(health_seconds=0.005, loads=told.append)
    care.source.snapshot = Stock(DGX_1V, probe=Probe(loads={UUIDS[0]: Load(1.0, worked=True)}))
    care.taker.start()
    wait_for(lambda: len(told) > 2, "three probes")
    care.taker.stop()
    assert told[0] == {UUIDS[0]: Load(1.0, worked=True)}


def test_a_machine_file_is_named_when_it_cannot_be_read(tmp_path: Path) -> None:
    bad = tmp_path / "bad.txt"
    bad.write_text("no table")
    with pytest.raises(InventoryError, match=r"machine file .*/bad\.txt: "):
        RecordedInventory.from_file(str(bad))
