"""Tables as text; the live page's tests have them as HTML."""

from linkwise.drawing.tables import Column, Link, Table, aligned, figure

PODS: list[Column[tuple[str, int, str]]] = [
    Column("POD", lambda row: Link(row[0], f"pod?name={row[0]}")),
    figure("GPUS", lambda row: row[1]),
    Column("NODE", lambda row: row[2]),
]


def test_figures_are_to_the_right_and_what_is_empty_is_a_dash() -> None:
    table = Table.of(PODS, [("ml/a", 8, "gpu-1"), ("ml/large", 16, "")])
    assert table.text().splitlines() == [
        "POD       GPUS  NODE",
        "ml/a         8  gpu-1",
        "ml/large    16  -",
    ]


def test_equal_rows_make_equal_tables() -> None:
    first, second = (Table.of(PODS, [("ml/a", 8, "gpu-1")]) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != Table.of(PODS, [("ml/a", 4, "gpu-1")])


def test_no_cell_forges_a_row() -> None:
    table = aligned([["NAME", "STATE"], ["a\nb  running", "waits"]])
    assert table.splitlines() == ["NAME           STATE", r"a\nb  running  waits"]


def test_the_last_column_is_wrapped_to_a_width_that_leaves_it_readable() -> None:
    rows = [("POD", "WHY"), ("w-0", "its Job is not Indexed: its pods work one by one")]
    assert aligned(rows, width=30) == (
        "POD  WHY\nw-0  its Job is not Indexed:\n     its pods work one by one\n"
    )
    assert aligned(rows, width=20) == aligned(rows) == aligned(rows, width=100)
