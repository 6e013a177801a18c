"""What a text is that has no table of `nvidia-smi topo -m`: what people print in its place."""

import re
from collections.abc import Iterable

WANTED = "expected what `nvidia-smi topo -m` prints"
MATRIX_PCI = f"table: this is `nvidia-smi topo -mp`, which leaves NVLinks out: {WANTED}"
P2P = f"table: this is `nvidia-smi topo -p2p`: {WANTED}"

_AMD = "table: this is {} of AMD GPUs: " + WANTED + ", or its tables with their titles"
_PRINTS = tuple(
    (re.compile(pattern, re.MULTILINE), said)
    for pattern, said in (
        (
            r"ROCm System Management|(?:Weight|Hops|Link Type|accessible) between two GPUs"
            r"|\(Topology\)|^\W*GPU0\s+0\s",
            _AMD.format("`rocm-smi --showtopo`"),
        ),
        (
            r"\b(?:ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW|CACHE COHERENCY|ATOMICS|DMA|BI-DIRECTIONAL)"
            r" TABLE\b|\bXGMI\b",
            _AMD.format("`amd-smi topology`"),
        ),
        (r"^\W*Link \d+: ", f"table: this is `nvidia-smi nvlink`: {WANTED}"),
        (
            r"GPU \d+: .+\(UUID: (?:GPU|MIG)-",
            f"table: this is `nvidia-smi -L`, the list of GPUs: {WANTED}",
        ),
        (r"\| NVIDIA-SMI \d", f"table: this is `nvidia-smi`, the state of GPUs: {WANTED}"),
    )
)
P2P_OK, P2P_UNKNOWN = "OK", "U"
P2P_WORDS = frozenset({P2P_OK, "CNS", "GNS", "TNS", "NS", "DR", P2P_UNKNOWN})
_MATRIX_PCI_COMMAND = re.compile(r"\btopo\s+(?:-mp|--matrix_pci)\b")
_MATRIX_COMMAND = re.compile(r"\btopo\s+(?:-m|--matrix)\b")
_SHOWN = 60  # characters


def other_print(text: str) -> str | None:
    """Return what *text*, which has no table, is instead; None if that is not known."""
    return next((said for pattern, said in _PRINTS if pattern.search(text)), None)


def no_table(text: str) -> str:
    """Say that *text* has no table, by its first line."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    shown = line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
    return f"table: none in {shown!r}: {WANTED}" if line else f"table: no text: {WANTED}"


def is_p2p(cells: Iterable[str]) -> bool:
    """True if the cells of rows are of `nvidia-smi topo -p2p`."""
    return not P2P_WORDS.isdisjoint(cells)


def is_matrix_pci(text: str) -> bool:
    """True if a table without NVLinks says that it is `nvidia-smi topo -mp`: by the command, or by
    its legend, which has no line for NV#. Drivers that know NODE print that line with `-m`."""
    of_pci = "NODE" in text and bool(re.search(r"\bPIX\s+=", text)) and "NV#" not in text
    said = _MATRIX_PCI_COMMAND.search(text) and not _MATRIX_COMMAND.search(text)
    return of_pci or bool(said)
