"""A few random clusters beside brute force; `python -m tests.extender.placement.near_best` tries
many."""

import pytest

from linkwise.extender.placement.worth import communicator
from tests.extender.placement.near_best import case_of, judged


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_what_the_core_chooses_is_worth_nearly_the_best(first: int) -> None:
    found = [judged(case_of(number)) for number in range(first, first + 20)]
    assert not [each.flaw for each in found if each.flaw]
    assert min(each.share for each in found) >= 1 - communicator.TOLERANCE
    assert any(each.got is not None for each in found)


def test_brute_force_notices_a_search_that_is_content_with_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("linkwise.extender.placement.search.domain_search.TOLERANCE", 0.9)
    shares = [judged(case_of(number)).share for number in range(40)]
    assert min(shares) < 1 - communicator.TOLERANCE


@pytest.mark.parametrize(
    "number", [26795, 27297, 21709, 46579, 56961, 22768, 62635, 106849, 111643, 126939]
)
def test_cases_that_were_worth_half_or_refused_are_near_the_best(number: int) -> None:
    found = judged(case_of(number))
    assert not found.flaw
    assert found.got is not None
    assert found.share >= 1 - communicator.TOLERANCE
