"""What /sys shows of one GPU, and the state of the GPU now.

Sources: the kernel, drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c (`ras/*_err_count`) and
drivers/gpu/drm/amd/pm/amdgpu_pm.c: during a reset the first says that it cannot be asked, and the
second refuses with EBUSY, before 2025 with EPERM. Its `pp_dpm_pcie` has the levels between which
the GPU changes by itself. The slot is found as amdgpu_device.c does: above all bridges of AMD's.
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
from linkwise.topology.machine.model import USUAL_PCIE_LANES

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
_WIDTHS = frozenset(map(str, range(1, USUAL_PCIE_LANES + 1)))
_LEVEL_LANES = re.compile(r", x([0-9]{1,2})\b")  # "1: 16.0GT/s, x16 619Mhz *"
_RESET = Finding("no-answer", "the driver resets the GPU, or cannot look at it")


@dataclass(frozen=True, slots=True)
class Device:
    """`place` is () if it is unknown. `memory_mib` is 0 if it is unknown. `partitioning` is like
    cpx_nps4; empty if the GPU is whole. `lanes` of PCIe are those that are up, and those that the
    GPU and its slot both have."""

    model: str
    memory_mib: int
    numa_nodes: tuple[int, ...]
    place: Place
    partitioning: str
    lanes: tuple[int, int]


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
    above, own = _bridges(folder, sysfs)
    mode = _matching(_MODE, folder / "current_compute_partition")
    memory_mode = _matching(_MEMORY_MODE, folder / "current_memory_partition") or "NPS1"
    return Device(
        model=_known(folder / "product_name")[:_LONGEST_MODEL],
        memory_mib=int(bytes_) >> 20 if bytes_.isdecimal() else 0,
        numa_nodes=() if node is None else (node,),
        place=(*above, *own[-1:]),
        partitioning=f"{mode}_{memory_mode}".lower() if mode not in ("", _WHOLE) else "",
        lanes=_lanes(folder, above, own),
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


def _bridges(folder: Path, sysfs: Path) -> tuple[Place, Place]:
    """What is above the GPU's slot, and what the GPU brings: its own switch, if any, and itself.
    Two GPUs are as close as their slots. Both are () if that is unknown."""
    place = place_of(resolved(folder))
    own = max(len(place) - 1, 0)
    while own > 1 and _known(sysfs / PCI_DEVICES / place[own - 1] / "vendor") == _OWN_BRIDGE:
        own -= 1
    return place[:own], place[own:]


def _lanes(folder: Path, above: Place, own: Place) -> tuple[int, int]:
    """Of the slot: between the GPU and its own switch, all lanes are always up. Where the driver
    takes fewer while the GPU rests, those that are up now mean nothing."""
    devices = folder.parent
    of_levels = set(_LEVEL_LANES.findall(_known(folder / "pp_dpm_pcie")))
    up = _width(devices / own[0] / "current_link_width") if own and len(of_levels) < 2 else None
    if up is None:
        return USUAL_PCIE_LANES, USUAL_PCIE_LANES
    most = _width(devices / own[0] / "max_link_width") or up
    return up, max(up, min(most, _width(devices / above[-1] / "max_link_width") or most))


def _width(path: Path) -> int | None:
    """None if the kernel does not know it: 0 in virtual machines, 255."""
    text = _known(path)
    return int(text) if text in _WIDTHS else None


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
