"""Bad input gets its clear error at every place that it goes in, and disturbs nothing else.

A place has the rows that show how it answers; what else is wrong, and in which words, is with the
tests of what reads it.

extender.py, plugin.py and files.py are the places that input goes in; the rows stand there too,
or in the _rows.py beside it.
"""

from collections.abc import Iterator

import pytest

from tests.bad_input import extender, extender_rows, files, files_rows, plugin
from tests.bad_input.table import Place, Row

ROWS: tuple[Row, ...] = (*extender_rows.ROWS, *plugin.ROWS, *files_rows.ROWS)
Places = dict[str, Place]


@pytest.fixture(scope="module")
def of_extender() -> Iterator[Places]:
    with extender.extender() as program:
        yield extender.places(program)


@pytest.fixture(scope="module")
def of_plugin() -> Iterator[Places]:
    with plugin.node() as node:
        yield plugin.places(node)


@pytest.fixture(scope="module")
def of_files() -> Iterator[Places]:
    with files.folder() as folder:
        yield files.places(folder)


def check(row: Row, places: Places) -> None:
    place = places[row.place]
    assert place.give(row.given) == row.says
    place.neighbour_goes_on()


def _named(rows: tuple[Row, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=[f"{row.place}: {row.name}" for row in rows])


@_named(extender_rows.ROWS)
def test_the_extender(row: Row, of_extender: Places) -> None:
    check(row, of_extender)


@_named(plugin.ROWS)
def test_the_plugin(row: Row, of_plugin: Places) -> None:
    check(row, of_plugin)


@_named(files_rows.ROWS)
def test_what_people_hand_over(row: Row, of_files: Places) -> None:
    check(row, of_files)


def test_no_row_stands_there_twice() -> None:
    names = [(row.place, row.name) for row in ROWS]
    assert sorted(names) == sorted(set(names))
