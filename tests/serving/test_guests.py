"""Which connection leaves when there is no place left."""

from hypothesis import given
from hypothesis import strategies as st

from linkwise.serving.guests import Guests


def test_while_there_are_places_everybody_stays() -> None:
    guests: Guests[int] = Guests(3)
    assert [guests.arrive(number, "a") for number in range(3)] == [None] * 3
    assert len(guests) == 3


def test_the_source_with_the_most_gives_up_what_it_used_longest_ago() -> None:
    guests: Guests[str] = Guests(4)
    for guest, source in (("b1", "b"), ("a1", "a"), ("a2", "a"), ("a3", "a")):
        guests.arrive(guest, source)
    guests.use("a1")
    assert guests.arrive("c1", "c") == "a2"
    assert guests.arrive("c2", "c") == "a3"
    assert guests.arrive("d1", "d") == "c1"


def test_of_equals_the_one_that_came_first_leaves() -> None:
    guests: Guests[str] = Guests(2)
    guests.arrive("a1", "a")
    guests.arrive("b1", "b")
    assert guests.arrive("c1", "c") == "a1"


def test_who_left_takes_no_place_and_may_leave_again() -> None:
    guests: Guests[str] = Guests(1)
    guests.arrive("a1", "a")
    guests.leave("a1")
    guests.leave("a1")
    guests.use("a1")
    assert guests.arrive("b1", "b") is None
    assert guests.give_up() == "b1"
    assert guests.give_up() is None


@given(
    places=st.integers(1, 8),
    sources=st.lists(st.sampled_from("abcd"), max_size=60),
    leaving=st.lists(st.integers(0, 59), max_size=30),
)
def test_whoever_comes_stays_and_no_source_pays_for_another_that_has_more(
    places: int, sources: list[str], leaving: list[int]
) -> None:
    guests: Guests[tuple[str, int]] = Guests(places)
    inside: list[tuple[str, int]] = []
    for number, source in enumerate(sources):
        guest = (source, number)
        gone = guests.arrive(guest, source)
        inside.append(guest)
        counts = {each: sum(of == each for of, _ in inside) for each in "abcd"}
        if gone is not None:
            assert gone != guest
            assert counts[gone[0]] == max(counts.values())
            inside.remove(gone)
        if number in leaving and inside:
            guests.leave(inside.pop())
        assert len(guests) == len(inside) <= places
        assert all(each in guests for each in inside)
