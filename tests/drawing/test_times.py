"""The lines of a pod in time: where they begin and end, and that each can be seen."""

from hypothesis import given
from hypothesis import strategies as st

from linkwise.drawing.times import WIDTH, PodTimes, Scale

SCALE = Scale(10.0, 40.0)


def test_times_outside_are_at_the_nearer_edge() -> None:
    assert [SCALE.x(time) for time in (0.0, 10.0, 25.0, 40.0, 99.0)] == [0, 0, 150, 300, 300]


def test_what_took_no_time_is_a_pixel_wide_and_too_short_a_bar_has_no_hole() -> None:
    lines = SCALE.lines(8, PodTimes(20.0, 20.0, 20.1, 20.1), waits=False)

    assert lines == ("M100 8H101", "M100 8H101", "", "M101 8H102")


def test_a_bound_pod_whose_binding_is_unknown_shows_only_that_it_runs() -> None:
    lines = SCALE.lines(8, PodTimes(20.0, None, 25.0), waits=False)

    assert lines == ("", "", "", "M150 8H300")


@given(st.lists(st.floats(0, 100), min_size=4, max_size=4), st.integers(1, 4), st.booleans())
def test_no_line_leaves_the_picture_or_goes_back(
    moments: list[float], known: int, waits: bool
) -> None:
    created, *later = sorted(moments)
    bound, running, ended = (
        moment if number < known else None for number, moment in enumerate(later, 1)
    )

    lines = SCALE.lines(5, PodTimes(created, bound, running, ended), waits=waits)

    for path in filter(None, lines):
        left, _, right = path[1:].replace(" 5H", " ").partition(" ")
        assert 0 <= float(left) < float(right) <= WIDTH
