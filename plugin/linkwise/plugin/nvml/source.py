"""The source of GPUs that asks NVIDIA's driver, and remembers its answers.

If a GPU does not answer, only that GPU suffers: it is left out at start, and unhealthy later. No
method waits for the driver much longer than `driver_seconds`.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import pynvml

from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus import sysfs
from linkwise.plugin.gpus.calls import NoAnswerError
from linkwise.plugin.gpus.inventory import Finding, Probe, Stock, Xid
from linkwise.plugin.gpus.nics import NicReading, read_nics
from linkwise.plugin.nvml.assembling import wire
from linkwise.plugin.nvml.driver import Driver, HangsError
from linkwise.plugin.nvml.events import EventSet
from linkwise.plugin.nvml.library import Nvml, sysfs_bus_id
from linkwise.plugin.nvml.loads import Loads
from linkwise.plugin.nvml.nvlinks import NO_NVLINKS
from linkwise.plugin.nvml.probing import GpuProbe, probe_gpu
from linkwise.plugin.nvml.questions import Questions
from linkwise.plugin.nvml.reading import (
    BUS_ID,
    MINOR,
    GpuReading,
    LeftOutError,
    Pairs,
    read_gpu,
    read_pairs,
)
from linkwise.topology.errors import MachineError
from linkwise.topology.machine.model import Machine, Nic

T = TypeVar("T")

_DRIVER = ""  # instead of a uuid: the key of the driver's own answers
_DEAD = frozenset({"lost", "no-answer", "recovery-action", "mig"})
"""Conditions under which a GPU's links, and those to it, say nothing about its neighbours."""
_PROBE_SECONDS = 2.0  # how long a probe waits for one GPU before it asks about the next
# How long to wait once a GPU has not answered in time; otherwise all of them would take minutes.
_PROBE_AFTER_HANG_SECONDS, _READ_AFTER_HANG_SECONDS = 0.5, 5.0
_NICS_SECONDS = 5.0


class NvmlInventory:
    """A call that takes longer than `driver_seconds` is a hang. If `minors_needed`, a GPU whose
    device file is unknown must not be given out."""

    def __init__(
        self,
        nvml: Nvml | None = None,
        *,
        sys_root: Path = sysfs.SYSFS,
        driver_seconds: float = 20.0,
        minors_needed: bool = False,
    ) -> None:
        self._nvml = nvml if nvml is not None else cast("Nvml", pynvml)
        self._driver = Driver(self._nvml, seconds=driver_seconds)
        self._events = EventSet(self._nvml)
        self._loads = Loads(self._nvml, self._driver)
        self._sys_root, self._minors_needed = sys_root, minors_needed
        self._known: dict[str, Mapping[str, Any]] = {}  # answers, by uuid and then by call
        self._pairs = Pairs()
        self._nics: Mapping[tuple[str, ...], tuple[Nic, ...]] = {}
        self._counted: int | None = None  # at the last reading
        self._of_reading: dict[str, tuple[Finding, ...]] = {}  # valid until the next reading
        self._links: dict[str, tuple[int, ...]] = {}  # numbers of NVLinks that are up
        self._counters: dict[str, Mapping[int, int]] = {}
        self._answering: frozenset[str] = frozenset()  # at the last probe
        self._answered: set[str] = set()  # at some probe: about the others nothing good is known

    def read(self) -> Stock:
        self._driver.open()
        try:
            return self._read()
        except InventoryError:
            self._restart()
            raise

    def probe(self, machine: Machine) -> Probe:
        uuids = [gpu.uuid for gpu in machine.gpus]
        # A driver that was away may number its devices otherwise: ask for a new reading.
        recount = not self._driver.is_open
        try:
            self._driver.open()
        except InventoryError as error:
            condition = "no-answer" if isinstance(error, HangsError) else "lost"
            return Probe(dict.fromkeys(uuids, (Finding(condition, str(error)),)))
        recount = self._count_differs() or recount
        probe = self._probe_all(uuids)
        if all(_has(probe, uuid, {"lost"}) for uuid in uuids):  # it may be the library
            self._restart()
        findings = self._with_reading(probe.findings)
        loads = self._loads.read(self._answering) if self._driver.is_open else {}
        return Probe(findings, probe.unanswered, probe.recovery_told, recount, loads)

    def events(self, machine: Machine, seconds: float) -> tuple[Xid, ...] | None:
        if not self._driver.is_open:
            return None
        # Leave out GPUs that are lost or hang: they would block the events of the others.
        uuids = [gpu.uuid for gpu in machine.gpus if gpu.uuid in self._answering]

        def wait() -> bool:
            able = self._events.register(uuids)
            if able:
                self._events.wait(round(seconds * 1000))
            return able

        try:
            able = self._driver.run("XIDs", wait, seconds=seconds + _PROBE_SECONDS)
        except NoAnswerError:
            self._events.hangs()
            able = False
        except pynvml.NVMLError:
            able = False
        heard = self._events.take()
        return heard if able or heard else None

    def close(self) -> None:
        self._restart()
        self._driver.end()

    def _restart(self) -> None:
        """Close the library. Its answers about device files and events are then void, and so is the
        answer that a GPU has no NVLinks: a driver that is loaded again may say otherwise."""
        self._driver.close()
        self._events.forget()
        self._counters.clear()
        for uuid, answers in self._known.items():
            void = (MINOR, NO_NVLINKS)
            self._known[uuid] = {call: told for call, told in answers.items() if call not in void}

    def _read(self) -> Stock:
        count = self._driver.required("nvmlDeviceGetCount", self._nvml.nvmlDeviceGetCount)
        found: list[GpuReading] = []
        left_out: dict[int, str] = {}
        patience = self._driver.seconds
        for index in range(count):
            try:
                found.append(self._read_gpu(index, patience))
            except NoAnswerError:
                left_out[index] = self._driver.hangs
                patience = min(patience, _READ_AFTER_HANG_SECONDS)
            except (LeftOutError, UnicodeDecodeError) as why:  # a dying GPU's name is no text
                left_out[index] = str(why)
        if not found:
            told = "".join(f"; GPU {index}: {why}" for index, why in left_out.items())
            raise InventoryError(f"the driver reports {count} GPUs, none usable{told}")
        self._counted = count
        for reading in found:
            self._known[reading.gpu.uuid] = reading.answers
        return self._snapshot(found, left_out)

    def _read_gpu(self, index: int, seconds: float) -> GpuReading:
        """Raises LeftOutError, NoAnswerError."""
        ask = partial(read_gpu, self._nvml, index, dict(self._known), sys_root=self._sys_root)
        return self._driver.run(f"reading GPU {index}", ask, seconds=seconds)

    def _snapshot(self, found: list[GpuReading], left_out: Mapping[int, str]) -> Stock:
        uuids = [reading.gpu.uuid for reading in found]
        self._links = {r.gpu.uuid: tuple(link.number for link in r.nvlinks.up) for r in found}
        probe = self._probe_all(uuids)
        dead = probe.unanswered | {uuid for uuid in uuids if _has(probe, uuid, _DEAD)}
        far = self._read_pairs(found, dead)
        nics, of_nics = self._read_nics(found)
        wired = wire(
            found,
            self._pairs,
            dead=dead,
            absent=self._absent(uuids),
            sys_root=self._sys_root,
        )
        try:
            machine = Machine(
                gpus=tuple(reading.gpu for reading in found),
                links=wired.links,
                nics=nics,
                clique=wired.clique,
                driver_version=self._read_version(
                    "nvmlSystemGetDriverVersion", self._nvml.nvmlSystemGetDriverVersion
                ),
                cuda_version=self._read_cuda_version(),
            )
        except MachineError as error:
            raise InventoryError(f"what the driver says makes no machine: {error}") from error
        self._of_reading = dict(wired.down)
        minors = _minors(found)
        for reading in found:
            if self._minors_needed and reading.gpu.uuid not in minors:
                self._of_reading[reading.gpu.uuid] = (
                    *self._of_reading.get(reading.gpu.uuid, ()),
                    Finding("no-device-file", f"{MINOR}: its /dev/nvidiaN is not known"),
                )
        findings = self._with_reading(probe.findings)
        if all(_has(probe, uuid, {"lost"}) for uuid in uuids):  # it may be the library
            self._restart()
        troubles = (
            f"GPU {reading.gpu.index}: {reading.trouble}"
            for reading in found
            if reading.trouble and reading.gpu.uuid not in dead  # the probe reports those
        )
        return Stock(
            machine=machine,
            minors=minors,
            probe=Probe(findings, probe.unanswered, probe.recovery_told),
            warnings=(*troubles, *far, *wired.warnings, *of_nics),
            left_out=left_out,
        )

    def _probe_all(self, uuids: Collection[str]) -> Probe:
        findings: dict[str, tuple[Finding, ...]] = {}
        unanswered: set[str] = set()
        told: set[str] = set()
        answering: set[str] = set()
        patience = min(_PROBE_SECONDS, self._driver.seconds)
        for uuid in uuids:
            try:
                probe = self._probe(uuid, patience)
            except NoAnswerError as error:
                patience = min(patience, _PROBE_AFTER_HANG_SECONDS)
                hangs = error.seconds >= self._driver.seconds
                if hangs or uuid not in self._answered:
                    text = self._driver.hangs if hangs else "the driver has not answered yet"
                    findings[uuid] = (Finding("no-answer", text),)
                else:
                    unanswered.add(uuid)
                continue
            except pynvml.NVMLError as error:
                findings[uuid] = (Finding("lost", f"NVML: {error}"),)
                self._events.silent(uuid)
                continue
            self._counters[uuid] = probe.counters
            if probe.findings:
                findings[uuid] = probe.findings
            if probe.recovery_told:
                told.add(uuid)
            answering.add(uuid)
        self._answering = frozenset(answering)
        self._answered |= answering
        return Probe(findings, frozenset(unanswered), frozenset(told))

    def _probe(self, uuid: str, seconds: float) -> GpuProbe:
        """Raises NVMLError, NoAnswerError."""
        ask = partial(
            probe_gpu,
            self._nvml,
            uuid,
            self._counters.get(uuid, {}),
            nvlinks=self._links.get(uuid, ()),
        )
        return self._driver.run(f"probing {uuid}", ask, seconds=seconds)

    def _with_reading(
        self, findings: Mapping[str, tuple[Finding, ...]]
    ) -> dict[str, tuple[Finding, ...]]:
        """Add what the last reading found, except for GPUs that do not answer."""
        merged = dict(findings)
        for uuid, of_reading in self._of_reading.items():
            now = findings.get(uuid, ())
            if not any(finding.condition in ("lost", "no-answer") for finding in now):
                merged[uuid] = (*now, *of_reading)
        return merged

    def _count_differs(self) -> bool:
        try:
            count = self._driver.run(
                "nvmlDeviceGetCount", self._nvml.nvmlDeviceGetCount, seconds=_PROBE_SECONDS
            )
        except (NoAnswerError, pynvml.NVMLError):
            return False
        return self._counted is not None and count != self._counted

    def _absent(self, found: Collection[str]) -> frozenset[str]:
        """The bus ids of GPUs that an earlier reading had, and this one lacks."""
        return frozenset(
            sysfs_bus_id(answers[BUS_ID])
            for uuid, answers in self._known.items()
            if uuid not in found and BUS_ID in answers
        )

    def _read_pairs(self, found: list[GpuReading], dead: frozenset[str]) -> tuple[str, ...]:
        ask = partial(read_pairs, self._nvml, self._pairs, found, dead)
        try:
            self._pairs, warnings = self._driver.run("distances", ask)
        except NoAnswerError:
            return (f"distances between GPUs: {self._driver.hangs}",)
        return warnings

    def _read_nics(self, found: list[GpuReading]) -> tuple[tuple[Nic, ...], tuple[str, ...]]:
        """The network cards, and warnings. The cards are those of the last reading if a GPU has
        fallen off the bus, and so out of /sys, or if a card does not answer: the kernel asks the
        card itself for the state of its ports."""
        uuids = tuple(reading.gpu.uuid for reading in found)
        ask = partial(read_nics, [r.gpu.pci_bus_id for r in found], sysfs=self._sys_root)
        seconds = min(_NICS_SECONDS, self._driver.seconds)
        try:
            now = self._driver.run("network cards", ask, seconds=seconds)
        except NoAnswerError:
            hangs = f"{self._sys_root}/class/infiniband: no answer within {seconds:g} s"
            now = NicReading(None, (hangs,))
        nics = now.nics if now.nics is not None else self._nics.get(uuids, ())
        self._nics = {uuids: nics}
        return nics, now.warnings

    def _read_version(self, call: str, ask: Callable[[], T]) -> T | None:
        asks = Questions(self._known.get(_DRIVER))
        try:
            answer = self._driver.run(call, lambda: asks.ask(call, ask))
        except NoAnswerError:
            answer = asks.known(call)
        self._known[_DRIVER] = {**self._known.get(_DRIVER, {}), **asks.answers}
        return answer

    def _read_cuda_version(self) -> str | None:
        number = self._read_version(  # 12040 is 12.4
            "nvmlSystemGetCudaDriverVersion_v2", self._nvml.nvmlSystemGetCudaDriverVersion_v2
        )
        return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _has(probe: Probe, uuid: str, conditions: Collection[str]) -> bool:
    return any(finding.condition in conditions for finding in probe.findings.get(uuid, ()))


def _minors(found: Collection[GpuReading]) -> dict[str, int]:
    """The minor numbers that no other GPU claims; otherwise one would get the other's device file.
    If a GPU in trouble claims the same as another, the other is right: the answer of the GPU in
    trouble may be old."""
    claims = {r.gpu.uuid: r.minor for r in found if r.minor is not None}
    sure = [r.minor for r in found if r.minor is not None and not r.trouble]
    return {
        reading.gpu.uuid: minor
        for reading in found
        if (minor := claims.get(reading.gpu.uuid)) is not None
        and sure.count(minor) == (0 if reading.trouble else 1)
    }
