"""What a namespace idles is bounded by what its gangs will use, and by the operator's limit."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from linkwise.extender.next.queue.idle_limit import IdleLimit, Idling

LIMIT = 100.0
OVER = {"red": Idling(8, math.inf, is_over=True)}


def within(worth: float) -> dict[str, Idling]:
    """8 GPUs idle, no more than the share; they may for so many GPU seconds."""
    return {"red": Idling(8, worth, is_over=False)}


def up_at(bound: IdleLimit, idling: dict[str, Idling]) -> float:
    """When the reservations end, if somebody looks at each time that it asks for."""
    while not bound.look(idling, now := min(bound.times())):
        pass
    return now


def test_the_time_of_a_namespace_is_up_once_it_has_been_over_for_so_long() -> None:
    bound = IdleLimit(LIMIT)
    assert bound.look(OVER, 0.0) == set()
    assert up_at(bound, OVER) == pytest.approx(LIMIT)


def test_within_the_share_it_is_up_once_it_has_idled_what_its_gang_will_use() -> None:
    bound = IdleLimit(LIMIT)
    bound.look(within(8 * 600.0), 0.0)
    assert up_at(bound, within(8 * 600.0)) == pytest.approx(600.0)


def test_half_as_many_gpus_idle_for_twice_as_long() -> None:
    bound = IdleLimit(LIMIT)
    bound.look(within(8 * 600.0), 0.0)
    fewer = {"red": Idling(4, 8 * 600.0, is_over=False)}
    bound.look(fewer, 300.0)
    assert up_at(bound, fewer) == pytest.approx(300.0 + 600.0)


def test_a_gang_that_never_ends_by_itself_keeps_its_share() -> None:
    bound = IdleLimit(LIMIT)
    bound.look(within(math.inf), 0.0)
    assert bound.look(within(math.inf), 1e9) == set()


def test_then_it_rests_for_as_long() -> None:
    bound = IdleLimit(LIMIT)
    bound.look(OVER, 0.0)
    bound.look(OVER, LIMIT)
    assert bound.rests_until("red", LIMIT) == 2 * LIMIT
    assert bound.rests_until("blue", LIMIT) is None
    assert min(bound.times()) == 2 * LIMIT
    assert bound.rests_until("red", 2 * LIMIT) is None
    bound.look({}, 2 * LIMIT)
    assert not [*bound.times()]


def test_it_rests_no_longer_than_the_limit() -> None:
    bound = IdleLimit(LIMIT)
    bound.look(within(8 * 600.0), 0.0)
    bound.look(within(8 * 600.0), 600.0)
    assert bound.rests_until("red", 600.0) == 600.0 + LIMIT


def test_an_account_is_given_back_while_nothing_idles() -> None:
    bound = IdleLimit(LIMIT)
    bound.look(OVER, 0.0)
    bound.look({}, LIMIT - 20)
    assert not [*bound.times()]
    bound.look(OVER, LIMIT + 10)
    assert up_at(bound, OVER) == pytest.approx(LIMIT + 10 + 50)
    bound.look({}, 1000.0)
    assert bound.idles_since("red") is None


def test_a_plan_that_comes_to_nothing_or_a_gang_that_is_made_again_is_no_use() -> None:
    """Found: a gang that kube-scheduler refused again and again stopped the clock of another; and
    one that was deleted just before the limit kept GPUs idle all the time."""
    bound, idled, now = IdleLimit(LIMIT), 0.0, 0.0
    while now < 20 * LIMIT:
        if bound.rests_until("red", now) is not None:
            now += 1.0
            bound.look({}, now)
            continue
        until = now + 0.9 * LIMIT
        bound.look(OVER, now)
        while now < until and not bound.look(OVER, now := now + 1.0):
            idled += 1.0
        bound.look({}, now)
        now += 0.1 * LIMIT
    assert idled <= 0.6 * now


def test_what_idled_for_a_gang_that_started_is_paid() -> None:
    """Three quarters of the GPUs idled for that one, the rest for others."""
    bound = IdleLimit(LIMIT)
    bound.look(within(8 * 600.0), 0.0)
    bound.was_of_use("red", 0.75, 480.0)
    assert bound.used("red") == 0.25  # 0.2, rounded up
    assert up_at(bound, within(8 * 600.0)) == pytest.approx(480.0 + 0.8 * 600.0)


def test_that_a_gang_starts_does_not_prolong_what_idles_beyond_the_share() -> None:
    bound = IdleLimit(LIMIT)
    bound.look(OVER, 2000.0)
    bound.was_of_use("red", 1.0, 2050.0)
    assert (bound.used("red"), bound.idles_since("red")) == (0.5, 2050.0)
    assert up_at(bound, OVER) == pytest.approx(2100.0)
    bound.look(OVER, 3000.0)
    bound.look(within(8 * 600.0), 3050.0)
    bound.was_of_use("red", 1.0, 3060.0)
    assert bound.used("red") == 0.0


def test_a_new_leader_goes_on_from_what_was_noted() -> None:
    """What idles now may have begun a moment ago, so nothing is charged for the time before."""
    bound = IdleLimit(LIMIT)
    bound.look(within(8 * 600.0), 1000.0)
    assert min(bound.times()) == 1000.0 + 600.0 / 16
    bound.look(within(8 * 600.0), 1290.0)
    assert bound.used("red") == 0.5
    after = IdleLimit(LIMIT)
    after.go_on("red", bound.idles_since("red"), bound.used("red"), None, 1400.0)
    assert after.look(within(8 * 600.0), 1401.0) == set()
    assert after.idles_since("red") == 1000.0
    assert after.look(within(8 * 600.0), 1699.0) == set()
    assert after.look(within(8 * 600.0), 1701.0) == {"red"}
    after.go_on("blue", None, 0.0, 1e300, 1400.0)
    assert after.rests_until("blue", 1400.0) == 1400.0 + LIMIT


def test_a_clock_that_is_set_back_makes_no_rest_longer() -> None:
    bound = IdleLimit(LIMIT)
    bound.look(OVER, 1e6)
    assert bound.look(OVER, 1e6 + LIMIT) == {"red"}
    bound.look({}, 0.0)
    assert bound.rests_until("red", 0.0) == LIMIT


@given(st.lists(st.tuples(st.floats(0.1, 60.0), st.booleans()), max_size=60))
def test_whatever_comes_nobody_is_over_for_longer_and_never_while_it_rests(
    steps: list[tuple[float, bool]],
) -> None:
    bound, now, over_since = IdleLimit(LIMIT), 0.0, None
    for seconds, wants in steps:
        due = min(bound.times(), default=math.inf)
        now = min(now + seconds, due) if due > now else now + seconds
        over = wants and bound.rests_until("red", now) is None
        over_since = (now if over_since is None else over_since) if over else None
        if bound.look(OVER if over else {}, now):
            over_since = None
        assert over_since is None or now - over_since <= LIMIT * (1 + 1e-6)
