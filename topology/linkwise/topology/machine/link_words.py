"""Links as the words of `nvidia-smi topo`, and tables of these words.

Recorded machines and printed tables use the same words, so this module reads both. Four rules
settle what such a table leaves open:

* `topo -m` shows only the NVLinks of a pair that has some. The PCIe path beside them comes from a
  second table (`topo -mp`) if there is one, else from NUMA: NODE on the same node, otherwise SYS.
* NVLinks pass through an NVSwitch if a GPU shows more of them, summed over its peers, than its chip
  has. A V100 has 6, so one that shows NV6 to each of 15 others must use a switch.
* Peer-to-peer access is in a third table (`topo -p2p r`); without it, the models' names decide.
* AMD's GPUs that xGMI holds together are one hive: those without a link of their own reach each
  other over the links of others.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import combinations

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.hardware import facts_of_gpu, has_peer_to_peer
from linkwise.topology.machine.model import MAX_NVLINKS, Gpu, Link, LinkClass
from linkwise.topology.vendors.known import VENDORS
from linkwise.topology.vendors.vendor import Vendor

SELF = "X"
NVLINKS_OF_AN_UNKNOWN_CHIP = 18  # the most that any chip up to Blackwell has
WORDS = "X, SYS, NODE, PHB, PXB, PIX or NV and a number"

_PCIE_CLASSES = {link.name: link for link in LinkClass if link is not LinkClass.NVLINK}
_PCIE_CLASSES["SOC"] = LinkClass.SYS  # what drivers before 2017 printed
_NVLINKS = re.compile(
    rf"(?:{'|'.join(each.link_prefix for each in VENDORS.values())})([0-9]{{1,2}})"
)

Words = Sequence[Sequence[str]]
NO_PEERS_TOLD: Mapping[tuple[int, int], bool] = {}


def is_word(text: str) -> bool:
    """True if *text* can be a cell of such a table."""
    return text == SELF or text in _PCIE_CLASSES or bool(_NVLINKS.fullmatch(text))


def read_pcie_class(word: str, where: str) -> LinkClass:
    """Return the PCIe class. Raises MachineError, which begins with *where*, for any other word."""
    try:
        return _PCIE_CLASSES[word]
    except KeyError:
        expected = "SYS, NODE, PHB, PXB or PIX"
        raise MachineError(f"{where}: {word!r}: expected {expected}") from None


def read_nvlinks(word: str, where: str) -> int:
    """Return the NVLinks in *word*: 0 for a PCIe class."""
    match = _NVLINKS.fullmatch(word)
    if match is None:
        if word not in _PCIE_CLASSES:
            raise MachineError(f"{where}: {word!r}: expected {WORDS}")
        return 0
    count = int(match[1])
    if not 1 <= count <= MAX_NVLINKS:
        raise MachineError(f"{where}: {word!r}: expected NV1 to NV{MAX_NVLINKS}")
    return count


def word_of(link: Link, vendor: Vendor) -> str:
    """Return the word for a link in a table as `topo -m` prints it."""
    return f"{vendor.link_prefix}{link.nvlinks}" if link.nvlinks else link.pcie.name


def vendor_of_words(words: Words) -> Vendor:
    """Return whose links are in the table; the first vendor if it has none."""
    first, *others = VENDORS.values()
    cells = [cell for row in words for cell in row]
    return next(
        (each for each in others if any(cell.startswith(each.link_prefix) for cell in cells)), first
    )


def peer_by_name(first: str, second: str, nvlinks: int) -> bool:
    """Return `Link.peer_to_peer` of a pair, if only its models are known."""
    return nvlinks > 0 or (has_peer_to_peer(first) and has_peer_to_peer(second))


def links_of(
    gpus: Sequence[Gpu],
    words: Words | None,
    pcie: Words | None,
    peers: Mapping[tuple[int, int], bool] = NO_PEERS_TOLD,
) -> tuple[Link, ...]:
    """Return a machine's links in the order of `Machine.links`, from square tables of words.

    Without any table, NUMA decides. *peers* says of pairs of positions, the lower first, whether
    they have peer-to-peer access. Raises MachineError with the row and column of a cell that is
    unknown, missing, or not the same both ways.
    """
    if words is not None:
        _check_square(gpus, words, "links")
    if pcie is not None:
        _check_square(gpus, pcie, "pcie")
    pairs = list(combinations(range(len(gpus)), 2))
    nvlinks = [0 if words is None else _read_nvlinks_at(gpus, words, pair) for pair in pairs]
    shown = [0] * len(gpus)
    for (first, second), count in zip(pairs, nvlinks, strict=True):
        shown[first] += count
        shown[second] += count
    switched = [links > _nvlinks_of_chip(gpu) for gpu, links in zip(gpus, shown, strict=True)]
    hives = _hives(len(gpus), pairs, nvlinks)
    routes = words is not None and vendor_of_words(words).routed
    return tuple(
        Link(
            pcie=_pcie_class(gpus, words, pcie, (first, second)),
            nvlinks=count,
            through_switch=count > 0 and (switched[first] or switched[second]),
            peer_to_peer=peers.get(
                (first, second), peer_by_name(gpus[first].model, gpus[second].model, count)
            ),
            routed=routes
            and not count
            and hives[first] == hives[second]
            and peers.get((first, second), True),
        )
        for (first, second), count in zip(pairs, nvlinks, strict=True)
    )


def _hives(count: int, pairs: Sequence[tuple[int, int]], nvlinks: Sequence[int]) -> list[int]:
    """Number the GPUs alike that links hold together."""
    hives = list(range(count))
    for (first, second), links in zip(pairs, nvlinks, strict=True):
        if links:
            hives = [hives[first] if hive == hives[second] else hive for hive in hives]
    return hives


def _nvlinks_of_chip(gpu: Gpu) -> int:
    return facts_of_gpu(gpu).nvlinks or NVLINKS_OF_AN_UNKNOWN_CHIP


def _place(gpus: Sequence[Gpu], row: int, column: int, table: str) -> str:
    return f"{table}, row GPU{gpus[row].index}, column GPU{gpus[column].index}"


def _read_nvlinks_at(gpus: Sequence[Gpu], words: Words, pair: tuple[int, int]) -> int:
    first, second = pair
    return read_nvlinks(words[first][second], _place(gpus, first, second, "links"))


def _pcie_class(
    gpus: Sequence[Gpu], words: Words | None, pcie: Words | None, pair: tuple[int, int]
) -> LinkClass:
    first, second = pair
    if pcie is not None:
        return read_pcie_class(pcie[first][second], _place(gpus, first, second, "pcie"))
    if words is not None and words[first][second] in _PCIE_CLASSES:
        return _PCIE_CLASSES[words[first][second]]
    numa = gpus[first].numa_node
    return LinkClass.NODE if numa is not None and numa == gpus[second].numa_node else LinkClass.SYS


def _check_square(gpus: Sequence[Gpu], words: Words, table: str) -> None:
    """Check that the table is square, symmetric, and has X on its diagonal."""
    count = len(gpus)
    if len(words) != count:
        raise MachineError(f"{table}: {len(words)} rows: expected {count}, one for each GPU")
    for row, cells in enumerate(words):
        if len(cells) != count:
            raise MachineError(
                f"{table}, row GPU{gpus[row].index}: {len(cells)} cells: expected {count}"
            )
        if cells[row] != SELF:
            raise MachineError(f"{_place(gpus, row, row, table)}: {cells[row]!r}: expected X")
    for first, second in combinations(range(count), 2):
        there, back = words[first][second], words[second][first]
        if there != back:
            raise MachineError(
                f"{_place(gpus, first, second, table)}: {there!r}, but "
                f"{_place(gpus, second, first, table)}: {back!r}: expected the same both ways"
            )
