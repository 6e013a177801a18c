"""One source with much to do delays each other source by one thing."""

from linkwise.serving.turns import Turns


def taken(turns: Turns[str]) -> list[str]:
    return [turns.take() for _ in range(len(turns))]


def test_sources_have_their_turns_and_each_keeps_its_order() -> None:
    turns = Turns[str]()
    for item in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        turns.add(item[0], item)
    expected = ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]
    assert [*turns] == expected
    assert taken(turns) == expected


def test_a_source_that_comes_later_waits_for_one_thing_of_each_other() -> None:
    turns = Turns[str]()
    for number in range(100):
        turns.add("a", f"a{number}")
        turns.add("b", f"b{number}")
    for _ in range(7):
        turns.take()
    turns.add("c", "c")
    assert "c" in [turns.take() for _ in range(3)]


def test_a_source_has_no_second_turn_for_what_it_adds_meanwhile() -> None:
    turns = Turns[str]()
    for item in ("a1", "b1", "c1"):
        turns.add(item[0], item)
    assert turns.take() == "a1"
    turns.add("a", "a2")
    assert taken(turns) == ["b1", "c1", "a2"]


def test_what_is_urgent_comes_first_of_its_own_source_only() -> None:
    turns = Turns[str]()
    for item in ("a1", "a2", "a3", "b1"):
        turns.add(item[0], item)
    turns.add("b", "b2", urgent=True)
    turns.add("a", "a3", urgent=True)
    turns.add("a", "a4", urgent=True)
    turns.add("a", "a4")  # is urgent still
    assert taken(turns) == ["a3", "b2", "a4", "b1", "a1", "a2"]


def test_what_is_dropped_has_no_turn() -> None:
    turns = Turns[str]()
    for item in ("a1", "a2", "b1", "c1"):
        turns.add(item[0], item)
    for gone in ("a1", "b1", "never there"):
        turns.drop(gone)
    assert taken(turns) == ["a2", "c1"]
    assert not turns
