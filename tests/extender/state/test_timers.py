"""Moments by key, the earliest first."""

from collections.abc import Iterable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import linkwise.extender
from linkwise.extender.state.timers import Agenda, Timers


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 9)), max_size=300))
def test_it_does_what_a_dictionary_would(changes: Iterable[tuple[int, int | None]]) -> None:
    agenda = Agenda()
    made: Timers[int] = Timers(agenda)
    plain: dict[int, float] = {}
    for key, at in changes:
        if at is None:
            made.drop(key)
            plain.pop(key, None)
        else:
            made[key] = plain[key] = float(at)
        assert made.get(key) == plain.get(key)
        assert [*agenda.times()] == sorted(plain.values())[:1]
    due = made.take(4.0)
    assert sorted(due) == sorted(key for key, at in plain.items() if at <= 4.0)
    assert [plain[key] for key in due] == sorted(plain[key] for key in due)
    assert made.take(4.0) == []


def test_each_part_that_has_times_enters_them_in_the_agenda() -> None:
    [root] = linkwise.extender.__path__
    for source in (path.read_text() for path in Path(root).rglob("*.py")):
        assert source.count("def _times(self)") == source.count("agenda.ask(self._times)")
