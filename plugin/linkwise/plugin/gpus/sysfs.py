"""What Linux knows about PCI devices: the NUMA node, the class, and how close two devices are.

Nothing here needs a driver's library. Paths under /sys/devices show the tree of bridges between a
device and the CPU; the names in it are those of /sys/bus/pci/devices (kernel documentation,
ABI/testing/sysfs-bus-pci).
"""

import errno
import os
import re
from contextlib import suppress
from pathlib import Path

from linkwise.topology.machine.model import LinkClass

SYSFS = Path("/sys")
NVSWITCH_CLASS = "0x068000"  # "bridge, other"; of IBM's NVLinks into a CPU it ends with 01
Place = tuple[str, ...]
"""Where a device is, from the root of the PCI tree: ("pci0000:00", "0000:00:01.0", …)."""

_PAGE = 4096  # no file of /sys is longer (kernel documentation, filesystems/sysfs)
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_FUNCTION = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NUMA_NODE = re.compile(r"-1|[0-9]{1,6}")


class SysfsError(Exception):
    """A path of /sys that cannot be read, or holds what it should not; the text names it."""

    def __init__(self, path: Path, why: str) -> None:
        # Any bytes may be a name in a file system, and not every name can be printed.
        super().__init__(f"{os.fsencode(path).decode(errors='backslashreplace')}: {why}")


class MissingError(SysfsError):
    """The path does not exist: the kernel, or the device, has no such thing."""


class BusyError(SysfsError):
    """The driver does not let anybody look now: it resets the device, or the device sleeps."""


def text_of(path: Path) -> str:
    """Return what is in the file, without blanks around it. Raises SysfsError."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_PAGE).strip()
    except (OSError, ValueError) as error:
        raise _explained(path, error) from error


def names_in(directory: Path) -> list[str]:
    """Return the names in the directory, sorted. Raises SysfsError."""
    try:
        return sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise _explained(directory, error) from error


def resolved(path: Path) -> Path:
    """Return the path without symbolic links. Raises SysfsError."""
    try:
        # Not Path.resolve: up to Python 3.12 it raises RuntimeError for links in a circle.
        return Path(os.path.realpath(path, strict=True))
    except OSError as error:
        raise _explained(path, error) from error


def _explained(path: Path, error: OSError | ValueError) -> SysfsError:
    if isinstance(error, FileNotFoundError):
        return MissingError(path, "it does not exist")
    if isinstance(error, OSError) and error.errno in (errno.EBUSY, errno.EPERM):
        return BusyError(path, error.strerror or "busy")
    return SysfsError(path, (isinstance(error, OSError) and error.strerror) or "it is no text")


def numa_node(bus_id: str, *, sysfs: Path = SYSFS) -> int | None:
    """The NUMA node; -1 if the firmware names none, None if the file cannot be read."""
    with suppress(SysfsError):
        text = text_of(sysfs / "bus/pci/devices" / bus_id / "numa_node")
        return int(text) if _NUMA_NODE.fullmatch(text) else None
    return None


def pci_class(bus_id: str, *, sysfs: Path = SYSFS) -> str | None:
    """The class, like 0x030200; None if there is no such device."""
    with suppress(SysfsError):
        return text_of(sysfs / "bus/pci/devices" / bus_id / "class")
    return None


def place_of(device: Path) -> Place:
    """Return the place of a device without symbolic links in its path, or of the PCI device that it
    is a part of, as a sub-function is; () if it is no PCI device."""
    parts = device.parts
    roots = [place for place, part in enumerate(parts) if _ROOT.fullmatch(part)]
    if not roots:
        return ()
    known = [
        part for part in parts[roots[0] :] if _ROOT.fullmatch(part) or _FUNCTION.fullmatch(part)
    ]
    return tuple(known) if _FUNCTION.fullmatch(known[-1]) else ()


def closeness(first: Place, second: Place, *, sysfs: Path = SYSFS) -> LinkClass:
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
