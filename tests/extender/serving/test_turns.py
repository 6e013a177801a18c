"""Turns: one at a time, fair among sources, and no more than a share of the time."""

from threading import Event, Thread

import pytest

from linkwise.extender.serving.gone import GoneError
from linkwise.extender.serving.turns import Turns
from tests.extender.world import wait_for


class Clock:
    """Moved by the test, and what the work inside a turn costs."""

    def __init__(self) -> None:
        self.now = self.worked = 0.0

    def turns(self, share: float) -> Turns:
        return Turns(share, clock=lambda: self.now, cost=lambda: self.worked)


class Asker:
    """Takes a turn, says so in *order*, and works until it is let go on."""

    def __init__(self, turns: Turns, source: str, order: list[str]) -> None:
        self.done, self.hung_up = Event(), False
        self.ended = ""
        self._turns, self._source, self._order = turns, source, order
        self.thread = Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._turns.of(self._source, lambda: not self.hung_up):
                self._order.append(self._source)
                assert self.done.wait(10)
        except GoneError:
            self.ended = "gone"

    def finish(self) -> None:
        self.done.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


def test_who_asks_a_hundred_times_makes_another_wait_for_one_turn() -> None:
    turns, order = Clock().turns(1.0), list[str]()
    first = Asker(turns, "greedy", order)
    wait_for(lambda: order)
    others = [Asker(turns, "greedy", order) for _ in range(20)]
    wait_for(lambda: len(turns._waiting.get("greedy", ())) == 20)
    modest = Asker(turns, "modest", order)
    wait_for(lambda: "modest" in turns._waiting)
    for each in others:
        each.done.set()
    modest.done.set()
    first.finish()
    for each in (modest, *others):
        each.finish()
    assert "modest" in order[:3]
    assert len(order) == 22


def test_work_is_followed_by_a_pause_that_keeps_it_to_its_share() -> None:
    clock = Clock()
    turns = clock.turns(0.25)
    with turns.of("a"):
        clock.worked += 2.0
    order: list[str] = []
    waiting = Asker(turns, "a", order)
    wait_for(lambda: turns._waiting)
    clock.now = 5.9
    with pytest.raises(AssertionError, match="waited in vain"):
        wait_for(lambda: order, 0.5)
    clock.now = 6.0
    wait_for(lambda: order)
    waiting.finish()


def test_who_hangs_up_waits_no_longer_and_holds_nobody_up() -> None:
    turns, order = Clock().turns(1.0), list[str]()
    first = Asker(turns, "a", order)
    wait_for(lambda: order)
    gone = Asker(turns, "b", order)
    wait_for(lambda: "b" in turns._waiting)
    last = Asker(turns, "c", order)
    wait_for(lambda: "c" in turns._waiting)
    gone.hung_up = True
    gone.thread.join(10)
    assert gone.ended == "gone"
    first.finish()
    last.finish()
    assert order == ["a", "c"]


def test_a_turn_that_fails_is_over() -> None:
    turns = Clock().turns(1.0)
    with pytest.raises(ZeroDivisionError), turns.of("a"):
        raise ZeroDivisionError
    with turns.of("a"):
        pass
