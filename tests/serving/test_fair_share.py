"""FairShare: one at a time, fair among sources, and no more than a share of the time."""

from threading import Event, Thread

import pytest

from linkwise.serving.fair_share import FairShare
from linkwise.serving.gone import GoneError
from tests.extender.world import wait_for


class Clock:
    """Moved by the test, and what the work inside a share costs."""

    def __init__(self) -> None:
        self.now = self.worked = 0.0

    def fair(self, share: float) -> FairShare:
        return FairShare(share, clock=lambda: self.now, cost=lambda: self.worked)


class Asker:
    """Takes its share, says so in *order*, and works until it is let go on."""

    def __init__(self, share: FairShare, source: str, order: list[str]) -> None:
        self.done, self.hung_up = Event(), False
        self.ended = ""
        self._share, self._source, self._order = share, source, order
        self.thread = Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            with self._share.of(self._source, lambda: not self.hung_up):
                self._order.append(self._source)
                assert self.done.wait(10)
        except GoneError:
            self.ended = "gone"

    def finish(self) -> None:
        self.done.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


def test_who_asks_a_hundred_times_makes_another_wait_for_one_turn() -> None:
    share, order = Clock().fair(1.0), list[str]()
    first = Asker(share, "greedy", order)
    wait_for(lambda: order)
    others = [Asker(share, "greedy", order) for _ in range(20)]
    wait_for(lambda: len(share._waiting) == 20)
    modest = Asker(share, "modest", order)
    wait_for(lambda: len(share._waiting) == 21)
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
    share = clock.fair(0.25)
    with share.of("a"):
        clock.worked += 2.0
    order: list[str] = []
    waiting = Asker(share, "a", order)
    wait_for(lambda: share._waiting)
    clock.now = 5.9
    with pytest.raises(AssertionError, match="waited too long"):
        wait_for(lambda: order, 0.5)
    clock.now = 6.0
    wait_for(lambda: order)
    waiting.finish()


def test_who_hangs_up_waits_no_longer_and_holds_nobody_up() -> None:
    share, order = Clock().fair(1.0), list[str]()
    first = Asker(share, "a", order)
    wait_for(lambda: order)
    gone = Asker(share, "b", order)
    wait_for(lambda: len(share._waiting) == 1)
    last = Asker(share, "c", order)
    wait_for(lambda: len(share._waiting) == 2)
    gone.hung_up = True
    gone.thread.join(10)
    assert gone.ended == "gone"
    first.finish()
    last.finish()
    assert order == ["a", "c"]


def test_a_turn_that_fails_is_over() -> None:
    share = Clock().fair(1.0)
    with pytest.raises(ZeroDivisionError), share.of("a"):
        raise ZeroDivisionError
    with share.of("a"):
        pass
