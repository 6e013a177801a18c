from weakref import ref

from linkwise.topology.while_alive import while_alive


class Thing:
    pass


def test_what_was_computed_is_remembered_and_goes_with_its_object() -> None:
    asked: list[int] = []

    @while_alive(16)
    def double(_: Thing, number: int) -> int:
        asked.append(number)
        return 2 * number

    thing, other = Thing(), Thing()
    assert [double(thing, 2), double(thing, 2), double(other, 2), double(thing, 3)] == [4, 4, 4, 6]
    assert asked == [2, 2, 3]
    there = ref(thing)
    del thing
    assert there() is None
    assert double(other, 2) == 4
    assert asked == [2, 2, 3]
