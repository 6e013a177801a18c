"""PURE, except for a look at /sys. Puts the answers of all GPUs together to a machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import pynvml

from linkwise.plugin.gpus import sysfs
from linkwise.plugin.gpus.inventory import Finding, lanes_down
from linkwise.plugin.nvml.nvlink_topology import ActiveLink, End, RawGpu, clique_of, link_all
from linkwise.plugin.nvml.reading import GpuReading, OfPairs, Pairs
from linkwise.topology.machine.model import Link, LinkClass

T = TypeVar("T")

_DISTANCES = (  # rising
    (pynvml.NVML_TOPOLOGY_SINGLE, LinkClass.PIX),  # and "internal", two GPUs of one board
    (pynvml.NVML_TOPOLOGY_MULTIPLE, LinkClass.PXB),
    (pynvml.NVML_TOPOLOGY_HOSTBRIDGE, LinkClass.PHB),
    (pynvml.NVML_TOPOLOGY_NODE, LinkClass.NODE),
    (pynvml.NVML_TOPOLOGY_SYSTEM, LinkClass.SYS),
)


@dataclass(frozen=True, slots=True)
class Wired:
    """The links between the GPUs. `down` are findings on GPUs that lack NVLinks or PCIe lanes, by
    uuid."""

    links: tuple[Link, ...]
    clique: str | None
    warnings: tuple[str, ...]
    down: Mapping[str, tuple[Finding, ...]]


def wire(
    found: Sequence[GpuReading],
    pairs: Pairs,
    *,
    dead: frozenset[str],
    absent: frozenset[str],
    sys_root: Path,
) -> Wired:
    """*dead* are the uuids of GPUs whose present answers do not count. *absent* are the bus ids of
    known GPUs that could not be read."""
    raws = _raw_gpus(found, dead=dead, absent=absent, sys_root=sys_root)
    distances, peers = _distances(pairs.levels, found), _by_positions(pairs.peers, found)
    links, bent = link_all(raws, distances, peers, absent=absent)
    clique, torn = clique_of(raws)
    nvlinks = _links_down(raws, found)
    lanes = lanes_down(reading.gpu for reading in found)
    down = {
        uuid: tuple(of[uuid] for of in (nvlinks, lanes) if uuid in of) for uuid in nvlinks | lanes
    }
    return Wired(links, clique, (*bent, *torn), down)


def _distances(
    levels: OfPairs[int], found: Sequence[GpuReading]
) -> dict[tuple[int, int], LinkClass]:
    """By positions. A level between the known ones counts as the next farther one."""
    return {
        places: next((link for limit, link in _DISTANCES if level <= limit), LinkClass.SYS)
        for places, level in _by_positions(levels, found).items()
    }


def _by_positions(of_pairs: OfPairs[T], found: Sequence[GpuReading]) -> dict[tuple[int, int], T]:
    return {
        (i, j): of_pairs[pair]
        for (i, first), (j, second) in combinations(enumerate(found), 2)
        if (pair := frozenset((first.gpu.uuid, second.gpu.uuid))) in of_pairs
    }


def _raw_gpus(
    found: Sequence[GpuReading],
    *,
    dead: frozenset[str],
    absent: frozenset[str],
    sys_root: Path,
) -> list[RawGpu]:
    """The input for links. A link from or to a GPU that is dead or absent stays as it was."""
    out = {*absent, *(reading.gpu.pci_bus_id for reading in found if reading.gpu.uuid in dead)}
    here = {reading.gpu.pci_bus_id for reading in found}
    return [
        RawGpu(
            index=reading.gpu.index,
            model=reading.gpu.model,
            bus_id=reading.gpu.pci_bus_id,
            numa_nodes=reading.gpu.numa_nodes,
            nvlinks=tuple(
                _settled(link, here, sys_root)
                for link in (
                    *reading.nvlinks.up,
                    *(
                        link
                        for link in reading.nvlinks.down
                        if reading.gpu.uuid in dead or link.bus_id in out
                    ),
                )
            ),
            fabric=reading.fabric.clique,
            settled=reading.fabric.settled,
            troubled=bool(reading.trouble) or reading.gpu.uuid in dead,
        )
        for reading in found
    ]


def _settled(link: ActiveLink, here: set[str | None], sys_root: Path) -> ActiveLink:
    """If the driver is too old to know the other end, infer it from the device at its bus id.

    The rule is NCCL's (NVIDIA/nccl 5067397, `src/graph/xml.cc`): a PCI bridge of the kind "other"
    is an NVSwitch. So is a device that this machine, which is then a virtual one, does not show.
    """
    if link.end is not End.UNTOLD or link.bus_id in here or link.bus_id is None:
        return link
    kind = sysfs.pci_class(link.bus_id, sysfs=sys_root)
    switch = kind is None or kind == sysfs.NVSWITCH_CLASS
    return replace(link, end=End.SWITCH if switch else End.OTHER)


def _links_down(raws: Sequence[RawGpu], found: Sequence[GpuReading]) -> dict[str, Finding]:
    """By uuid, the GPUs that have fewer NVLinks than before, or fewer links to NVSwitches than
    others of their model."""
    switched = [sum(link.end is End.SWITCH for link in raw.nvlinks) for raw in raws]
    findings: dict[str, Finding] = {}
    for raw, reading, mine in zip(raws, found, switched, strict=True):
        alike = [
            count
            for count, other in zip(switched, found, strict=True)
            if other.gpu.model == reading.gpu.model
        ]
        up = len(raw.nvlinks)
        all_links = max(len(reading.nvlinks.up) + len(reading.nvlinks.down), up - mine + max(alike))
        if up < all_links:
            text = f"{up} of {all_links} NVLinks are up"
            findings[reading.gpu.uuid] = Finding("nvlink-down", text)
    return findings
