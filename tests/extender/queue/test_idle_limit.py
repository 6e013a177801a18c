"""No namespace idles more than its share for longer than the operator's limit."""

import math

import hypothesis.strategies as st
from hypothesis import given

from linkwise.extender.queue.idle_limit import IdleLimit

LIMIT = 100.0


def test_the_time_of_a_namespace_is_up_once_it_has_been_over_for_so_long() -> None:
    bound = IdleLimit(LIMIT)
    assert bound.look({"red"}, 0.0) == set()
    assert min(bound.times()) == LIMIT
    assert bound.look({"red"}, LIMIT - 1) == set()
    assert bound.look({"red"}, LIMIT) == {"red"}


def test_then_it_rests_for_as_long() -> None:
    bound = IdleLimit(LIMIT)
    bound.look({"red"}, 0.0)
    bound.look({"red"}, LIMIT)
    assert bound.rests_until("red", LIMIT) == 2 * LIMIT
    assert bound.rests_until("blue", LIMIT) is None
    assert min(bound.times()) == 2 * LIMIT
    assert bound.rests_until("red", 2 * LIMIT) is None
    bound.look(set(), 2 * LIMIT)
    assert not [*bound.times()]


def test_a_clock_begins_at_nought_where_the_share_was_kept_between() -> None:
    bound = IdleLimit(LIMIT)
    bound.look({"red"}, 0.0)
    bound.look(set(), LIMIT - 20)
    assert bound.look({"red"}, LIMIT) == set()
    assert bound.look({"red"}, 2 * LIMIT - 1) == set()


def test_a_plan_that_comes_to_nothing_at_once_is_no_use() -> None:
    """Found: a gang that kube-scheduler refused again and again stopped the clock of another."""
    bound = IdleLimit(LIMIT)
    bound.look({"red"}, 0.0)
    bound.look(set(), 50.0)
    assert not [*bound.times()]
    assert bound.look({"red"}, 51.0) == set()
    bound.look(set(), 98.0)
    assert bound.look({"red"}, 107.0) == {"red"}


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
        if bound.look({"red"} if over else set(), now):
            over_since = None
        assert over_since is None or now - over_since < LIMIT
