"""AMD's driver as a source of GPUs.

If a GPU's files do not answer, only that GPU suffers: it is left out at start, and unhealthy later.
A read of /sys may block while the driver resets a GPU, so each GPU is read by a call that its
caller can leave behind. No method waits much longer than `driver_seconds`.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from linkwise.plugin.amd.assembling import Found, gpu_of, links_of
from linkwise.plugin.amd.device import (
    Device,
    DeviceProbe,
    device_ids,
    device_names,
    probe_device,
    read_device,
)
from linkwise.plugin.amd.kfd import KfdNode, node_names, read_nodes
from linkwise.plugin.errors import InventoryError
from linkwise.plugin.gpus.calls import Calls, NoAnswerError
from linkwise.plugin.gpus.inventory import Finding, Load, Probe, Stock, Xid, lanes_down
from linkwise.plugin.gpus.nics import NicReading, read_nics
from linkwise.plugin.gpus.sysfs import SYSFS, SysfsError, text_of
from linkwise.topology.errors import MachineError
from linkwise.topology.machine.model import MAX_GPUS, Machine, Nic

T = TypeVar("T")

_PROBE_SECONDS = 2.0  # how long a probe waits for one GPU before it asks about the next
_AFTER_HANG_SECONDS = 0.5  # once one has not answered in time; otherwise all would take minutes
_NICS_SECONDS = 5.0
_Names = tuple[frozenset[str], frozenset[str]]


class AmdInventory:
    """A read that takes longer than `driver_seconds` is a hang."""

    def __init__(self, *, sys_root: Path = SYSFS, driver_seconds: float = 20.0) -> None:
        self._root, self._seconds = sys_root, driver_seconds
        self._calls = Calls()
        self._names: _Names | None = None  # what there was at the last reading
        self._nics: Mapping[tuple[str, ...], tuple[Nic, ...]] = {}
        self._answered: set[str] = set()  # at some probe: about the others nothing good is known

    def read(self) -> Stock:
        warnings: list[str] = []
        try:
            self._names = self._ask("amdgpu", self._now)
            nodes = self._ask("KFD", partial(read_nodes, self._root, warnings.append))
            ids = self._ask("amdgpu's devices", partial(device_ids, self._root))
        except SysfsError as error:
            raise InventoryError(f"AMD's driver: {error}") from error
        except NoAnswerError as error:
            raise InventoryError(self._hangs) from error
        found, left_out = self._read_gpus(nodes, ids)
        if not found:
            told = "; ".join([*left_out.values(), *warnings])
            raise InventoryError(
                f"AMD's driver has {len(left_out)} GPUs, none usable{told and f': {told}'}"
            )
        gpus = tuple(gpu_of(each, ids, warnings.append) for each in found)
        try:
            machine = Machine(
                gpus=gpus,
                links=self._ask("links", partial(links_of, found, self._root, warnings.append)),
                nics=self._read_nics([each.bus_id for each in found], warnings),
                driver_version=self._version(),
                vendor="amd",
            )
        except NoAnswerError as error:
            raise InventoryError(self._hangs) from error
        except MachineError as error:
            raise InventoryError(f"what AMD's driver shows makes no machine: {error}") from error
        probe = self.probe(machine)
        return Stock(machine, minors={}, probe=probe, warnings=tuple(warnings), left_out=left_out)

    def _read_gpus(
        self, nodes: Collection[KfdNode], ids: Mapping[int, str]
    ) -> tuple[list[Found], dict[int, str]]:
        """The GPUs by bus id, and why others are left out, by index."""
        found: list[Found] = []
        left_out: dict[int, str] = {}
        patience = self._seconds
        in_order = sorted(nodes, key=lambda node: (node.bus_id, node.partition))
        groups = groupby(in_order, key=lambda node: node.bus_id)
        for index, (bus_id, of_gpu) in enumerate((key, tuple(group)) for key, group in groups):
            if len(found) == MAX_GPUS:
                left_out[index] = f"{bus_id}: expected at most {MAX_GPUS} GPUs on a node"
                continue
            if len(of_gpu) == 1 and ids.get(of_gpu[0].render_minor) != bus_id:
                left_out[index] = f"{bus_id}: not the device of renderD{of_gpu[0].render_minor}"
                continue
            try:
                device: Device = self._ask(
                    f"reading {bus_id}", partial(read_device, self._root, bus_id), patience
                )
                found.append(Found(index, of_gpu, device))
            except SysfsError as error:
                left_out[index] = str(error)
            except NoAnswerError:
                left_out[index] = f"{bus_id}: {self._hangs}"
                patience = min(patience, _AFTER_HANG_SECONDS)
        return found, left_out

    def probe(self, machine: Machine) -> Probe:
        probe = self._probe_all([gpu.uuid for gpu in machine.gpus])
        try:
            recount = self._ask("amdgpu", self._now, _PROBE_SECONDS) != self._names
        except (SysfsError, NoAnswerError):
            recount = False
        # Of a partition nothing is known: its GPU's load may be another one's.
        whole = {gpu.uuid for gpu in machine.gpus if gpu.parts is None}
        loads = {uuid: load for uuid, load in probe.loads.items() if uuid in whole}
        findings = dict(probe.findings)
        for uuid, finding in lanes_down(machine.gpus).items():
            findings[uuid] = (*findings.get(uuid, ()), finding)
        return Probe(findings, probe.unanswered, recount=recount, loads=loads)

    def _probe_all(self, uuids: Collection[str]) -> Probe:
        findings: dict[str, tuple[Finding, ...]] = {}
        unanswered: set[str] = set()
        loads: dict[str, Load] = {}
        patience = min(_PROBE_SECONDS, self._seconds)
        for uuid in uuids:
            ask = partial(probe_device, self._root, uuid)
            try:
                probe: DeviceProbe = self._ask(f"probing {uuid}", ask, patience)
            except NoAnswerError as error:
                patience = min(patience, _AFTER_HANG_SECONDS)
                if error.seconds >= self._seconds or uuid not in self._answered:
                    findings[uuid] = (Finding("no-answer", self._hangs),)
                else:
                    unanswered.add(uuid)
                continue
            self._answered.add(uuid)
            if probe.findings:
                findings[uuid] = probe.findings
            if probe.load is not None:
                loads[uuid] = probe.load
        return Probe(findings, frozenset(unanswered), loads=loads)

    def events(self, machine: Machine, seconds: float) -> tuple[Xid, ...] | None:  # noqa: ARG002
        return None

    def close(self) -> None:
        self._calls.close()

    @property
    def _hangs(self) -> str:
        return f"a file in {self._root} does not answer within {self._seconds:g} s"

    def _ask(self, what: str, make: Callable[[], T], seconds: float | None = None) -> T:
        """Raises NoAnswerError, and what *make* raises."""
        return self._calls.run(what, make, seconds=self._seconds if seconds is None else seconds)

    def _now(self) -> _Names:
        """The KFD nodes, the GPUs and the partitions. A change of the partitions changes them."""
        return frozenset(node_names(self._root)), device_names(self._root)

    def _read_nics(self, bus_ids: list[str], warnings: list[str]) -> tuple[Nic, ...]:
        """The network cards; those of the last reading if they do not answer."""
        seconds = min(_NICS_SECONDS, self._seconds)
        try:
            now = self._ask("NICs", partial(read_nics, bus_ids, sysfs=self._root), seconds)
        except NoAnswerError:
            hangs = f"{self._root}/class/infiniband: no answer within {seconds:g} s"
            now = NicReading(None, (hangs,))
        warnings += now.warnings
        gpus = tuple(bus_ids)
        nics = now.nics if now.nics is not None else self._nics.get(gpus, ())
        self._nics = {gpus: nics}
        return nics

    def _version(self) -> str | None:
        """That of AMD's own package of the driver; the kernel's own has none."""
        try:
            return self._ask(
                "version", partial(text_of, self._root / "module/amdgpu/version"), _PROBE_SECONDS
            )
        except (SysfsError, NoAnswerError):
            return None
