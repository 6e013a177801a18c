"""Recorded machines: real servers kept as data, to use by name wherever a machine is needed.

With them everything runs without a GPU. `machines.json` holds the facts and where each was seen.
link_words.py's rules derive what a source does not say. Other facts stay unknown (a bus id, a NUMA
node, the memory of a model without an exact name).
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Literal
from uuid import NAMESPACE_DNS, uuid5

import msgspec

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.hardware import facts_of
from linkwise.topology.machine.link_words import links_of, read_pcie_class
from linkwise.topology.machine.model import Gpu, Machine, Nic
from linkwise.topology.machine.prints import read_print
from linkwise.topology.machine.topo_matrix import UNKNOWN_MODEL, made_up_uuid

Kind = Literal["real", "partial", "declared", "fixture", "mock"]


CAVEATS: Mapping[Kind, str] = {
    "partial": "rests on links of which such a machine printed some, and the others are inferred",
    "declared": "rests on links that a vendor's file or specification declares: no such machine "
    "was read",
    "fixture": "rests on links from another program's test: no such machine was read",
    "mock": "rests on links that a simulator invented: there is no such machine",
}
"""What to know of a record that is not `real`: not all its links were seen printed."""


class RecordedGpu(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    model: str
    pci_bus_id: str | None = None
    numa: int | tuple[int, ...] | None = None


class FabricDomain(msgspec.Struct, frozen=True):
    """NVLinks that leave the machine, which is one of *nodes* in one fabric."""

    nodes: int


class RecordedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `machines.json`; its other fields are for people."""

    title: str
    kind: Kind
    source: str
    gpus: tuple[RecordedGpu, ...]
    links: tuple[tuple[str, ...], ...] | None = None  # as `nvidia-smi topo -m` prints them
    pcie: tuple[tuple[str, ...], ...] | None = None  # as `nvidia-smi topo -mp` prints them
    nics: dict[str, tuple[str, ...]] = {}
    notes: str = ""
    domain: FabricDomain | None = None
    vendor: str = "nvidia"


class _MachinesFile(msgspec.Struct, frozen=True):
    machines: dict[str, RecordedMachine]


@cache
def records() -> dict[str, RecordedMachine]:
    """Return all recorded machines with their sources, by name."""
    text = files("linkwise.topology").joinpath("machines.json").read_bytes()
    return msgspec.json.decode(text, type=_MachinesFile).machines


def machine_names() -> tuple[str, ...]:
    return tuple(records())


def recorded_machine(name: str, *, node: str = "") -> Machine:
    """Return the recorded machine *name*; its uuids depend on *node* alone.

    Raises MachineError with all names if it does not exist.
    """
    return _pick(records(), name, node)


def is_printed(text: str) -> bool:
    """True if a file's text is a print (prints.py), maybe inside other JSON, and not the format of
    `machines.json`."""
    in_json = "GPU0" in text and '"machines"' not in text
    return in_json or not text.lstrip().startswith("{")


def read_machine_file(
    text: str, name: str | None = None, *, model: str | None = None, node: str = ""
) -> Machine:
    """Return a machine from a file's text: the format of `machines.json`, or a print.

    *name* picks one of several; *model* adds what a print does not say. Raises MachineError.
    """
    if is_printed(text):
        if name is not None:
            raise MachineError(f"#{name}: a table holds one machine without a name: leave it out")
        return read_print(text, model=UNKNOWN_MODEL if model is None else model, node=node).machine
    if model is not None:
        raise MachineError("model: a machines file says the models itself: leave it out")
    try:
        machines = msgspec.json.decode(text, type=_MachinesFile).machines
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise MachineError(f"machines file: {error}") from None
    if not machines:
        raise MachineError("machines file: no machine in it: expected one or more")
    if name is None:
        if len(machines) != 1:
            raise MachineError(
                f"machines file: {len(machines)} machines: expected one, or FILE#NAME with one of: "
                + ", ".join(machines)
            )
        (name,) = machines
    return _pick(machines, name, node)


def _pick(machines: dict[str, RecordedMachine], name: str, node: str) -> Machine:
    record = machines.get(name)
    if record is None:
        raise MachineError(f"machine {name!r}: not known: expected one of: {', '.join(machines)}")
    try:
        return _build(record, name, node)
    except MachineError as error:
        raise MachineError(f"machine {name!r}: {error}") from None


def _build(record: RecordedMachine, name: str, node: str) -> Machine:
    gpus = tuple(
        Gpu(
            uuid=made_up_uuid(node, name, gpu.index),
            index=gpu.index,
            model=gpu.model,
            memory_mib=facts_of(gpu.model).memory_mib or 0,
            pci_bus_id=gpu.pci_bus_id,
            numa_nodes=_numa_nodes(gpu),
            compute_capability=facts_of(gpu.model).compute_capability,
        )
        for gpu in record.gpus
    )
    nics = tuple(
        Nic(
            nic,
            tuple(read_pcie_class(word, f"NIC {nic}, entry {n}") for n, word in enumerate(words)),
        )
        for nic, words in record.nics.items()
    )
    links = links_of(gpus, record.links, record.pcie)
    return Machine(
        gpus=gpus,
        links=links,
        nics=nics,
        clique=_clique(record, name),
        vendor=record.vendor,
    )


def _numa_nodes(gpu: RecordedGpu) -> tuple[int, ...]:
    if gpu.numa is None:
        return ()
    return (gpu.numa,) if isinstance(gpu.numa, int) else gpu.numa


def _clique(record: RecordedMachine, name: str) -> str | None:
    """Return one fabric for all simulated machines of a kind, whatever their node."""
    return None if record.domain is None else f"{uuid5(NAMESPACE_DNS, name)}.1"
