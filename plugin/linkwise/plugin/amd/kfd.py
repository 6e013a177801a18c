"""The GPUs, their partitions and their links, as amdgpu's compute part (KFD) counts them.

`/sys/class/kfd/kfd/topology/nodes` has a folder for each CPU, and for each GPU or partition of one.
`io_links` are what the driver knows to be direct, `p2p_links` ways over PCIe, which only kernels
with CONFIG_HSA_AMD_P2P show. Sources: the kernel, drivers/gpu/drm/amd/amdkfd/kfd_topology.c and
kfd_crat.h; how RCCL counts links: `src/misc/rocm_smi_wrap.cc`, `rocm_smi_getLinkInfo`.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from linkwise.plugin.gpus.sysfs import MissingError, SysfsError, names_in, text_of
from linkwise.topology.machine.model import MAX_NVLINKS
from linkwise.topology.vendors.amd import direct_links

Properties = Mapping[str, int]
Warn = Callable[[str], None]

_NODES = "class/kfd/kfd/topology/nodes"
_LINE = re.compile(r"([a-z0-9_]{1,64}) ([0-9]{1,20})")
_PCIE, _XGMI = 2, 11  # CRAT_IOLINK_TYPE_…
_MOST_LINKS = 256  # of a node: 64 partitions, and CPUs


class Way(Enum):
    """How one KFD node reaches another."""

    PCIE = auto()
    ROUTED = auto()  # over the xGMI links of other GPUs
    DIRECT = auto()  # over xGMI links of its own


@dataclass(frozen=True, slots=True)
class Entry:
    """`links` is the number of xGMI links, 0 unless the way is direct."""

    way: Way
    links: int = 0


@dataclass(frozen=True, slots=True)
class KfdNode:
    """A GPU, or one partition of a GPU. `architecture` is like gfx90a. `memory_bytes` is 0 if it is
    unknown. `entries` are the ways to other nodes, by their numbers."""

    number: int
    bus_id: str
    partition: int
    render_minor: int
    architecture: str
    memory_bytes: int
    entries: Mapping[int, Entry]


def node_names(sysfs: Path) -> list[str]:
    """Raises SysfsError; MissingError where amdgpu is not loaded."""
    return names_in(sysfs / _NODES)


def read_nodes(sysfs: Path, warn: Warn) -> list[KfdNode]:
    """The nodes of GPUs, by number. One that cannot be read is left out with a warning. Raises
    SysfsError."""
    gpus: dict[int, Properties] = {}
    for name in node_names(sysfs):
        if name.isdecimal() and name.isascii():
            try:
                values = _properties(sysfs / _NODES / name / "properties")
            except SysfsError as error:
                warn(f"{error}: this node is left out")
                continue
            if values.get("simd_count"):  # not a CPU
                gpus[int(name)] = values
    found: list[KfdNode] = []
    for number in sorted(gpus):
        try:
            found.append(_gpu(sysfs / _NODES / str(number), number, gpus, warn))
        except SysfsError as error:
            warn(f"{error}: this GPU is left out")
    return list(_each_once(found, warn))


def _each_once(nodes: Collection[KfdNode], warn: Warn) -> Iterator[KfdNode]:
    seen: dict[object, int] = {}
    for node in nodes:
        place, render = (node.bus_id, node.partition), node.render_minor
        twin = seen.get(place, seen.get(render))
        if twin is not None:
            warn(
                f"KFD nodes {twin} and {node.number} are both {node.bus_id}, partition "
                f"{node.partition}, or renderD{render}: the second is left out"
            )
            continue
        seen[place] = seen[render] = node.number
        yield node


def _gpu(folder: Path, number: int, gpus: Mapping[int, Properties], warn: Warn) -> KfdNode:
    path, values = folder / "properties", gpus[number]
    location, domain = _value(values, "location_id", path), values.get("domain", 0)
    render = values.get("drm_render_minor", 0)
    if not render:
        raise SysfsError(path, "no drm_render_minor: expected that of /dev/dri/renderD…")
    return KfdNode(
        number=number,
        bus_id=f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.0",
        partition=location & 7,
        render_minor=render,
        architecture=_architecture(values.get("gfx_target_version", 0)),
        memory_bytes=_memory(folder, warn),
        entries=_entries(folder, gpus.keys(), warn),
    )


def _properties(path: Path) -> Properties:
    """Raises SysfsError. Lines that are no number with a name are skipped."""
    matches = map(_LINE.fullmatch, text_of(path).splitlines())
    return {match[1]: int(match[2]) for match in matches if match}


def _value(values: Properties, name: str, path: Path) -> int:
    if name not in values:
        raise SysfsError(path, f"no {name}: expected a line with a number for it")
    return values[name]


def _architecture(version: int) -> str:
    """90010 is gfx90a; each of the last two is one hexadecimal digit."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _memory(folder: Path, warn: Warn) -> int:
    try:
        values = _properties(folder / "mem_banks/0/properties")
    except MissingError:
        return 0
    except SysfsError as error:
        warn(str(error))
        return 0
    return values.get("size_in_bytes", 0)


def _entries(folder: Path, gpus: Collection[int], warn: Warn) -> Mapping[int, Entry]:
    """The ways to other GPUs, or partitions. One that cannot be read is left out with a warning.
    One over xGMI comes before others."""
    found: dict[int, Entry] = {}
    for kind in ("io_links", "p2p_links"):
        try:
            names = names_in(folder / kind)[:_MOST_LINKS]
        except MissingError:
            continue
        except SysfsError as error:
            warn(str(error))
            continue
        for name in names:
            path = folder / kind / name / "properties"
            try:
                values = _properties(path)
                to = _value(values, "node_to", path)
                if to in gpus:
                    ways = (_entry(values, path), *([found[to]] if to in found else ()))
                    found[to] = max(ways, key=lambda entry: entry.way.value)
            except SysfsError as error:
                warn(f"{error}: this link is left out")
    return found


def _entry(values: Properties, path: Path) -> Entry:
    """Raises SysfsError."""
    kind, weight = _value(values, "type", path), values.get("weight", 0)
    least, most = values.get("min_bandwidth", 0), values.get("max_bandwidth", 0)
    if kind == _PCIE:
        return Entry(Way.PCIE)
    if kind != _XGMI:
        raise SysfsError(path, f"type {kind}: expected {_PCIE} for PCIe or {_XGMI} for xGMI")
    links = direct_links(weight, least, most)
    if links is None:
        raise SysfsError(
            path, f"bandwidth {least} to {most} MB/s: expected 1 to {MAX_NVLINKS} times the first"
        )
    return Entry(Way.DIRECT, links) if links else Entry(Way.ROUTED)
