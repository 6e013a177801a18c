"""Rows of nodes by their names."""

import numpy as np

from linkwise.extender.state.cache.node_table import NodeTable


def test_the_names_of_an_earlier_call_are_not_looked_up_again() -> None:
    table = NodeTable()
    table.add("a")
    table.add("b")
    of_filter = table.rows_of(("b", "a", "no-node"))
    of_prioritize = table.rows_of(("b", "a"))
    assert of_filter.tolist() == [1, 0, -1]
    assert of_prioritize.tolist() == [1, 0]
    assert table.rows_of(("b", "a", "no-node")) is of_filter
    assert table.rows_of(("b", "a")) is of_prioritize


def test_names_are_looked_up_again_once_a_node_came_or_went() -> None:
    table = NodeTable()
    table.add("a")
    assert table.rows_of(("a", "b")).tolist() == [0, -1]
    table.add("b")
    assert table.rows_of(("a", "b")).tolist() == [0, 1]
    table.remove("a")
    assert table.rows_of(("a", "b")).tolist() == [-1, 1]


def test_a_list_that_is_asked_for_again_and_again_stays_known() -> None:
    table = NodeTable()
    for name in ("a", "b"):
        table.add(name)
    of_filter = table.rows_of(("b", "a", "no-node"))
    for passed in ("a", "b", "a"):
        assert table.rows_of(("b", "a", "no-node")) is of_filter
        of_passed = np.array([table.row_of[passed]])
        table.note_rows((passed,), of_passed)
        assert table.rows_of((passed,)) is of_passed
