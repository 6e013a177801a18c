"""Worlds that a seed makes: whatever happens to the programs, they keep their promises.

A few seeds here; docs/testing.md has the command for more, and for a failing one alone.
"""

import pytest

from tests.end_to_end.random_workload import run, seeds_of, told
from tests.end_to_end.workload import workload


@pytest.mark.parametrize("seed", range(6))
def test_every_promise_holds_at_rest_and_nothing_is_left_after_the_last_pod(seed: int) -> None:
    result = run(seed)
    assert not result.broken, told(result)


@pytest.mark.parametrize("seed", range(3))
def test_every_promise_holds_beside_filters_that_linkwise_does_not_know(seed: int) -> None:
    result = run(seed, other_filters=True)
    assert not result.broken, told(result)


def test_a_seed_always_tells_the_same_story() -> None:
    first, again = workload(17), workload(17)
    assert first.machines == again.machines
    assert [(step.what, step.pause_seconds) for step in first.steps] == [
        (step.what, step.pause_seconds) for step in again.steps
    ]
    assert [step.what for step in workload(18).steps] != [step.what for step in first.steps]


def test_seeds_are_named_alone_or_from_to() -> None:
    assert seeds_of("7") == [7]
    assert seeds_of("0-3,9") == [0, 1, 2, 3, 9]
    with pytest.raises(ValueError, match="invalid literal"):
        seeds_of("all")
