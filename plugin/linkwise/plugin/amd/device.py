"""What /sys shows of one GPU, and the state of the GPU now.

Sources: the kernel, drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c (`ras/*_err_count`) and
drivers/gpu/drm/amd/pm/amdgpu_pm.c: during a reset the first says that it cannot be asked, and the
second refuses with EBUSY, before 2025 with EPERM.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from linkwise.plugin.gpus.inventory import Finding, Load
from linkwise.plugin.gpus.sysfs import (
    BusyError,
    MissingError,
    Place,
    SysfsError,
    names_in,
    numa_node,
    place_of,
    resolved,
    text_of,
)

PCI_DEVICES = "bus/pci/devices"
_DRIVER = "module/amdgpu/drivers/pci:amdgpu"
_PLATFORM = "devices/platform"
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PARTITION = re.compile(r"amdgpu_xcp[_.][0-9]{1,4}")  # newer kernels write a dot
_RENDERS = "renderD"
_RENDER = re.compile(rf"{_RENDERS}[0-9]{{1,4}}")
_ERRORS = re.compile(r"\w{1,64}_err_count")
_UNCORRECTABLE = re.compile(r"^ue: *([0-9]{1,20})$", re.MULTILINE)
_NOT_NOW = "Query currently inaccessible"
_OFF_THE_BUS = b"\xff\xff"  # instead of the vendor's number
_OWN_BRIDGE = "0x1002"  # AMD's GPUs bring a switch of their own
_WHOLE = "SPX"
_MODE, _MEMORY_MODE = re.compile(r"[A-Z]{3}"), re.compile(r"NPS[1-8]")
_LONGEST_MODEL = 128
_RESET = Finding("no-answer", "the driver resets the GPU, or cannot look at it")


@dataclass(frozen=True, slots=True)
class Device:
    """`place` is () if it is unknown. `memory_mib` is 0 if it is unknown. `partitioning` is like
    cpx_nps4; empty if the GPU is whole."""

    model: str
    memory_mib: int
    numa_nodes: tuple[int, ...]
    place: Place
    partitioning: str


def device_ids(sysfs: Path) -> dict[int, str]:
    """Render minor -> the id by which AMD's device plugin lists the device: the name of its folder,
    that of a PCI function or that of a partition. Raises SysfsError."""
    found: dict[int, str] = {}
    for folder, pattern in ((_DRIVER, _PCI), (_PLATFORM, _PARTITION)):
        for name in _names(sysfs / folder, pattern):
            for render in _names(sysfs / folder / name / "drm", _RENDER)[:1]:
                found.setdefault(int(render.removeprefix(_RENDERS)), name)
    return found


def device_names(sysfs: Path) -> frozenset[str]:
    """The GPUs and partitions that the driver has now. Raises SysfsError."""
    return frozenset((*_names(sysfs / _DRIVER, _PCI), *_names(sysfs / _PLATFORM, _PARTITION)))


def _names(folder: Path, pattern: re.Pattern[str]) -> list[str]:
    try:
        return [name for name in names_in(folder) if pattern.fullmatch(name)]
    except MissingError:
        return []


def read_device(sysfs: Path, bus_id: str) -> Device:
    """Raises SysfsError if there is no such device."""
    folder = sysfs / PCI_DEVICES / bus_id
    names_in(folder)
    bytes_ = _known(folder / "mem_info_vram_total")
    node = numa_node(bus_id, sysfs=sysfs)
    mode = _matching(_MODE, folder / "current_compute_partition")
    memory_mode = _matching(_MEMORY_MODE, folder / "current_memory_partition") or "NPS1"
    return Device(
        model=_known(folder / "product_name")[:_LONGEST_MODEL],
        memory_mib=int(bytes_) >> 20 if bytes_.isdecimal() else 0,
        numa_nodes=() if node is None else (node,),
        place=_place(folder, sysfs),
        partitioning=f"{mode}_{memory_mode}".lower() if mode not in ("", _WHOLE) else "",
    )


def _matching(pattern: re.Pattern[str], path: Path) -> str:
    """Empty if the kernel does not have it, or shows anything else."""
    text = _known(path)
    return text if pattern.fullmatch(text) else ""


def _known(path: Path) -> str:
    """Empty if the kernel does not have it, or does not tell."""
    try:
        return text_of(path)
    except SysfsError:
        return ""


def _place(folder: Path, sysfs: Path) -> Place:
    """Where the GPU's own switch is, so that two GPUs are as close as their slots."""
    place = place_of(resolved(folder))
    while len(place) > 2 and _known(sysfs / PCI_DEVICES / place[-2] / "vendor") == _OWN_BRIDGE:
        place = (*place[:-2], place[-1])
    return place


@dataclass(frozen=True, slots=True)
class DeviceProbe:
    """`load` is None if the driver does not tell."""

    findings: tuple[Finding, ...] = ()
    load: Load | None = None


def probe_device(sysfs: Path, bus_id: str) -> DeviceProbe:
    """The state of the GPU now. Never raises."""
    folder = sysfs / PCI_DEVICES / bus_id
    if not (sysfs / _DRIVER / bus_id).exists():
        return DeviceProbe((Finding("lost", "amdgpu does not have the GPU any more"),))
    if lost := _lost(folder):
        return DeviceProbe((Finding("lost", lost),))
    try:
        sick = tuple(_uncorrectable(folder / "ras"))
        return DeviceProbe(sick, _load(folder))
    except BusyError:
        asleep = _known(folder / "power/runtime_status") == "suspended"
        return DeviceProbe(() if asleep else (_RESET,))


def _lost(folder: Path) -> str:
    try:
        with (folder / "config").open("rb") as file:
            if file.read(2) == _OFF_THE_BUS:
                return "the GPU has fallen off the bus"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"its PCI configuration: {error.strerror}"
    return ""


def _uncorrectable(folder: Path) -> Iterator[Finding]:
    """Memory and blocks with errors that could not be corrected since the driver was loaded, or the
    GPU reset. AMD's metrics exporter takes a GPU out for one. Raises BusyError."""
    sick: list[str] = []
    for name in _names(folder, _ERRORS):
        try:
            text = text_of(folder / name)
        except BusyError:
            raise
        except SysfsError:
            continue
        if text == _NOT_NOW:
            raise BusyError(folder / name, text)
        match = _UNCORRECTABLE.search(text)
        if match and int(match[1]):
            sick.append(name.removesuffix("_err_count"))
    if sick:
        yield Finding("ecc", f"uncorrectable errors: {', '.join(sick)}")


def _load(folder: Path) -> Load | None:
    """Raises BusyError."""
    try:
        busy = text_of(folder / "gpu_busy_percent")
    except BusyError:
        raise
    except SysfsError:
        return None
    used = _known(folder / "mem_info_vram_used")
    if not busy.isdecimal():
        return None
    share = min(int(busy), 100) / 100
    return Load(share, share > 0, int(used) >> 20 if used.isdecimal() else None)
