"""Reads `rocm-smi --showtopo` and `amd-smi topology`, the prints of AMD's GPUs.

Both are square tables below titles: a weight, a type and more for each pair of GPUs. rocm-smi names
GPUs by number and shows their NUMA nodes. amd-smi names them by PCI bus id and shows bandwidths,
which count the xGMI links. Neither names models.
"""

import re
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Never

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.link_words import SELF, links_of
from linkwise.topology.machine.model import MAX_GPUS, MAX_NVLINKS, Gpu, Machine
from linkwise.topology.machine.pasted_table import plain_text
from linkwise.topology.machine.topo_matrix import made_up_uuid
from linkwise.topology.vendors.amd import AMD, direct_links

_TITLE = re.compile(r"\b(?:([A-Z][A-Za-z ]*) between two GPUs|([A-Z][A-Z -]*[A-Z]) TABLE:)")
_GPU = re.compile(r"GPU[0-9]{1,4}|[0-9a-f]{4,8}(?::[0-9a-f]{2}){2}\.[0-7]")
_NUMA = re.compile(r"GPU\s*\[?([0-9]{1,4})\]?\s*:\s*\(Topology\) Numa Node:\s*(\S*)")
_NODE = re.compile(r"-?[0-9]{1,4}")
_BANDWIDTH = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_WEIGHT, _KIND, _SPEED, _ACCESS = "weight", "link type", "numa bw", "access"
_HOP = 15  # the weight of one xGMI hop
_ONE_CPU = 40  # the weight of PCIe between GPUs of one CPU
_UNCOUNTED = (
    "does not show how many xGMI links join two GPUs, so each pair counts as having one; the "
    "bandwidths of `amd-smi topology` show it"
)


@dataclass(slots=True)
class _Print:
    """The tables by title, with each row's line and cells by the name of its GPU."""

    tool: str
    names: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, tuple[int, list[str]]]] = field(default_factory=dict)
    numa: dict[str, int] = field(default_factory=dict)

    def cell(self, title: str, row: int, column: int) -> str:
        return self.tables[title][self.names[row]][1][column]

    def refuse(self, line: int, found: str, wanted: str) -> Never:
        """*line* is 0 for what is missing."""
        where = f"{self.tool}, line {line}" if line else self.tool
        raise MachineError(f"{where}: {found}: expected {wanted}")

    def bad(self, title: str, row: int, column: int, wanted: str) -> Never:
        name, cell = self.names[row], self.cell(title, row, column)
        place = f"{title}, row {name}, column {self.names[column]}"
        self.refuse(self.tables[title][name][0], f"{place}: {cell!r}", wanted)


def is_amd_print(text: str) -> bool:
    return _TITLE.search(text) is not None


def read_amd_print(text: str, *, model: str, node: str) -> tuple[Machine, str]:
    """Return the machine, and what the print cannot tell of it: a clause without a subject.

    Raises MachineError with the line of what it cannot read.
    """
    printed = _read_tables(plain_text(text))
    gpus = tuple(
        Gpu(
            uuid=made_up_uuid(node, printed.tool, name),
            index=place if ":" in name else int(name[3:]),
            model=model,
            memory_mib=0,
            pci_bus_id=name if ":" in name else None,
            numa_nodes=(printed.numa[name],) if name in printed.numa else (),
        )
        for place, name in enumerate(printed.names)
    )
    words = [[SELF for _ in gpus] for _ in gpus]
    peers: dict[tuple[int, int], bool] = {}
    counted = True
    for a, b in permutations(range(len(gpus)), 2):
        links, known = _links(printed, a, b)
        counted &= known
        one, other = gpus[a].numa_node, gpus[b].numa_node
        unknown = one is None or other is None
        near = printed.cell(_WEIGHT, a, b) == f"{_ONE_CPU}" if unknown else one == other
        words[a][b] = f"{AMD.link_prefix}{links}" if links else ("NODE" if near else "SYS")
        if _ACCESS in printed.tables:
            if printed.cell(_ACCESS, a, b) not in ("ENABLED", "DISABLED"):
                printed.bad(_ACCESS, a, b, "ENABLED or DISABLED")
            pair = min(a, b), max(a, b)
            peers[pair] = peers.get(pair, True) and printed.cell(_ACCESS, a, b) == "ENABLED"
    machine = Machine(gpus=gpus, links=links_of(gpus, words, None, peers), vendor=AMD.name)
    untold = [] if counted else [_UNCOUNTED]
    untold += [] if printed.numa else ["shows no NUMA nodes"]
    return machine, f"rests on `{printed.tool}`, which {' and '.join(untold)}" if untold else ""


def _read_tables(text: str) -> _Print:
    of_rocm = any(match[1] for match in _TITLE.finditer(text))
    printed = _Print("rocm-smi --showtopo" if of_rocm else "amd-smi topology")
    title = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        first = next((n for n, word in enumerate(words) if _GPU.fullmatch(word)), len(words))
        if found := _TITLE.search(line):
            title = (found[1] or found[2]).lower()
            if printed.tables.setdefault(title, {}):
                printed.refuse(number, f"a second table of the {title}", "one")
        elif numa := _NUMA.search(line):
            if not _NODE.fullmatch(numa[2]):
                printed.refuse(number, f"NUMA node {numa[2]!r}", "a number")
            printed.numa[f"GPU{numa[1]}"] = int(numa[2])
        elif title and words[first:]:
            _add_line(printed, title, number, words[first:])
    wanted = {_WEIGHT, _KIND, *printed.tables.keys() & {_SPEED, _ACCESS}}
    for title, name in product(sorted(wanted), printed.names or ["GPU0"]):
        if name not in printed.tables.get(title, {}):
            printed.refuse(0, f"{title}: no row {name}", "a row for every GPU")
    return printed


def _add_line(printed: _Print, title: str, line: int, words: list[str]) -> None:
    """Add a header or a row."""
    names, (name, *cells) = printed.names, words
    if all(map(_GPU.fullmatch, words)):
        if len(words) > MAX_GPUS:
            printed.refuse(line, f"{len(words)} GPUs", f"1 to {MAX_GPUS}")
        if words != (names or sorted(set(words), key=words.index)):
            printed.refuse(line, f"columns {' '.join(words)}", " ".join(names) or "each GPU once")
        printed.names = words
        return
    if name not in names or name in printed.tables[title]:
        printed.refuse(line, f"row {name}", f"each of the columns {' '.join(names)} once")
    if len(cells) != len(names):
        printed.refuse(line, f"row {name}: {len(cells)} cells", f"{len(names)}, one for each GPU")
    printed.tables[title][name] = line, cells


def _links(printed: _Print, a: int, b: int) -> tuple[int, bool]:
    """Return the xGMI links of a pair, 0 without a link of its own, and whether that is their
    number, and not what they count as."""
    kind, weight = printed.cell(_KIND, a, b), printed.cell(_WEIGHT, a, b)
    if kind not in ("XGMI", "PCIE"):
        printed.bad(_KIND, a, b, "XGMI or PCIE")
    if not _NODE.fullmatch(weight) or int(weight) < 1:
        printed.bad(_WEIGHT, a, b, "a number above 0")
    if kind == "PCIE":
        return 0, True
    if int(weight) % _HOP:
        wanted = f"{_HOP} for each hop of xGMI: GPUs that are not partitioned"
        printed.bad(_WEIGHT, a, b, wanted)
    speed = printed.cell(_SPEED, a, b) if _SPEED in printed.tables else "N/A"
    found = _BANDWIDTH.fullmatch("0-0" if speed == "N/A" else speed)
    links = direct_links(int(weight), int(found[1]), int(found[2])) if found else None
    if found is None or links is None:
        wanted = f"N/A, or MB/s like 50000-200000, the second 1 to {MAX_NVLINKS} times the first"
        printed.bad(_SPEED, a, b, wanted)
    return links, not links or found[1] != "0"
