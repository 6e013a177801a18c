"""Room that comes while a round searches without the lock."""

from collections.abc import Callable
from itertools import count
from typing import TypeVar

from tests.extender.owned import four_nodes

T = TypeVar("T")


def test_room_that_comes_during_any_search_of_a_gang_is_found() -> None:
    """The search for all members fails, and the room comes while one for fewer runs."""
    tried = 0
    for search in count():
        searches, places = places_if_room_comes_during(search)
        if searches <= search:
            break
        tried += 1
        assert places == ["n2", "n3"]
    assert tried > 1


def places_if_room_comes_during(search: int) -> tuple[int, list[str]]:
    """How many searches there were, and where the members of a gang are that waited."""
    at = four_nodes()
    at.add_gang("g", 4, gang_min="2")
    for number in (2, 3):
        at.add_pod(f"other-{number}", 8, node=f"n{number}")
    at.settle()
    assert [at.schedule(f"g-{rank}") for rank in (0, 1)] == ["n0", "n1"]
    searches = 0

    def aside(work: Callable[[], T]) -> T:
        nonlocal searches
        done = work()
        if searches == search:
            for number in (2, 3):
                at.delete(f"other-{number}")
        searches += 1
        return done

    at.core.set_unlocker(aside)
    at.add_pod("late", 1, gang="late", gang_size="2")
    at.settle()
    return searches, at.places("g-2", "g-3")
