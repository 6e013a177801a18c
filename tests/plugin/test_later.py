"""What can wait is done after what was asked for last, whatever happened before."""

import threading
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from linkwise.plugin.later import Later
from tests.waiting import wait_for

Start = Callable[[Callable[[], None]], Later]


@pytest.fixture
def started() -> Iterator[Start]:
    running: list[Later] = []

    def start(act: Callable[[], None]) -> Later:
        running.append(Later("the test's call", act, seconds=0.0))
        running[-1].start()
        return running[-1]

    yield start
    for each in running:
        each.stop()


def test_what_is_asked_for_during_a_call_is_followed_by_another(started: Start) -> None:
    begun, may_end, calls = Event(), Event(), list[int]()

    def act() -> None:
        calls.append(len(calls))
        begun.set()
        may_end.wait()

    later = started(act)
    later.ask()
    begun.wait()
    later.ask()
    may_end.set()
    wait_for(lambda: len(calls) == 2, "the second call")


def test_a_call_that_fails_is_not_the_last_one(started: Start) -> None:
    calls = list[int]()

    def act() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise RuntimeError("as a defect would")

    later = started(act)
    later.ask()
    wait_for(lambda: len(calls) == 1, "the call that fails")
    later.ask()
    wait_for(lambda: len(calls) == 2, "the next one")


def test_a_repeated_call_comes_at_the_start_and_each_time_that_has_passed() -> None:
    calls = list[int]()
    later = Later("the test's call", lambda: calls.append(0), seconds=3600.0, every_seconds=0.01)
    later.start()
    wait_for(lambda: len(calls) >= 3, "three calls that were not asked for")
    later.stop()
    assert "the test's call" not in {each.name for each in threading.enumerate()}


def test_nothing_is_called_once_it_was_stopped() -> None:
    calls = list[int]()
    later = Later("the test's call", lambda: calls.append(0), seconds=3600.0)
    later.start()
    later.ask()
    later.stop()
    assert "the test's call" not in {each.name for each in threading.enumerate()}
    assert not calls
