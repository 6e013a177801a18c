from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from linkwise.extender.api.timers import Timers


def alarms(*times: tuple[str, float]) -> Timers[str]:
    made: Timers[str] = Timers()
    for key, at in times:
        made[key] = at
    return made


def test_the_earliest_comes_first_and_once() -> None:
    made = alarms(("b", 2.0), ("a", 1.0), ("c", 3.0))
    assert made.next() == 1.0
    assert made.take(2.0) == ["a", "b"]
    assert made.take(2.0) == []
    assert made.next() == 3.0


def test_setting_it_again_moves_the_moment() -> None:
    made = alarms(("a", 1.0), ("a", 5.0))
    assert made.take(1.0) == []
    assert made.next() == 5.0
    assert made.get("a") == 5.0


def test_what_is_dropped_never_comes() -> None:
    made = alarms(("a", 1.0))
    made.drop("a")
    assert made.next() is None
    assert made.take(9.0) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 9)), max_size=300))
def test_it_does_what_a_dictionary_would(changes: Iterable[tuple[int, int | None]]) -> None:
    made: Timers[int] = Timers()
    plain: dict[int, float] = {}
    for key, at in changes:
        if at is None:
            made.drop(key)
            plain.pop(key, None)
        else:
            made[key] = plain[key] = float(at)
        assert made.next() == min(plain.values(), default=None)
    due = made.take(4.0)
    assert sorted(due) == sorted(key for key, at in plain.items() if at <= 4.0)
    assert [plain[key] for key in due] == sorted(plain[key] for key in due)
