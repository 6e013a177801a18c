"""Reads and prints the table of `nvidia-smi topo -m`, so that any server can be judged.

pasted_table.py finds it in what people paste. The table has no models, memory or uuids: the caller
gives the model, or it stays "GPU", with 0 MiB and generated uuids.

Real tables contain: NUMA nodes as a list (`0-1`), `N/A`, or in another order than the GPUs; SOC for
SYS; NIC columns named `mlx5_0` or `NIC0` with a legend below; GPU numbers with gaps.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from uuid import NAMESPACE_DNS, uuid5

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.hardware import facts_of, facts_of_gpu
from linkwise.topology.machine.link_words import (
    SELF,
    links_of,
    read_pcie_class,
    vendor_of_words,
    word_of,
)
from linkwise.topology.machine.model import MAX_GPUS, Gpu, LinkClass, Machine, Nic
from linkwise.topology.machine.other_prints import (
    MATRIX_PCI,
    is_matrix_pci,
    no_table,
    other_print,
)
from linkwise.topology.machine.pasted_table import (
    AFFINITY_WORDS,
    NOT_KNOWN,
    NUMA_COLUMN,
    PrintedTable,
    plain_text,
    read_table,
)
from linkwise.topology.machine.peer_table import split_peers
from linkwise.topology.vendors.known import vendor_of
from linkwise.topology.vendors.nvidia import NVIDIA
from linkwise.topology.vendors.vendor import UNKNOWN

UNKNOWN_MODEL = "GPU"

_NAMESPACE = uuid5(NAMESPACE_DNS, "linkwise.dev")
_GPU_NAME = re.compile(r"GPU([0-9]{1,4})")
_NUMA_RANGE = re.compile(r"(-?[0-9]{1,4})(?:-([0-9]{1,4}))?")


def made_up_uuid(*path: object) -> str:
    """Return a GPU uuid that depends on *path* alone."""
    return f"GPU-{uuid5(_NAMESPACE, '/'.join(map(str, path)))}"


def read_matrix(text: str, *, model: str = UNKNOWN_MODEL, node: str = "") -> Machine:
    """Return the machine in *text*: all GPUs of one *model*, with uuids generated from *node*.

    Beside the table there may be that of `nvidia-smi topo -p2p r`.

    Raises MachineError with the row and the column of what it cannot read.
    """
    text, peers = split_peers(plain_text(text))
    table = _table(text)
    names = sorted((name for name in table.header.devices if _GPU_NAME.fullmatch(name)), key=_index)
    if len(names) > MAX_GPUS:
        raise MachineError(f"table: {len(names)} GPUs: expected 1 to {MAX_GPUS}")
    for name in names:
        if name not in table.rows:
            raise MachineError(f"table: no row {name}: expected a row for every GPU column")
    gpus = tuple(
        Gpu(
            uuid=made_up_uuid(node, "topo-matrix", _index(name)),
            index=_index(name),
            model=model,
            memory_mib=0,
            numa_nodes=_numa_nodes(table, name),
        )
        for name in names
    )
    words = [[_cell(table, row, column) for column in names] for row in names]
    nics = tuple(
        Nic(table.legend.get(name, name), _closeness(table, names, name))
        for name in table.header.devices
        if name not in names
    )
    of_positions = {
        (one, other): peers[pair]
        for (one, first), (other, second) in combinations(enumerate(gpus), 2)
        if (pair := frozenset((first.index, second.index))) in peers
    }
    machine = Machine(
        gpus=gpus,
        links=links_of(gpus, words, None, of_positions),
        nics=nics,
        vendor=vendor_of_words(words).name,
    )
    if lacks_nvlinks(machine) and is_matrix_pci(text):
        raise MachineError(MATRIX_PCI)
    return machine


def of_model(machine: Machine, model: str) -> Machine:
    """Return the machine of a table as `read_matrix` would have with this *model*, and with the
    memory that such GPUs have."""
    facts = facts_of(model)
    gpus = tuple(
        replace(
            gpu,
            model=model,
            memory_mib=facts.memory_mib or 0,
            compute_capability=facts.compute_capability,
        )
        for gpu in machine.gpus
    )
    every, vendor = range(len(gpus)), vendor_of(machine)
    barred = {(a, b): False for a, b, link in machine.pairs() if not link.peer_to_peer}
    words = [
        [SELF if a == b else word_of(machine.link(a, b), vendor) for b in every] for a in every
    ]
    pcie = [[SELF if a == b else machine.link(a, b).pcie.name for b in every] for a in every]
    links = tuple(
        replace(link, through_switch=link.through_switch or known.through_switch)
        for link, known in zip(links_of(gpus, words, pcie, barred), machine.links, strict=True)
    )
    return replace(machine, gpus=gpus, links=links)


def lacks_nvlinks(machine: Machine) -> bool:
    """True if the machine has no NVLink, although GPUs of its models may have some. AMD's prints
    leave no links out."""
    chips = [facts_of_gpu(gpu) for gpu in machine.gpus]
    may_have = vendor_of(machine) is NVIDIA and any(
        chip is UNKNOWN or chip.nvlinks for chip in chips
    )
    return may_have and bool(machine.links) and not any(link.nvlinks for link in machine.links)


def write_matrix(machine: Machine) -> str:
    """Return the table as `nvidia-smi topo -m` would print it; `read_matrix` reads it back.

    CPUs are unknown and printed as N/A. The rows of the NICs repeat their columns and are left out.
    """
    vendor = vendor_of(machine)
    gpu_names = [f"GPU{gpu.index}" for gpu in machine.gpus]
    nic_names = [f"NIC{position}" for position in range(len(machine.nics))]
    lines = [["", *gpu_names, *nic_names, "CPU Affinity", "NUMA Affinity"]]
    for row, gpu in enumerate(machine.gpus):
        lines.append(
            [
                gpu_names[row],
                *(
                    f" {SELF} " if row == column else word_of(machine.link(row, column), vendor)
                    for column in range(len(machine.gpus))
                ),
                *(nic.closeness[row].name for nic in machine.nics),
                NOT_KNOWN,
                ",".join(map(str, gpu.numa_nodes)) or NOT_KNOWN,
            ]
        )
    text = "\n".join(_aligned(lines)) + "\n"
    if machine.nics:
        legend = zip(nic_names, machine.nics, strict=True)
        text += "\nNIC Legend:\n\n" + "".join(f"  {name}: {nic.name}\n" for name, nic in legend)
    return text


def _aligned(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _index(name: str) -> int:
    return int(name.removeprefix("GPU"))


def _table(text: str) -> PrintedTable:
    table = read_table(text)
    if table is not None and table.rows:
        return table
    other = other_print(text)
    if table is None or other is not None:
        raise MachineError(other or no_table(text))
    return table  # a header alone


def _cell(table: PrintedTable, row: str, column: str) -> str:
    return table.rows[row].links[table.header.devices.index(column)]


def _closeness(table: PrintedTable, gpus: Sequence[str], nic: str) -> tuple[LinkClass, ...]:
    return tuple(
        read_pcie_class(_cell(table, gpu, nic), f"table, row {gpu}, column {nic}") for gpu in gpus
    )


def _numa_nodes(table: PrintedTable, name: str) -> tuple[int, ...]:
    """Read `3`, `0-1`, `0,2`, `-1` or `N/A` of the NUMA column. Drivers before 2020 print no such
    column: GPUs of the same CPUs then count as one node."""
    if NUMA_COLUMN not in table.header.affinities:
        return _nodes_by_cpus(table, name)
    cell = _affinity(table, name, NUMA_COLUMN)
    if cell is None:
        return ()
    nodes: list[int] = []
    for part in cell.split(","):
        match = _NUMA_RANGE.fullmatch(part)
        if match is None or (match[2] and not 0 <= int(match[1]) <= int(match[2])):
            raise MachineError(
                f"table, row {name}, column {NUMA_COLUMN}: {cell!r}: "
                f"expected {AFFINITY_WORDS[NUMA_COLUMN]}"
            )
        first = int(match[1])
        nodes += range(first, int(match[2] or first) + 1)
    return tuple(dict.fromkeys(nodes))


def _nodes_by_cpus(table: PrintedTable, name: str) -> tuple[int, ...]:
    """Number the CPU affinities by their first row; empty if the row has none."""
    own = _affinity(table, name, "CPU Affinity")
    cells = (_affinity(table, device, "CPU Affinity") for device in table.rows)
    known = list(dict.fromkeys(cell for cell in cells if cell is not None))
    return () if own is None else (known.index(own),)


def _affinity(table: PrintedTable, name: str, column: str) -> str | None:
    """Return a cell to the right of the devices; None if it is missing or not known."""
    cells, columns = table.rows[name].affinities, table.header.affinities
    place = columns.index(column) if column in columns else len(cells)
    return cells[place] if place < len(cells) and cells[place] != NOT_KNOWN else None
