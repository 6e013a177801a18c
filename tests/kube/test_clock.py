"""The API server's clock is told from the dates of its answers."""

import logging
import random
from email.utils import formatdate
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from linkwise.kube.clock import ServerClock

NOON = 1_800_000_000.0


class Machine:
    """Its clock, and an API server whose clock is *ahead* of it."""

    def __init__(self, ahead: float) -> None:
        self.now, self.ahead = NOON, ahead
        self.clock = ServerClock(lambda: self.now)

    def ask(self, there: float = 0.01, back: float = 0.01, *, date: str | None = None) -> None:
        sent = self.now
        self.now += there
        shown = formatdate(self.now + self.ahead, usegmt=True) if date is None else date
        self.now += back
        self.clock.heard(shown, sent)

    @property
    def wrong(self) -> float:
        return abs(self.clock() - (self.now + self.ahead))


def test_without_an_answer_the_machines_clock_counts() -> None:
    assert Machine(300.0).clock() == NOON


@given(ahead=st.floats(-1e6, 1e6), seed=st.integers(0, 99), slow=st.floats(0, 30))
def test_one_answer_tells_the_difference_up_to_a_second_and_its_way(
    ahead: float, seed: int, slow: float
) -> None:
    chance = random.Random(seed)
    at = Machine(ahead)
    at.now += chance.random()
    at.ask(chance.random() * slow, chance.random() * slow)
    assert at.wrong <= 1.0 + slow + 1e-6


@given(ahead=st.floats(-1e6, 1e6), seed=st.integers(0, 99))
def test_many_answers_tell_it_better(ahead: float, seed: int) -> None:
    chance = random.Random(seed)
    at = Machine(ahead)
    for _ in range(200):
        at.now += chance.random() * 3.0
        at.ask()
    assert at.wrong <= 0.1


@given(ahead=st.floats(-0.01, 0.01), seed=st.integers(0, 99))
def test_a_machine_whose_clock_is_right_keeps_it(ahead: float, seed: int) -> None:
    chance = random.Random(seed)
    at = Machine(ahead)
    for _ in range(50):
        at.now += chance.random()
        at.ask(0.02, 0.02)
    assert at.clock() == at.now


def test_a_clock_that_is_set_is_followed_after_some_answers() -> None:
    at = Machine(0.0)
    at.ask()
    at.ahead = -70.0
    for _ in range(4):
        at.ask()
    assert at.clock() == at.now
    for _ in range(600):
        at.ask()
        at.now += 1.0
    assert at.wrong <= 1.1


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_the_clock_never_goes_back(ahead: float) -> None:
    """Whatever is due at a moment would be due an hour later."""
    at, seen = Machine(3.0), []
    for turn in range(9000):
        if turn == 100:
            at.ahead += ahead
        at.ask()
        at.now += 1.0
        seen.append(at.clock())
    assert all(later > before for before, later in pairwise(seen))
    assert at.wrong <= 1.1


def test_the_first_answer_sets_the_clock_back_too() -> None:
    at = Machine(-300.0)
    assert at.clock() == at.now
    at.ask()
    assert at.wrong <= 1.1


def test_one_server_of_three_with_another_clock_is_not_followed() -> None:
    at = Machine(0.0)
    for turn in range(30):
        at.ahead = 5.0 if turn % 3 == 2 else 0.0
        at.ask()
    assert at.clock() == at.now


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 99 Nov 2026 05:00:00 GMT", "0" * 5000])
def test_a_date_that_is_none_tells_nothing(date: str) -> None:
    at = Machine(300.0)
    at.ask(date=date)
    at.clock.heard(None, at.now)
    assert at.clock() == at.now


def test_a_large_difference_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    at = Machine(-70.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(9):
            at.ask()
            at.now += 0.4
    assert [record.getMessage() for record in caplog.records] == [
        "this machine's clock is 69 s ahead of the API server's, whose clock counts"
    ]
