"""Plain text in columns."""

from collections.abc import Collection, Sequence


def aligned(rows: Sequence[Sequence[str]], figures: Collection[int] = ()) -> str:
    """Lines with two blanks between columns; those numbered in *figures* are set to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(widths[column]) if column in figures else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        )
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
