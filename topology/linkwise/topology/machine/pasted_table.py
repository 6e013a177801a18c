"""Finds the table of `nvidia-smi topo -m` in what people paste.

Pasting adds and loses characters. These change nothing:

* what stands before a row or between its cells: prompts, time stamps, `file:12:` of grep, `>` of
  mails, `|` of Markdown, quotes, box drawing, terminal colours (also without their escape
  character), tags and entities of HTML, `\\t` and `\\n` of JSON, `^I` of `cat -A`;
* a tab lost between two words that cannot be one: `NIC8NIC9`, `NODEPXB`, `SYS0-15`;
* a row or the header on several lines, and several rows on one;
* an affinity that `nvidia-smi` leaves empty, if tabs, or a terminal's blanks for them, show which.

Nothing is guessed: a row has as many links as the header has columns, all GPUs have as many
affinities, and a network card's row agrees with its column. Anything else is a MachineError that
names the row and the word.
"""

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from linkwise.topology.errors import MachineError
from linkwise.topology.machine.link_words import WORDS, is_word
from linkwise.topology.machine.other_prints import P2P, is_p2p

NOT_KNOWN = "N/A"
NUMA_COLUMN = "NUMA Affinity"
NO_HEADER = "table: no header: expected a line that begins GPU0 GPU1 ..."

_MOST_LINES = 8  # of one row: 16 GPUs and 16 cards take four lines of 80 columns

_ESCAPE = r"(?:\x1b|\^\[|\u241b|\u2190)"  # the character itself, and how it is shown
_REPLACED = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\+(?:u001[bB]|x1[bB]|033|e(?=\[))", "\x1b"),
        (r"\\+[nr]", "\n"),
        (r"\\+t|\^I", "\t"),
        (r"(?i:<(?:br|/tr|/p|/div|/pre|/li)\b[^<>\n]{0,200}>)", "\n"),
        (r"</?[A-Za-z][^<>\n]{0,200}>", " "),
        (_ESCAPE + r"\[[0-?]*[ -/]*[@-~]", ""),
        (_ESCAPE + r"(?:[()][A-Z0-9]|[=>78]|\][^\x07\x1b\n]*(?:\x07|\x1b\\))", ""),
        (r"\[[0-9][0-9;]*m|\[[mK](?![a-z])", ""),  # what is left where the escape is lost
        (r"[\x00-\x08\x0e-\x1f\x7f\xad\u200b-\u200f\u2060\ufeff]", ""),
        (r"[\u2010-\u2015\u2212]", "-"),
    )
)
_WORD = re.compile(r"[\w/.,-]+")
_BETWEEN = re.compile(r"(?<!\d),|,(?!-?\d)|-(?=[A-Za-z])")  # not the comma of 0-15,32-47

_GPU = r"GPU[0-9]{1,4}"
_DEVICE = rf"{_GPU}|NIC[0-9]{{1,3}}|mlx[0-9]_(?:bond_)?[0-9]{{1,3}}"
_GPU_NAME = re.compile(_GPU)
_DEVICE_NAME = re.compile(_DEVICE)
_COLUMN = re.compile(
    rf"(?P<device>{_DEVICE}|[a-z][a-z0-9_.]*)"  # cards by number, or by name
    r"|(?P<id>GPU\s*NUMA(?:\s*ID)?)"
    r"|(?P<affinity>CPU|NUMA)(?:[\s_]*A[a-z]*)?"
    r"|(?P<blank>\s+)"
)
_LIST = r"-?[0-9][0-9,-]*"
# A number ends where its digits do, so no digit after NV1 or GPU1 can be the next word's.
_PART = re.compile(
    rf"(?:{_DEVICE}|NV[0-9]{{1,2}}|{_LIST})(?![0-9,-])|NODE|SYS|SOC|PHB|PXB|PIX|X|{NOT_KNOWN}"
)
_PARTS = re.compile(rf"(?:{_PART.pattern})+")
_AFFINITY = re.compile(rf"{_LIST}|{NOT_KNOWN}")
_EMPTY = "NA"  # stands where a cell between two tabs was empty
_TAB_STOP = 8
_BEHIND_LINKS = re.compile(r"(.*\b(?:NV[0-9]{1,2}|NODE|SYS|SOC|PHB|PXB|PIX|X) *)\t(.*)")
AFFINITY_WORDS = {
    "CPU Affinity": "CPUs like 0-15,32-47 or N/A",
    NUMA_COLUMN: "nodes like 3, 0-1 or N/A",
    "GPU NUMA ID": "a number or N/A",
}
# Words, or what the end of a line left of them.
_MORE_LINKS = re.compile(r"[A-Z0-9/,-]+")
_MORE_AFFINITIES = re.compile(r"[N/A0-9,-]+")
_LEGEND = re.compile(r"\b(NIC[0-9]+)\s*:\s*(\S.*?)[^\w\n]*(?=\bNIC[0-9]+\s*:|$)", re.MULTILINE)
_LEGEND_TITLE = re.compile(r"\bLegend\W*$")

_Words = Sequence[str]


@dataclass(frozen=True, slots=True)
class Row:
    links: tuple[str, ...]  # one for each column
    affinities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Header:
    devices: tuple[str, ...]
    affinities: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PrintedTable:
    header: Header
    rows: Mapping[str, Row]  # of the GPUs
    legend: Mapping[str, str]  # NIC0 -> mlx5_0


def read_table(text: str) -> PrintedTable | None:
    """Return the one table in *text*; None if no line could be its header or a row.

    Raises MachineError for a table that is incomplete or contradicts itself, and for several that
    differ.
    """
    plain = plain_text(text)
    legend = dict(_LEGEND.findall(plain))
    lines = [_words(line) for line in plain.splitlines()]
    found = list(_blocks(lines))
    blocks = [(first, end) for first, end in found if not _is_p2p(lines[first:end])]
    if found and not blocks:
        raise MachineError(P2P)
    tables = [
        PrintedTable(header, _read_rows(header, lines[first:end]), legend)
        for first, end in blocks
        if (header := _header_above(lines, first)) is not None
    ]
    if any(table != tables[0] for table in tables):
        raise MachineError("table: several tables that differ: expected that of one machine")
    if tables:
        return tables[0]
    if blocks:
        raise MachineError(_no_header(lines, blocks[0][0]))
    for number, words in enumerate(lines):
        header = _header_above(lines, number + 1) if _names_columns(words) else None
        if header is not None:
            return PrintedTable(header, {}, legend)
    return None


def plain_text(text: str) -> str:
    """Return *text* without what terminals, pages and programs put between its characters."""
    text = html.unescape(text)
    for pattern, by in _REPLACED:
        text = pattern.sub(by, text)
    return text


def _words(line: str) -> _Words:
    if _LEGEND_TITLE.search(line):
        return ["Legend:"]
    if row := _BEHIND_LINKS.fullmatch(_with_tabs(line)):
        affinities = [cell if cell.strip() else _EMPTY for cell in row[2].split("\t")]
        line = " ".join((row[1], *affinities))
    found = (part for word in _WORD.findall(line) for part in _BETWEEN.split(word))
    return [word for part in found if (word := part.strip(".")).strip("/,-_")]


def _with_tabs(line: str) -> str:
    """Return a row with the tabs instead of which a terminal has shown blanks."""
    name = _GPU_NAME.search(line)
    if name is None or "\t" in line:
        return line
    text, end = "", 0
    for word in re.finditer(r"\S+", line[name.start() :]):
        place, off = divmod(word.start(), _TAB_STOP)
        if off > (word[0] == "X"):  # printed as " X "
            return line
        text += "\t" * (place - end // _TAB_STOP) + word[0]
        end = word.end()
    return text


def _cells(words: _Words) -> list[str]:
    """Cut the words between which a tab was lost."""
    return [
        part
        for word in words
        for part in (_PART.findall(word) if _PARTS.fullmatch(word) else (word,))
    ]


def _first_gpu(words: _Words) -> int | None:
    """Return the position of the first word that begins with a GPU's name; None behind a link."""
    for position, word in enumerate(words):
        if is_word(word):
            return None
        if _GPU_NAME.match(word):
            return position
    return None


def _is_row(words: _Words) -> bool:
    cells = _cells(words)
    first = _first_gpu(cells)
    return (
        first is not None
        and _GPU_NAME.fullmatch(cells[first]) is not None
        and any(map(is_word, cells[first + 1 :]))
    )


def _names_columns(words: _Words) -> bool:
    first = _first_gpu(words)
    return first is not None and isinstance(_columns(" ".join(words[first:])), Header)


def _blocks(lines: Sequence[_Words]) -> Iterator[tuple[int, int]]:
    """Yield the lines of each table, from its first row to the next header or the end."""
    first = None
    for number, words in enumerate(lines):
        if first is not None and _names_columns(words):
            yield first, number
            first = None
        elif first is None and _is_row(words):
            first = number
    if first is not None:
        yield first, len(lines)


def _is_p2p(lines: Sequence[_Words]) -> bool:
    return any(is_p2p(words) for words in lines if _is_row(words))


def _columns(text: str) -> Header | str:
    """Return the columns that *text* names; or the first word with which it cannot be a header."""
    devices: list[str] = []
    affinities: list[str] = []
    at = 0
    while at < len(text):
        found = _COLUMN.match(text, at)
        if found is None or (affinities and found["device"]):
            return text[at:].split()[0]
        if found["device"]:
            devices.append(found[0])
        elif found["id"]:
            affinities.append("GPU NUMA ID")
        elif found["affinity"]:
            affinities.append(f"{found['affinity']} Affinity")
        at = found.end()
    numbered = any(device.startswith("NIC") for device in devices)
    if numbered and (named := [each for each in devices if each[0].islower()]):
        return named[0]
    return Header(tuple(devices), tuple(affinities))


def _header_above(lines: Sequence[_Words], row: int) -> Header | None:
    """Return the header that ends above line *row*. It may have several lines."""
    found: Header | None = None
    parts: list[str] = []
    for words in _lines_above(lines, row):
        first = _first_gpu(words)
        if first is None and found is not None:
            break
        parts.insert(0, " ".join(words[first or 0 :]))
        if first is None:
            continue
        # Lines below the first may be none of its: then rows have as many links without them.
        headers = (_columns(text) for text in (*_joined(parts), parts[0]))
        header = next((each for each in headers if isinstance(each, Header)), None)
        if header is None or (found is not None and _twice(header.devices)):
            break
        found = header
    if found is not None and (twice := _twice(found.devices)):
        raise MachineError(f"table, header: column {twice[0]} appears twice")
    return found


def _lines_above(lines: Sequence[_Words], row: int) -> Iterator[_Words]:
    """Yield the lines above *row* that may be its header, from the bottom up."""
    for words in reversed(lines[max(0, row - _MOST_LINES) : row]):
        if any(map(is_word, words)):
            return
        if words:
            yield words


def _no_header(lines: Sequence[_Words], row: int) -> str:
    """Say why there is no header above line *row*."""
    for words in _lines_above(lines, row):
        first = _first_gpu(words)
        odd = None if first is None else _columns(" ".join(words[first:]))
        if isinstance(odd, str):
            return f"table, header: {odd!r}: expected columns like GPU0, NIC0 or CPU Affinity"
    return NO_HEADER


def _twice(names: _Words) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _joined(parts: Sequence[str]) -> Iterator[str]:
    """Yield what *parts* of lines are together: a line may end between words or within one."""
    for blanks in product((" ", ""), repeat=len(parts) - 1):
        yield "".join(part + blank for part, blank in zip(parts, (*blanks, ""), strict=True))


def _read_rows(header: Header, lines: Sequence[_Words]) -> dict[str, Row]:
    """Return the rows of the GPUs. Raises MachineError if they, or those of cards, contradict the
    header or each other."""
    rows: dict[str, Row] = {}
    cards: list[tuple[str, list[str]]] = []
    for name, parts in _parts_of_rows(header, lines):
        if not _GPU_NAME.fullmatch(name):
            cards.append((name, parts))
        elif name in rows:
            raise MachineError(f"table: row {name} appears twice")
        else:
            rows[name] = _read_row(header, name, parts)
    most = max((len(row.affinities) for row in rows.values()), default=0)
    for name, row in rows.items():
        if len(row.affinities) < most:
            shown = " ".join(row.affinities) or "nothing"
            raise MachineError(
                f"table, row {name}: {shown!r} after the links: expected {most} cells as in other "
                "rows"
            )
    for name, parts in cards:
        _check_card(header, name, parts, rows)
    return rows


def _parts_of_rows(header: Header, lines: Sequence[_Words]) -> Iterator[tuple[str, list[str]]]:
    """Yield each row's name, and its cells line by line."""
    name, parts = "", list[str]()
    for words in lines:
        if words == ["Legend:"]:
            break
        cells = _cells(words)
        starts = _starts(header, cells)
        before = cells[: starts[0] if starts else len(cells)]
        if len(parts) <= _MOST_LINES and _goes_on(header, _cells(" ".join(parts).split()), before):
            parts.append(" ".join(before))
        for start, end in pairwise((*starts, len(cells))):
            if name:
                yield name, parts
            name, parts = cells[start], [" ".join(cells[start + 1 : end])]
    if name:
        yield name, parts


def _goes_on(header: Header, row: _Words, cells: _Words) -> bool:
    """True if *cells* continue a row that still wants links, or cells at all; links always do."""
    links = sum(map(is_word, row))
    more = any(map(is_word, cells)) or links < len(header.devices)
    legal = _MORE_LINKS if more else _MORE_AFFINITIES
    whole = links + sum(1 for cell in row if _AFFINITY.fullmatch(cell))
    wanted = more or whole < len(header.devices) + len(header.affinities)
    return wanted and bool(cells) and all(map(legal.fullmatch, cells))


def _starts(header: Header, cells: _Words) -> tuple[int, ...]:
    """Return where rows begin in a line: at names of devices that links follow.

    The first GPU's name begins a row in any case: its first link may be mistyped.
    """
    starts: list[int] = []
    for position, cell in enumerate(cells):
        named = cell in header.devices or _DEVICE_NAME.fullmatch(cell)
        followed = is_word("".join(cells[position + 1 : position + 2]))
        first_gpu = not any(map(is_word, cells[:position])) and _GPU_NAME.fullmatch(cell)
        if named and (followed or (first_gpu and not starts)):
            starts.append(position)
    return tuple(starts)


def _read_row(header: Header, name: str, parts: Sequence[str]) -> Row:
    if name not in header.devices:
        columns = " ".join(header.devices)
        raise MachineError(f"table: row {name}: expected one of the columns {columns}")
    if len(parts) > _MOST_LINES:
        raise MachineError(f"table, row {name}: on more than {_MOST_LINES} lines: expected one")
    readings = [_row_of(header, name, _cells(text.split())) for text in _joined(parts)]
    row = next((each for each in readings if isinstance(each, Row)), None)
    if row is None:
        raise next(each for each in readings if isinstance(each, MachineError))
    return row


def _row_of(header: Header, name: str, cells: Sequence[str]) -> Row | MachineError:
    """Return the row, or why *cells* are none."""
    count = len(header.devices)
    cells = [*cells[:count], *_filled(cells[count:], len(header.affinities))]
    for column, cell in zip(header.devices, cells, strict=False):
        if not is_word(cell):
            return MachineError(f"table, row {name}, column {column}: {cell!r}: expected {WORDS}")
    if len(cells) < count:
        column = header.devices[len(cells)]
        return MachineError(f"table, row {name}, column {column}: missing: expected a cell")
    most = count + len(header.affinities)
    links = next((n for n, cell in enumerate(cells) if not is_word(cell)), len(cells))
    if links > count:
        return MachineError(
            f"table, row {name}: {links} links: expected {count}, one for each of the columns "
            + " ".join(header.devices)
        )
    if len(cells) > most:
        return MachineError(f"table, row {name}: {len(cells)} cells: expected {most} at most")
    for column, cell in zip(header.affinities, cells[count:], strict=False):
        if not _AFFINITY.fullmatch(cell):
            return MachineError(
                f"table, row {name}, column {column}: {cell!r}: expected {AFFINITY_WORDS[column]}"
            )
    return Row(tuple(cells[:count]), tuple(cells[count:]))


def _filled(cells: Sequence[str], count: int) -> list[str]:
    """Return a row's affinities, N/A where they were empty if that makes *count* of them."""
    filled = [*cells]
    while len(filled) > count and filled[-1] == _EMPTY:
        filled.pop()
    if len(filled) == count + 1 and filled[-2:-1] == [_EMPTY]:
        del filled[-2]  # two tabs stand before "GPU NUMA ID"
    if len(filled) != count:
        return [cell for cell in cells if cell != _EMPTY]
    return [NOT_KNOWN if cell == _EMPTY else cell for cell in filled]


def _check_card(header: Header, name: str, parts: Sequence[str], rows: Mapping[str, Row]) -> None:
    """Raise MachineError if a card's row is not what its column says. Cut ones say nothing."""
    if name not in header.devices:
        columns = " ".join(header.devices)
        raise MachineError(f"table: row {name}: expected one of the columns {columns}")
    column = header.devices.index(name)
    for text in _joined(parts[:_MOST_LINES]):
        read = _row_of(header, name, _cells(text.split()))
        if isinstance(read, MachineError):
            continue
        for gpu, cell in zip(header.devices, read.links, strict=True):
            there = rows[gpu].links[column] if gpu in rows else cell
            if there != cell:
                raise MachineError(
                    f"table, row {gpu}, column {name}: {there!r}, but row {name}, column {gpu}: "
                    f"{cell!r}: expected the same both ways"
                )
        return
