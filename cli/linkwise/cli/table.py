"""Plain text in columns."""

from collections.abc import Collection, Sequence

from linkwise.cli.printed import printable


def aligned(rows: Sequence[Sequence[str]], figures: Collection[int] = ()) -> str:
    """Return lines with two spaces between columns; those numbered in *figures* are
    right-aligned."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(widths[column]) if column in figures else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        )
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
