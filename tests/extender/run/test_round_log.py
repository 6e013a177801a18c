"""How long the steps of a round took, at debug."""

import logging
from itertools import count

import pytest

from linkwise.extender.run.logs import RoundLog
from tests.extender.cluster import Cluster

LOGGER = "linkwise.extender.run.logs"


def a_round(rounds: RoundLog) -> None:
    rounds.begin()
    for step in ("reconcile", "allocate", "reserve", "allocate", "reserve", "publish"):
        rounds.step(step)
    rounds.end()


def test_a_step_that_has_several_turns_is_summed_up(caplog: pytest.LogCaptureFixture) -> None:
    ticks = count()
    with caplog.at_level(logging.DEBUG, LOGGER):
        a_round(RoundLog(lambda: next(ticks) / 1000))
    (line,) = caplog.records
    assert line.getMessage() == (
        "a round took 7.000 ms: reconcile 1.000, allocate 2.000, reserve 2.000, publish 1.000"
    )
    assert vars(line)["steps"] == {"reconcile": 1, "allocate": 2, "reserve": 2, "publish": 1}


def test_without_debug_it_asks_no_clock(caplog: pytest.LogCaptureFixture) -> None:
    ticks = count()
    with caplog.at_level(logging.INFO, LOGGER):
        a_round(RoundLog(lambda: next(ticks) / 1000))
    assert (caplog.records, next(ticks)) == ([], 0)


def test_a_round_tells_its_steps_in_their_order_also_in_a_later_term() -> None:
    at = Cluster()
    at.add_node("n1", "hgx-h100")
    steps: list[str] = []
    at.core.set_stopwatch(steps.append)
    at.core.lead(2, at.now)
    at.add_gang("fits", 1, 8)
    at.add_gang("waits", 1, 8)
    first = [*at.core.decide(at.now)]
    expected = ["reconcile", "allocate", "allocate", "reserve", "reserve", "preempt", "publish"]
    assert (steps, bool(first)) == (expected, True)
    at.settle()
    assert steps[-1:] == ["publish"]
