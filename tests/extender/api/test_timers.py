from collections.abc import Iterable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import linkwise.extender
from linkwise.extender.api.timers import Agenda, Timers


def alarms(agenda: Agenda, *times: tuple[str, float]) -> Timers[str]:
    made: Timers[str] = Timers(agenda)
    for key, at in times:
        made[key] = at
    return made


def test_the_earliest_comes_first_and_once() -> None:
    agenda = Agenda()
    made = alarms(agenda, ("b", 2.0), ("a", 1.0), ("c", 3.0))
    assert [*agenda.times()] == [1.0]
    assert made.take(2.0) == ["a", "b"]
    assert made.take(2.0) == []
    assert [*agenda.times()] == [3.0]


def test_setting_it_again_moves_the_moment() -> None:
    agenda = Agenda()
    made = alarms(agenda, ("a", 1.0), ("a", 5.0))
    assert made.take(1.0) == []
    assert [*agenda.times()] == [5.0]
    assert made.get("a") == 5.0


def test_what_is_dropped_never_comes() -> None:
    agenda = Agenda()
    made = alarms(agenda, ("a", 1.0))
    made.drop("a")
    assert not [*agenda.times()]
    assert made.take(9.0) == []


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
        assert [*agenda.times()] == sorted(plain.values())[:1]
    due = made.take(4.0)
    assert sorted(due) == sorted(key for key, at in plain.items() if at <= 4.0)
    assert [plain[key] for key in due] == sorted(plain[key] for key in due)


def test_each_part_that_has_times_enters_them_in_the_agenda() -> None:
    [root] = linkwise.extender.__path__
    for source in (path.read_text() for path in Path(root).rglob("*.py")):
        assert source.count("def _times(self)") == source.count("agenda.ask(self._times)")
