"""A machine: its GPUs, the link between every pair of them, its NICs and its fabric clique.

Frozen, and checked when constructed. It keeps the oddities of real servers: NUMA node -1, several
NUMA nodes for one GPU, PCI domains other than 0000, GPU order unlike NUMA order, mixed models.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.parts import Part, check_parts
from linkwise.topology.machine.topology_manager import TopologyManager

MAX_GPUS = 16
MAX_NVLINKS = 36  # NVML_NVLINK_MAX_LINKS is 18 up to Blackwell; the annotation leaves room
MAX_NIC_GBIT_PER_S = 100_000
USUAL_PCIE_LANES = 16
_PCI_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class LinkClass(IntEnum):
    """How close two devices are; a larger value is closer. Names as in `nvidia-smi topo -m`."""

    SYS = 0  # between NUMA nodes
    NODE = 1  # between host bridges of one NUMA node
    PHB = 2  # through one PCIe host bridge
    PXB = 3  # through several PCIe switches
    PIX = 4  # through one PCIe switch
    NVLINK = 5


LINK_WORDS: dict[str, LinkClass] = {
    "nvlink": LinkClass.NVLINK,
    "switch": LinkClass.PXB,
    "host-bridge": LinkClass.PHB,
    "numa": LinkClass.NODE,
    "node": LinkClass.SYS,
}
"""What a pod may ask for (`require-link`, `prefer-link`): this class or a closer one."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `numa_nodes` is empty if unknown, and holds -1 if the firmware says so. `pci_bus_id`
    is in sysfs form (0000:1a:00.0). `parts` is None if containers get the GPU as a whole; it is
    empty if MIG mode is on and there is no MIG device. `pcie_lanes` are up, of the
    `most_pcie_lanes` that the GPU and its slot both have; both are 16 if that is unknown."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    pci_bus_id: str | None = None
    numa_nodes: tuple[int, ...] = ()
    compute_capability: tuple[int, int] | None = None
    healthy: bool = True
    parts: tuple[Part, ...] | None = None
    pcie_lanes: int = USUAL_PCIE_LANES
    most_pcie_lanes: int = USUAL_PCIE_LANES

    def __post_init__(self) -> None:
        if not 1 <= self.pcie_lanes <= self.most_pcie_lanes <= USUAL_PCIE_LANES:
            raise MachineError(
                f"GPU {self.index}: {self.pcie_lanes} of {self.most_pcie_lanes} PCIe lanes: "
                f"expected 1 to {USUAL_PCIE_LANES}"
            )
        if self.parts is not None:
            check_parts(self.uuid, self.parts)
        if not self.uuid or len(self.uuid) > 63 or self.uuid.split() != [self.uuid]:
            raise MachineError(  # the kubelet's limit on a device id
                f"GPU {self.index}: uuid {self.uuid!r}: expected 1 to 63 characters, no blanks"
            )
        if self.index < 0:
            raise MachineError(f"GPU {self.uuid}: index {self.index}: expected 0 or more")
        if self.memory_mib < 0:
            raise MachineError(
                f"GPU {self.index}: memory {self.memory_mib} MiB: expected 0 or more"
            )
        if self.pci_bus_id is not None and not _PCI_BUS_ID.fullmatch(self.pci_bus_id):
            raise MachineError(
                f"GPU {self.index}: PCI bus id {self.pci_bus_id!r}: expected like 0000:1a:00.0"
            )

    @property
    def numa_node(self) -> int | None:
        """Return the one NUMA node of this GPU, or None if it is unknown."""
        known = [node for node in self.numa_nodes if node >= 0]
        return known[0] if len(known) == 1 else None


@dataclass(frozen=True, slots=True)
class Link:
    """The paths between two GPUs, the same both ways: their PCIe distance, and any NVLinks, or what
    the vendor has for them. With `routed` they have none of their own and reach each other over
    those of other GPUs.

    Without `peer_to_peer` neither reaches the other's memory over PCIe: what takes the PCIe path
    goes through the host's memory.
    """

    pcie: LinkClass
    nvlinks: int = 0
    through_switch: bool = False
    peer_to_peer: bool = True
    routed: bool = False

    def __post_init__(self) -> None:
        if self.routed and self.nvlinks:
            raise MachineError(f"link: routed beside {self.nvlinks} NVLinks: expected 0")
        if self.pcie is LinkClass.NVLINK:
            raise MachineError("link: pcie NVLINK: expected SYS, NODE, PHB, PXB or PIX")
        if not 0 <= self.nvlinks <= MAX_NVLINKS:
            raise MachineError(f"link: {self.nvlinks} NVLinks: expected 0 to {MAX_NVLINKS}")
        if self.through_switch and not self.nvlinks:
            raise MachineError("link: through an NVSwitch with no NVLink: expected 1 or more")

    @property
    def kind(self) -> LinkClass:
        """The closest class of the paths."""
        return LinkClass.NVLINK if self.nvlinks or self.routed else self.pcie


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card and how close it is to each GPU (one class per GPU, never NVLINK).
    `gbit_per_s` is None if its speed is unknown."""

    name: str
    closeness: tuple[LinkClass, ...]
    gbit_per_s: int | None = None

    def __post_init__(self) -> None:
        if LinkClass.NVLINK in self.closeness:
            raise MachineError(f"NIC {self.name}: NVLINK: expected SYS, NODE, PHB, PXB or PIX")
        if self.gbit_per_s is not None and not 1 <= self.gbit_per_s <= MAX_NIC_GBIT_PER_S:
            raise MachineError(
                f"NIC {self.name}: {self.gbit_per_s} Gbit/s: expected 1 to {MAX_NIC_GBIT_PER_S}"
            )


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's GPUs in index order, and a link for every pair of them.

    `links` is the upper triangle by rows: (0,1), (0,2) … (0,n-1), (1,2) …, n(n-1)/2 in all.
    `clique` is `<ClusterUUID>.<CliqueID>` of a multi-node NVLink fabric. `topology_manager` is None
    if it is not known what the node's kubelet demands. `partitions` are the NVSwitch partitions, as
    bitmasks of their GPUs, in rising order, 0 among them: a pod's GPUs have to be exactly one of
    these. Empty: any GPUs will do. `vendor` made the GPUs (`vendors/`).
    """

    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...]
    nics: tuple[Nic, ...] = ()
    clique: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    topology_manager: TopologyManager | None = None
    partitions: tuple[int, ...] = ()
    vendor: str = "nvidia"
    healthy_gpus: int = field(init=False, compare=False, repr=False)
    """The set of the GPUs that containers can get as a whole: healthy, and not divided."""
    _bit_of: Mapping[str, int] = field(init=False, compare=False, repr=False)
    """uuid -> the set of that GPU."""

    def __post_init__(self) -> None:
        # Computed once: every change of what is in use needs them.
        object.__setattr__(self, "_bit_of", {g.uuid: 1 << p for p, g in enumerate(self.gpus)})
        whole = [p for p, gpu in enumerate(self.gpus) if gpu.healthy and gpu.parts is None]
        object.__setattr__(self, "healthy_gpus", sum([1 << position for position in whole]))
        count = len(self.gpus)
        if not 1 <= count <= MAX_GPUS:
            raise MachineError(f"machine: {count} GPUs: expected 1 to {MAX_GPUS}")
        pairs = count * (count - 1) // 2
        if len(self.links) != pairs:
            raise MachineError(
                f"machine: {len(self.links)} links for {count} GPUs: expected {pairs}"
            )
        indices = [gpu.index for gpu in self.gpus]
        if indices != sorted(set(indices)):
            raise MachineError(f"machine: GPU indices {indices}: expected rising, each once")
        for what, ids in (
            ("uuid", [gpu.uuid for gpu in self.gpus]),
            ("PCI bus id", [gpu.pci_bus_id for gpu in self.gpus if gpu.pci_bus_id]),
            ("part", [part.uuid for gpu in self.gpus for part in gpu.parts or ()]),
        ):
            twice = {item for item in ids if ids.count(item) > 1}
            if twice:
                raise MachineError(f"machine: {what} {sorted(twice)[0]} on two GPUs")
        for nic in self.nics:
            if len(nic.closeness) != count:
                raise MachineError(
                    f"machine: NIC {nic.name}: {len(nic.closeness)} entries: expected {count}"
                )

    def link(self, first: int, second: int) -> Link:
        """The link between the GPUs at two different positions of `gpus`."""
        low, high = min(first, second), max(first, second)
        count = len(self.gpus)
        return self.links[low * count - low * (low + 1) // 2 + high - low - 1]

    def pairs(self) -> Iterator[tuple[int, int, Link]]:
        """Yield every pair of positions with its link, in the order of `links`."""
        for (first, second), link in zip(
            combinations(range(len(self.gpus)), 2), self.links, strict=True
        ):
            yield first, second, link

    @property
    def all_gpus(self) -> int:
        """The set of all GPUs, as a bitmask."""
        return (1 << len(self.gpus)) - 1

    def mask_of(self, uuids: Collection[str]) -> int:
        """Return the set of the GPUs with these uuids; ignore uuids of other machines."""
        mask, bit_of = 0, self._bit_of
        for uuid in uuids:
            mask |= bit_of.get(uuid, 0)
        return mask

    def uuids_of(self, mask: int) -> tuple[str, ...]:
        """The uuids of a set, in index order."""
        return tuple(gpu.uuid for p, gpu in enumerate(self.gpus) if mask >> p & 1)

    def indices_of(self, mask: int) -> tuple[int, ...]:
        """The GPU indices of a set, rising."""
        return tuple(gpu.index for p, gpu in enumerate(self.gpus) if mask >> p & 1)
