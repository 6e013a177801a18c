"""Reads and prints the table of `nvidia-smi topo -m`, so that any server can be judged.

It accepts tables with tabs turned into spaces, terminal colours, Windows line ends, and the command
above them. The table has no models, memory or uuids: the caller gives the model, or it stays "GPU",
with 0 MiB and generated uuids.

Real tables contain: NUMA nodes as a list (`0-1`), `N/A`, or in another order than the GPUs; SOC for
SYS; NIC columns named `mlx5_0` or `NIC0` with a legend below; GPU numbers with gaps.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from uuid import NAMESPACE_DNS, uuid5

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.link_words import SELF, is_word, links_of, read_pcie_class, word_of
from linkwise.topology.machine.model import MAX_GPUS, Gpu, LinkClass, Machine, Nic
from linkwise.topology.machine.peer_table import split_peers

UNKNOWN_MODEL = "GPU"
NOT_KNOWN = "N/A"

_NAMESPACE = uuid5(NAMESPACE_DNS, "linkwise.dev")
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GPU_NAME = re.compile(r"GPU([0-9]{1,4})")
_AFFINITIES = re.compile(r"\b(CPU Affinity|NUMA Affinity|GPU NUMA ID)\b")
_NUMA_RANGE = re.compile(r"(-?[0-9]{1,4})(?:-([0-9]{1,4}))?")
_NIC_LEGEND = re.compile(r"\b(NIC[0-9]+)\s*:\s*(\S.*?)\s*(?=\bNIC[0-9]+\s*:|$)", re.MULTILINE)


def made_up_uuid(*path: object) -> str:
    """Return a GPU uuid that depends on *path* alone."""
    return f"GPU-{uuid5(_NAMESPACE, '/'.join(map(str, path)))}"


@dataclass(frozen=True, slots=True)
class _Table:
    devices: tuple[str, ...]
    affinities: tuple[str, ...]
    rows: Mapping[str, Sequence[str]]  # device -> its cells, affinities included
    legend: Mapping[str, str]  # NIC0 -> mlx5_0


def read_matrix(text: str, *, model: str = UNKNOWN_MODEL, node: str = "") -> Machine:
    """Return the machine in *text*: all GPUs of one *model*, with uuids generated from *node*.

    Beside the table there may be that of `nvidia-smi topo -p2p r`.

    Raises MachineError with the row and the column of what it cannot read.
    """
    text, peers = split_peers(_TERMINAL_CODE.sub("", text))
    table = _read_table(text)
    names = sorted((name for name in table.devices if _GPU_NAME.fullmatch(name)), key=_index)
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
        for name in table.devices
        if name not in names
    )
    of_positions = {
        (one, other): peers[pair]
        for (one, first), (other, second) in combinations(enumerate(gpus), 2)
        if (pair := frozenset((first.index, second.index))) in peers
    }
    return Machine(gpus=gpus, links=links_of(gpus, words, None, of_positions), nics=nics)


def write_matrix(machine: Machine) -> str:
    """Return the table as `nvidia-smi topo -m` would print it; `read_matrix` reads it back.

    CPUs are unknown and printed as N/A. The rows of the NICs repeat their columns and are left out.
    """
    gpu_names = [f"GPU{gpu.index}" for gpu in machine.gpus]
    nic_names = [f"NIC{position}" for position in range(len(machine.nics))]
    lines = [["", *gpu_names, *nic_names, "CPU Affinity", "NUMA Affinity"]]
    for row, gpu in enumerate(machine.gpus):
        lines.append(
            [
                gpu_names[row],
                *(
                    f" {SELF} " if row == column else word_of(machine.link(row, column))
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


def _read_table(text: str) -> _Table:
    lines = [_TERMINAL_CODE.sub("", line) for line in text.splitlines()]
    header = next((number for number, line in enumerate(lines) if _is_header(line)), None)
    if header is None:
        raise MachineError("table: no header: expected a line that begins GPU0 GPU1 ...")
    devices, affinities = _read_header(lines[header])
    rows: dict[str, Sequence[str]] = {}
    for line in lines[header + 1 :]:
        words = line.split()
        if line.strip().endswith("Legend:"):
            break
        if not words or not (words[0] in devices or _GPU_NAME.fullmatch(words[0])):
            continue
        name, *cells = words
        _check_row(name, cells, devices, affinities, rows)
        rows[name] = cells
    legend = dict(_NIC_LEGEND.findall("\n".join(lines[header + 1 :])))
    return _Table(devices, affinities, rows, legend)


def _is_header(line: str) -> bool:
    """True if *line* names columns: a GPU first, and no word that only a cell holds."""
    words = line.split()
    return bool(words) and bool(_GPU_NAME.fullmatch(words[0])) and not any(map(is_word, words))


def _read_header(line: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = _AFFINITIES.split(line)[0].split()
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise MachineError(f"table, header: column {sorted(twice)[0]} appears twice")
    return tuple(names), tuple(_AFFINITIES.findall(line))


def _check_row(
    name: str,
    cells: Sequence[str],
    devices: Sequence[str],
    affinities: Sequence[str],
    rows: Mapping[str, object],
) -> None:
    if name in rows:
        raise MachineError(f"table: row {name} appears twice")
    if name not in devices:
        raise MachineError(f"table: row {name}: expected one of the columns {' '.join(devices)}")
    if len(cells) < len(devices):
        column = devices[len(cells)]
        raise MachineError(f"table, row {name}, column {column}: missing: expected a cell")
    most = len(devices) + len(affinities)
    if len(cells) > most:
        raise MachineError(f"table, row {name}: {len(cells)} cells: expected {most} at most")


def _cell(table: _Table, row: str, column: str) -> str:
    return table.rows[row][table.devices.index(column)]


def _closeness(table: _Table, gpus: Sequence[str], nic: str) -> tuple[LinkClass, ...]:
    return tuple(
        read_pcie_class(_cell(table, gpu, nic), f"table, row {gpu}, column {nic}") for gpu in gpus
    )


def _numa_nodes(table: _Table, name: str) -> tuple[int, ...]:
    """Read `3`, `0-1`, `0,2`, `-1` or `N/A` of the NUMA column. Drivers before 2020 print no such
    column: GPUs of the same CPUs then count as one node."""
    if "NUMA Affinity" not in table.affinities:
        return _nodes_by_cpus(table, name)
    cell = _affinity(table, name, "NUMA Affinity")
    if cell is None:
        return ()
    nodes: list[int] = []
    for part in cell.split(","):
        match = _NUMA_RANGE.fullmatch(part)
        if match is None or (match[2] and not 0 <= int(match[1]) <= int(match[2])):
            raise MachineError(
                f"table, row {name}, column NUMA Affinity: {cell!r}: "
                "expected nodes like 3, 0-1 or N/A"
            )
        first = int(match[1])
        nodes += range(first, int(match[2] or first) + 1)
    return tuple(dict.fromkeys(nodes))


def _nodes_by_cpus(table: _Table, name: str) -> tuple[int, ...]:
    """Number the CPU affinities by their first row; empty if the row has none."""
    own = _affinity(table, name, "CPU Affinity")
    cells = (_affinity(table, device, "CPU Affinity") for device in table.devices)
    known = list(dict.fromkeys(cell for cell in cells if cell is not None))
    return () if own is None else (known.index(own),)


def _affinity(table: _Table, name: str, column: str) -> str | None:
    """Return a cell to the right of the devices; None if it is missing or not known."""
    cells = table.rows.get(name, ())[len(table.devices) :]
    place = table.affinities.index(column) if column in table.affinities else len(cells)
    return cells[place] if place < len(cells) and cells[place] != NOT_KNOWN else None
