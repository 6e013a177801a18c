"""A table as one value: what its columns are called, and the cell of each row in each of them.

`Table.text` writes it for a terminal, `templates/table.html` as HTML. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import wrap
from typing import Generic, NamedTuple, Self, TypeVar

from linkwise.drawing.words import printable

_NARROWEST = 20  # letters of a column of which the text is wrapped
# Names of pods and annotations have hyphens, and stay whole to be copied.
_wrapped = partial(wrap, break_long_words=False, break_on_hyphens=False)
S = TypeVar("S")
T = TypeVar("T")


class Link(NamedTuple):
    text: str
    href: str  # empty: none

    def __str__(self) -> str:
        return self.text


class Links(NamedTuple):
    links: tuple[Link, ...]
    more: int  # that are not shown


Cell = str | Link | Links
Content = Cell | int | None
"""Of a cell; None and the empty text are written as a dash."""


class Heading(NamedTuple):
    text: str
    figure: bool  # its column is aligned to the right
    name: str  # of its cells in HTML: their class, and a part of their ids; may be empty


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table about values of one type."""

    heading: str
    content: Callable[[T], Content]
    figure: bool = False
    name: str = ""

    def of(self, part: Callable[[S], T]) -> "Column[S]":
        """Return the same of rows of which *part* is what it shows."""
        return Column(self.heading, lambda row: self.content(part(row)), self.figure, self.name)


def figure(heading: str, content: Callable[[T], Content], name: str = "") -> Column[T]:
    return Column(heading, content, figure=True, name=name)


@dataclass(frozen=True, slots=True)
class Table:
    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @classmethod
    def of(cls, columns: Sequence[Column[T]], rows: Iterable[T], *, dash: str = "-") -> Self:
        return cls(
            tuple(Heading(column.heading, column.figure, column.name) for column in columns),
            tuple(tuple(_cell(column.content(row), dash) for column in columns) for row in rows),
        )

    def text(self, width: int | None = None) -> str:
        """Return lines, the headings first; *width* as for `aligned`."""
        figures = [place for place, heading in enumerate(self.headings) if heading.figure]
        headings = [heading.text for heading in self.headings]
        return aligned([headings, *(tuple(map(str, row)) for row in self.rows)], figures, width)

    def fitted(self, width: int | None) -> str:
        """Return lines no longer than *width*; None: as long as they are. The last column says
        what is wrong, so its text follows each row where there is no room for it; what is still
        too long is cut."""
        text = self.text(width)
        if width is None or max(map(len, text.splitlines())) <= width:
            return text
        lines = text.splitlines()
        if len(self.headings) > 1 and not self.headings[-1].figure:
            lines = [*self._followed(width)]
        return "".join(
            f"{line if len(line) <= width else f'{line[: width - 1]}…'}\n" for line in lines
        )

    def _followed(self, width: int) -> Iterator[str]:
        others = Table(self.headings[:-1], tuple(row[:-1] for row in self.rows))
        heading, *lines = others.text().splitlines()
        yield heading
        for line, (*_, last) in zip(lines, self.rows, strict=True):
            yield line
            if str(last) != "-":
                said = f"{self.headings[-1].text}: {printable(str(last))}"
                yield from _wrapped(said, width, initial_indent="  ", subsequent_indent="    ")


def _cell(content: Content, dash: str) -> Cell:
    return str(content) if isinstance(content, int) else content or dash


def aligned(
    rows: Sequence[Sequence[str]], figures: Collection[int] = (), width: int | None = None
) -> str:
    """Return lines with two spaces between columns; those numbered in *figures* are
    right-aligned. With a *width*, the text of the last column is wrapped to it, if that leaves the
    column wide enough to be read."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = sum(widths[:-1]) + 2 * len(widths[:-1])
    last = None if width is None or width - left < _NARROWEST else width - left
    lines = []
    for row in rows:
        cells = [
            cell.rjust(widths[column]) if column in figures else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ]
        if last is not None and len(row[-1]) > last:
            cells[-1], *more = _wrapped(row[-1], last)
            cells[-1] += "".join(f"\n{' ' * left}{line}" for line in more)
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
