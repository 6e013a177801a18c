"""Reads what NCCL and RCCL write to NCCL_TOPO_DUMP_FILE: an XML tree of CPUs, PCI devices, GPUs and
network cards, with the NVLinks or xGMI links of each GPU.

GPUs that NVSwitches join name these, and not each other. The reader leaves out what stands before
the root element, so no declaration defines an entity, and refuses long and deep texts.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Never
from xml.parsers import expat

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.link_words import SELF, links_of
from linkwise.topology.machine.model import MAX_NVLINKS, Gpu, LinkClass, Machine, Nic
from linkwise.topology.machine.topo_matrix import UNKNOWN_MODEL, made_up_uuid
from linkwise.topology.vendors.amd import AMD, model_of_gcn
from linkwise.topology.vendors.known import VENDORS
from linkwise.topology.vendors.nvidia import NVIDIA
from linkwise.topology.vendors.vendor import Vendor

UNTOLD = "rests on a dump of NCCL or RCCL, which shows the GPUs of one job and no host bridges"

_DUMP = re.compile(r"<system[\s>].*?(?:</system>|\Z)", re.DOTALL)
_MOST_CHARACTERS = 1 << 20  # a dump of 8 GPUs and 8 cards has 14,000
_MOST_DEEP = 32  # elements in each other
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_NVSWITCH = "0x068000"  # its PCI class, also for one that a virtual machine does not see


@dataclass(frozen=True, slots=True)
class _Element:
    tag: str
    attributes: Mapping[str, str]
    line: int
    above: tuple["_Element", ...]

    def refuse(self, name: str, wanted: str) -> Never:
        raise MachineError(
            f"NCCL dump, line {self.line}, {self.tag}: {name} {self.attributes.get(name)!r}: "
            f"expected {wanted}"
        )

    def number(self, name: str, least: int, most: int) -> int:
        text = self.attributes.get(name, "")
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            self.refuse(name, f"a number from {least} to {most}")
        return int(text)

    @property
    def devices(self) -> tuple[str, ...]:
        """The bus ids of the PCI devices that this is in, from the CPU down."""
        return tuple(each.attributes.get("busid", "") for each in self.above if each.tag == "pci")

    @property
    def numa_node(self) -> int:
        cpus = [each for each in self.above if each.tag == "cpu"]
        return cpus[0].number("numaid", -1, 9999) if cpus else -1


def is_nccl_dump(text: str) -> bool:
    return _DUMP.search(text) is not None


def read_nccl_dump(text: str, *, model: str, node: str) -> Machine:
    """Return the machine in a dump. Raises MachineError with the line of what it cannot read."""
    elements = _elements(text)
    found = [each for each in elements if each.tag == "gpu" and each.devices]
    if not found:
        raise MachineError("NCCL dump: no gpu in a pci: expected one or more")
    found.sort(key=lambda each: each.number("dev", 0, 9999))
    vendor = _vendor(found[0])
    gpus = tuple(_gpu(each, vendor, model, node) for each in found)
    direct, to_switch = _links(elements, found)
    every = range(len(found))
    pcie = [[SELF if a is b else _closeness(a, b).name for b in found] for a in found]
    words = [[*row] for row in pcie]
    switched: dict[tuple[int, int], bool] = {}
    for a, b in ((a, b) for a in every for b in every if a != b):
        own = direct[a, b] or direct[b, a]
        switched[a, b] = not own and bool(to_switch[a] and to_switch[b])
        count = min(to_switch[a], to_switch[b]) if switched[a, b] else direct[a, b]
        words[a][b] = f"{vendor.link_prefix}{count}" if count else pcie[a][b]
    links = zip(combinations(every, 2), links_of(gpus, words, pcie), strict=True)
    return Machine(
        gpus=gpus,
        links=tuple(
            replace(each, through_switch=each.through_switch or switched[pair])
            for pair, each in links
        ),
        nics=tuple(_nic(each, found) for each in elements if each.tag == "net" and each.devices),
        vendor=vendor.name,
    )


def _elements(text: str) -> list[_Element]:
    """Return the elements of the dump in *text*. What stands around it, like a prompt, is left
    out."""
    if len(text) > _MOST_CHARACTERS:
        raise MachineError(f"NCCL dump: {len(text)} characters: expected <= {_MOST_CHARACTERS}")
    dump = _DUMP.search(text)
    assert dump is not None, "is_nccl_dump"
    elements: list[_Element] = []
    above: list[_Element] = []
    parser = expat.ParserCreate()

    def start(tag: str, attributes: dict[str, str]) -> None:
        elements.append(_Element(tag, attributes, parser.CurrentLineNumber, tuple(above)))
        above.append(elements[-1])
        if len(above) > _MOST_DEEP:
            elements[-1].refuse("busid", f"at most {_MOST_DEEP} elements in each other")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _tag: above.pop()
    try:
        parser.Parse("\n" * text.count("\n", 0, dump.start()) + dump[0], True)
    except expat.ExpatError as error:
        what = expat.errors.messages[error.code]
        raise MachineError(f"NCCL dump, line {error.lineno}: {what}: expected XML") from None
    return elements


def _vendor(gpu: _Element) -> Vendor:
    pci = gpu.above[-1]
    if "vendor" not in pci.attributes:  # before NCCL 2.9
        return AMD if "gcn" in gpu.attributes else NVIDIA
    known = {f"0x{vendor.pci_vendor}": vendor for vendor in VENDORS.values()}
    if pci.attributes["vendor"] not in known:
        pci.refuse("vendor", f"{' or '.join(known)} of a GPU")
    return known[pci.attributes["vendor"]]


def _gpu(found: _Element, vendor: Vendor, model: str, node: str) -> Gpu:
    """The model is *model* if that is known, else what the dump has of it: AMD's architecture."""
    if _vendor(found) is not vendor:
        found.above[-1].refuse("vendor", f"GPUs of {vendor.name} only, as the first is")
    if vendor is AMD and model == UNKNOWN_MODEL:
        model = model_of_gcn(found.attributes.get("gcn", "")) or model
    return Gpu(
        uuid=made_up_uuid(node, "nccl-dump", found.devices[-1]),
        index=found.number("dev", 0, 9999),
        model=model,
        memory_mib=0,
        pci_bus_id=found.devices[-1],
        numa_nodes=(found.numa_node,),
        compute_capability=divmod(found.number("sm", 10, 999), 10) if vendor is NVIDIA else None,
    )


def _links(
    elements: list[_Element], gpus: list[_Element]
) -> tuple[Counter[tuple[int, int]], Counter[int]]:
    """Return the links from one GPU to another, and those from a GPU to switches, by positions."""
    places = {each.devices[-1]: place for place, each in enumerate(gpus)}
    direct, to_switch = Counter[tuple[int, int]](), Counter[int]()
    for link in elements:
        if link.tag in ("nvlink", "xgmi") and link.devices and link.devices[-1] in places:
            own, target = places[link.devices[-1]], link.attributes.get("target", "")
            count = link.number("count", 1, MAX_NVLINKS)
            if target in places:
                direct[own, places[target]] += count
            elif link.attributes.get("tclass") == _NVSWITCH:
                to_switch[own] += count
    return direct, to_switch


def _closeness(one: _Element, other: _Element) -> LinkClass:
    """Dumps leave host bridges out: devices of one node and no common switch count as NODE."""
    if one.numa_node != other.numa_node:
        return LinkClass.SYS
    mine, others = one.devices[:-1], other.devices[:-1]
    if mine[:1] and mine[:1] == others[:1]:
        return LinkClass.PIX if mine == others else LinkClass.PXB
    return LinkClass.SYS if one.numa_node < 0 else LinkClass.NODE


def _nic(card: _Element, gpus: list[_Element]) -> Nic:
    closeness = tuple(_closeness(card, gpu) for gpu in gpus)
    speed = card.number("speed", 0, 10**8) // 1000 or None  # of Mbit/s
    return Nic(card.attributes.get("name", ""), closeness, speed)
