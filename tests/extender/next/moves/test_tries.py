"""For which waiting gangs moves are sought in a round, and when the next round is due for them."""

from linkwise.extender.next.gangs.gang import Gang
from linkwise.extender.next.moves.planned_moves import LOOK_SECONDS, TRY_SECONDS, Tries
from linkwise.extender.state.records import GangKey
from linkwise.extender.state.timers import Agenda

FIRST, SECOND = (Gang(GangKey("ml", name, "uid")) for name in ("first", "second"))
NONE: frozenset[GangKey] = frozenset()


class Waits:
    """Two gangs wait, and the changes of the cluster are counted."""

    def __init__(self) -> None:
        self.agenda, self.changes = Agenda(), 0
        self.tries = Tries(self.agenda)
        self.tries.wait([FIRST, SECOND])

    def due(self, now: float, helped: Gang | None = None, reserved: Gang | None = None) -> str:
        skip = NONE if helped is None else {helped.key}
        has = NONE if reserved is None else {reserved.key}
        found = self.tries.due(skip, has, self.changes, now)
        return " ".join(gang.key.name for gang in found)

    def all_tried(self) -> None:
        assert self.due(0) == "first second"
        for gang in (FIRST, SECOND):
            self.tries.tried(gang.key, 0)


def test_a_gang_is_tried_again_after_a_while_if_something_changed_and_else_later() -> None:
    at = Waits()
    at.all_tried()
    assert [*at.agenda.times()] == [TRY_SECONDS + LOOK_SECONDS]
    assert at.due(TRY_SECONDS + 1) == ""
    at.changes += 1
    assert at.due(TRY_SECONDS + 2) == "first second"
    for gang in (FIRST, SECOND):
        at.tries.tried(gang.key, 100)
    at.changes += 1
    assert at.due(101) == ""
    assert [*at.agenda.times()] == [100 + TRY_SECONDS]
    assert at.due(100 + TRY_SECONDS) == "first second"
    at.tries.tried(FIRST.key, 200)
    at.tries.something_changed(FIRST.key)
    at.tries.put_off(SECOND.key, 10_000)
    assert at.due(200 + TRY_SECONDS) == "first"
    at.tries.tried(FIRST.key, 300)
    assert at.due(300 + TRY_SECONDS + LOOK_SECONDS) == "first"


def test_a_gang_that_had_no_turn_has_one_in_the_next_round_which_is_due_at_once() -> None:
    at = Waits()
    at.all_tried()
    at.changes += 1
    assert at.due(TRY_SECONDS) == "first second"
    at.tries.tried(FIRST.key, TRY_SECONDS)
    assert min(at.agenda.times()) == 0
    assert at.due(TRY_SECONDS) == "second"


def test_a_gang_that_was_helped_starts_anew_and_keeps_no_round_busy_meanwhile() -> None:
    at = Waits()
    at.all_tried()
    at.tries.start_anew(FIRST.key)
    assert at.due(1, helped=FIRST) == ""
    assert min(at.agenda.times()) > 1
    assert at.due(2) == "first"


def test_a_gang_without_a_reservation_is_tried_once_it_has_one() -> None:
    at = Waits()
    at.all_tried()
    at.tries.put_off(FIRST.key, 50, unreserved=True)
    at.tries.put_off(SECOND.key, 50)
    assert [*at.agenda.times()] == [50]
    assert at.due(1, reserved=SECOND) == ""
    assert at.due(1, reserved=FIRST) == "first"
    assert at.due(50) == "first second"


def test_a_gang_that_waits_no_more_is_forgotten() -> None:
    at = Waits()
    at.all_tried()
    at.tries.wait([SECOND])
    at.changes += 1
    assert at.due(TRY_SECONDS) == "second"
    at.tries.tried(SECOND.key, TRY_SECONDS)
    at.tries.wait([FIRST, SECOND])
    assert at.due(TRY_SECONDS) == "first"
