"""PURE, except for NUMA nodes of bridges. Puts what the driver shows of all GPUs together to a
machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from linkwise.plugin.amd.device import Device
from linkwise.plugin.amd.kfd import Entry, KfdNode, Warn, Way
from linkwise.plugin.gpus.sysfs import closeness
from linkwise.topology.machine.model import Gpu, Link, LinkClass
from linkwise.topology.machine.parts import MAX_PARTS, MigProfile, Part

_UNKNOWN_MODEL = "AMD"


@dataclass(frozen=True, slots=True)
class Found:
    """One GPU: its nodes, one for each partition, the first one first."""

    index: int
    nodes: tuple[KfdNode, ...]
    device: Device

    @property
    def bus_id(self) -> str:
        return self.nodes[0].bus_id


def gpu_of(found: Found, ids: Mapping[int, str], warn: Warn) -> Gpu:
    """*ids* are those of AMD's device plugin, by render minor."""
    device, first = found.device, found.nodes[0]
    is_whole = not device.partitioning and len(found.nodes) == 1
    parts = None if is_whole else tuple(_parts(found, ids, warn))
    memory = device.memory_mib or sum(node.memory_bytes for node in found.nodes) >> 20
    return Gpu(
        uuid=found.bus_id,
        index=found.index,
        model=device.model or f"{_UNKNOWN_MODEL} {first.architecture}".strip(),
        memory_mib=memory,
        pci_bus_id=found.bus_id,
        numa_nodes=device.numa_nodes,
        parts=parts,
        pcie_lanes=device.lanes[0],
        most_pcie_lanes=device.lanes[1],
    )


def _parts(found: Found, ids: Mapping[int, str], warn: Warn) -> Sequence[Part]:
    """A partition without a device is none that a plugin could give out."""
    parts: list[Part] = []
    # One whose mode the driver does not show has the number of its nodes for a name.
    name = found.device.partitioning or f"{len(found.nodes)}_partitions"
    for node in found.nodes[:MAX_PARTS]:
        device_id = ids.get(node.render_minor)
        if device_id is None:
            warn(
                f"GPU {found.bus_id}: KFD node {node.number}: no device of amdgpu has "
                f"renderD{node.render_minor}: this partition is left out"
            )
            continue
        memory = node.memory_bytes or (found.device.memory_mib << 20) // len(found.nodes)
        parts.append(Part(device_id, mig=MigProfile(name, 1, memory >> 20)))
    return parts


def links_of(found: Sequence[Found], sysfs: Path, warn: Warn) -> tuple[Link, ...]:
    """In the order of `Machine.links`. A pair without an entry both ways has no peer access: it is
    the farthest that its slots allow."""
    return tuple(_link(first, second, sysfs, warn) for first, second in combinations(found, 2))


def _link(first: Found, second: Found, sysfs: Path, warn: Warn) -> Link:
    pcie = _pcie(first.device, second.device, sysfs)
    there = first.nodes[0].entries.get(second.nodes[0].number)
    back = second.nodes[0].entries.get(first.nodes[0].number)
    if there != back:
        warn(
            f"GPUs {first.bus_id} and {second.bus_id}: {_words(there)} there, {_words(back)} back: "
            "the lesser counts"
        )
    if there is None or back is None:
        return Link(pcie, peer_to_peer=False)
    entry = min(there, back, key=lambda each: (each.way.value, each.links))
    return Link(pcie, entry.links, routed=entry.way is Way.ROUTED)


def _words(entry: Entry | None) -> str:
    if entry is None:
        return "no way"
    return f"{entry.links} xGMI links" if entry.links else entry.way.name.lower()


def _pcie(first: Device, second: Device, sysfs: Path) -> LinkClass:
    if first.place and second.place:
        return closeness(first.place, second.place, sysfs=sysfs)
    nodes = first.numa_nodes, second.numa_nodes
    same = nodes[0] == nodes[1] and nodes[0] not in ((), (-1,))
    return LinkClass.NODE if same else LinkClass.SYS
