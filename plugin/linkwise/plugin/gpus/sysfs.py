"""What Linux knows about PCI devices: the NUMA node of a GPU, and how close each network card is.

Nothing here needs a driver's library. If a file is missing or strange, its value is unknown; that
is no error. Paths under /sys/devices show the tree of bridges between a device and the CPU.
"""

from collections.abc import Sequence
from pathlib import Path

from linkwise.topology.machine.model import LinkClass, Nic

SYSFS = Path("/sys")
NVSWITCH_CLASS = "0x068000"  # "bridge, other"; of IBM's NVLinks into a CPU it ends with 01
DISPLAY_CLASS = "0x03"


def numa_node(bus_id: str, *, sysfs: Path = SYSFS) -> int | None:
    """The NUMA node; -1 if the firmware names none, None if the file cannot be read."""
    try:
        return int((sysfs / "bus/pci/devices" / bus_id / "numa_node").read_text())
    except (OSError, ValueError):
        return None


def pci_class(bus_id: str, *, sysfs: Path = SYSFS) -> str | None:
    """The class, like 0x030200; None if there is no such device."""
    try:
        return (sysfs / "bus/pci/devices" / bus_id / "class").read_text().strip()
    except OSError:
        return None


def nics(bus_ids: Sequence[str | None], *, sysfs: Path = SYSFS) -> tuple[Nic, ...]:
    """The RDMA network cards, and how close each is to the GPUs with these bus ids.

    Empty if a GPU is missing in the tree: half a table would mislead.
    """
    gpus = [_place(sysfs / "bus/pci/devices" / bus_id) for bus_id in bus_ids if bus_id]
    if len(gpus) != len(bus_ids) or not all(gpus):
        return ()
    found: list[Nic] = []
    for card in sorted((sysfs / "class/infiniband").glob("*")):
        place = _place(card / "device")
        if place:
            found.append(Nic(card.name, tuple(_closeness(place, gpu, sysfs=sysfs) for gpu in gpus)))
    return tuple(found)


def _place(device: Path) -> tuple[str, ...]:
    """The path from the root of the PCI tree, ("pci0000:00", "0000:00:01.0", …), or ()."""
    try:
        parts = device.resolve(strict=True).parts
    except OSError:
        return ()
    roots = [place for place, part in enumerate(parts) if part.startswith("pci")]
    return parts[roots[0] :] if roots else ()


def _closeness(first: tuple[str, ...], second: tuple[str, ...], *, sysfs: Path) -> LinkClass:
    """The class, as `nvidia-smi topo -m` defines its words.

    Below one root: PHB. Below a common bridge the two meet in a PCIe switch: PIX if each is behind
    one port of it (port and device are all that is left of both paths), else PXB.
    """
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1
    if shared == 0:
        nodes = [numa_node(way[-1], sysfs=sysfs) for way in (first, second)]
        same = nodes[0] == nodes[1] and nodes[0] not in (None, -1)
        return LinkClass.NODE if same else LinkClass.SYS
    if shared == 1:
        return LinkClass.PHB
    return LinkClass.PIX if max(len(first), len(second)) - shared <= 2 else LinkClass.PXB
