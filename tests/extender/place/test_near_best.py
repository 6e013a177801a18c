"""A few random clusters beside brute force; `python -m tests.extender.place.near_best` tries
many."""

import pytest

from linkwise.extender.place import communicator
from tests.extender.place.near_best import case_of, judged, of_many_kinds, of_network


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_what_the_core_chooses_is_worth_nearly_the_best(first: int) -> None:
    found = [judged(case_of(number)) for number in range(first, first + 20)]
    assert not [each.flaw for each in found if each.flaw]
    assert min(each.share for each in found) >= 1 - communicator.TOLERANCE
    assert any(each.got is not None for each in found)


def test_brute_force_notices_a_search_that_is_content_with_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("linkwise.extender.place.search.domain_search.TOLERANCE", 0.9)
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


@pytest.mark.parametrize("first", range(50, 125, 25))
def test_a_gang_that_fits_into_no_leaf_is_in_the_fewest(first: int) -> None:
    found = [judged(of_network(number)) for number in range(first, first + 25)]
    assert not [each.flaw for each in found if each.flaw]


def test_brute_force_notices_a_search_that_takes_the_tightest_zone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = "linkwise.extender.place.search"
    monkeypatch.setattr(f"{search}.domain_search._MOST_DOMAINS", 1)
    monkeypatch.setattr(f"{search}.domain_search.at_least", lambda *_: ())
    monkeypatch.setattr(f"{search}.domain_packing.fewest_domains", lambda *_: None)
    flaws = [judged(of_network(number)).flaw for number in (56, 92, 108, 121)]
    assert all("domains" in flaw for flaw in flaws)


@pytest.mark.parametrize("number", [5, 43, 50, 58, 82, 91, 131, 192, 197, 217, 316, 333])
def test_members_that_all_differ_are_near_the_best(number: int) -> None:
    """These were refused, or had two thirds of it at most."""
    found = judged(of_many_kinds(number))
    assert not found.flaw
    assert found.share >= 1 - communicator.TOLERANCE
