"""The RDMA network cards of a node: which of them carry traffic, how fast they are, and how close
each is to each GPU.

`/sys/class/infiniband` has one entry for each RDMA device, whatever is below it: InfiniBand, RoCE
and iWARP over Ethernet, EFA. A card that does plain Ethernet only is in `/sys/class/net` alone, and
no GPU can use it directly. Sources: kernel documentation, ABI/stable/sysfs-class-infiniband
(`ports/<n>/state`, `ports/<n>/rate`) and ABI/testing/sysfs-bus-pci (`physfn`); how the values are
written: drivers/infiniband/core/sysfs.c.

- A virtual function (SR-IOV) or sub-function shares the ports of its physical function, so one
  device of each physical function counts: the physical function itself if it is an RDMA device.
- A device whose ports are all down is left out. Where the kernel does not show the state of ports,
  the device counts.
- A missing file means that its value is unknown. Whatever else is wrong becomes a warning, which
  names the path.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from linkwise.plugin.gpus.sysfs import (
    SYSFS,
    MissingError,
    Place,
    SysfsError,
    closeness,
    names_in,
    place_of,
    resolved,
    text_of,
)
from linkwise.topology.machine.model import MAX_NIC_GBIT_PER_S, Nic

_STATE = re.compile(r"[0-9]+: ([A-Z_]+)")  # 4: ACTIVE
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) Gb/sec\b.*")  # 400 Gb/sec (4X NDR)
_CARRIES = "ACTIVE"  # a port in INIT or ARMED waits for its subnet manager
_NAME = re.compile(r"[!-~]{1,64}")  # IB_DEVICE_NAME_MAX is 64


@dataclass(frozen=True, slots=True)
class NicReading:
    """`nics` is None if nothing is known about them. `warnings` are about paths that could not be
    read; each stays the same while it is true."""

    nics: tuple[Nic, ...] | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Card:
    name: str
    place: Place
    physical: Path  # the PCI function whose ports it uses
    shares: bool  # it is not that function itself
    gbit_per_s: int | None


def read_nics(bus_ids: Sequence[str | None], *, sysfs: Path = SYSFS) -> NicReading:
    """The network cards by name, and how close each is to the GPUs with these bus ids.

    Nothing is known if a GPU is missing in the tree: half a table would mislead.
    """
    warnings: list[str] = []
    directory = sysfs / "class/infiniband"
    try:
        names = names_in(directory)
    except MissingError:  # a kernel without RDMA
        return NicReading(())
    except SysfsError as error:
        return NicReading(None, (str(error),))
    cards = list(_one_of_each(_cards(directory, names, warnings)))
    gpus: list[Place] = []
    for bus_id in bus_ids if cards else ():
        place = _place_of_gpu(sysfs, bus_id, warnings)
        if not place:
            return NicReading(None, tuple(warnings))
        gpus.append(place)
    nics = tuple(
        Nic(
            card.name,
            tuple(closeness(card.place, gpu, sysfs=sysfs) for gpu in gpus),
            card.gbit_per_s,
        )
        for card in cards
    )
    return NicReading(nics, tuple(warnings))


def _place_of_gpu(sysfs: Path, bus_id: str | None, warnings: list[str]) -> Place:
    if not bus_id:
        return ()
    device = sysfs / "bus/pci/devices" / bus_id
    try:
        if place := place_of(resolved(device)):
            return place
        raise SysfsError(device, "expected a link to a PCI device")
    except SysfsError as error:
        warnings.append(f"{error}: how close network cards are to this GPU is not known")
        return ()


def _cards(directory: Path, names: Sequence[str], warnings: list[str]) -> Iterator[_Card]:
    """The RDMA devices that are PCI devices and may carry traffic."""
    for name in names:
        try:
            if not _NAME.fullmatch(name):
                raise SysfsError(directory / name, "expected printable ASCII for a name")
            card = _card(directory / name, warnings)
        except MissingError:  # it was unplugged meanwhile, or has no device, as rxe
            continue
        except SysfsError as error:
            warnings.append(str(error))
            continue
        if card is not None:
            yield card


def _card(path: Path, warnings: list[str]) -> _Card | None:
    """None if it is no PCI device, or all its ports are down. Raises SysfsError."""
    device = resolved(path / "device")
    place = place_of(device)
    if not place:
        return None
    ports = list(_ports(path / "ports", warnings))
    if ports and not any(port.carries for port in ports):
        return None
    function = device
    while function.name != place[-1]:  # above a sub-function
        function = function.parent
    physical = _physical_function(function, warnings)
    rate = int(sum(port.gbit_per_s for port in ports))
    known = rate if 1 <= rate <= MAX_NIC_GBIT_PER_S else None
    return _Card(path.name, place, physical, physical != device, known)


def _physical_function(function: Path, warnings: list[str]) -> Path:
    with _noting(warnings):
        return resolved(function / "physfn")
    return function


@contextmanager
def _noting(warnings: list[str]) -> Iterator[None]:
    """What is missing is the kernel's way to say no; any other error becomes a warning."""
    try:
        yield
    except MissingError:
        pass
    except SysfsError as error:
        warnings.append(str(error))


@dataclass(frozen=True, slots=True)
class _Port:
    carries: bool
    gbit_per_s: float = 0.0  # 0 if it carries nothing, or is not known


def _ports(directory: Path, warnings: list[str]) -> Iterator[_Port]:
    with _noting(warnings):
        for name in names_in(directory):
            yield _port(directory / name, warnings)


def _port(path: Path, warnings: list[str]) -> _Port:
    with _noting(warnings):
        state = _matched(_STATE, path / "state", "4: ACTIVE")
        if state != _CARRIES:
            return _Port(carries=False)
        return _Port(True, float(_matched(_RATE, path / "rate", "400 Gb/sec (4X NDR)")))
    return _Port(carries=True)


def _matched(pattern: re.Pattern[str], path: Path, example: str) -> str:
    text = text_of(path)
    match = pattern.fullmatch(text)
    if match is None:
        raise SysfsError(path, f"{text[:40]!a}: expected like {example!r}")
    return match[1]


def _one_of_each(cards: Iterator[_Card]) -> Iterator[_Card]:
    """One device of each physical function: itself, else the first by name."""
    by_function: dict[Path, _Card] = {}
    for card in cards:
        known = by_function.get(card.physical)
        if known is None or (known.shares and not card.shares):
            by_function[card.physical] = card
    yield from sorted(by_function.values(), key=lambda card: card.name)
