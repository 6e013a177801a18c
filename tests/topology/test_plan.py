"""What extender and plugin write for each other survives a round trip, or is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.topology.annotations.plan import (
    CommunicatorEstimate,
    InUse,
    Plan,
    read_gpus,
    read_in_use,
    read_plan,
    write_gpus,
    write_in_use,
    write_plan,
)
from linkwise.topology.errors import AnnotationError, VersionError

PLAN = Plan(
    id="7c1e", node="n1", epoch=2, made=1767323045.5, link="NVLINK", gbytes_per_s=240.0, refusals=1
)
IN_USE = InUse(pods={"ml/w-0": {"main": ("GPU-a", "GPU-b")}, "ml/w-1": {}})


def test_a_plan_is_short_json_with_its_version_first() -> None:
    assert write_plan(Plan(id="7c1e", node="n1")) == '{"v":1,"id":"7c1e","node":"n1"}'
    named = Plan(uid="8f0c", id="7c1e", node="n1")
    assert write_plan(named) == '{"v":1,"uid":"8f0c","id":"7c1e","node":"n1"}'
    assert read_plan(write_plan(named)) == named


def test_what_is_written_is_read_again() -> None:
    assert read_plan(write_plan(PLAN)) == PLAN
    assert read_in_use(write_in_use(IN_USE)) == IN_USE
    assert read_gpus(write_gpus({"main": ("GPU-a",), "side": ()})) == {
        "main": ("GPU-a",),
        "side": (),
    }


@given(st.dictionaries(st.text(), st.lists(st.text(min_size=1)).map(tuple)))
def test_any_shares_come_back(shares: dict[str, tuple[str, ...]]) -> None:
    assert read_gpus(write_gpus(shares)) == shares


def test_fields_of_tomorrow_are_ignored() -> None:
    assert read_plan('{"v":1,"id":"a","node":"n1","mood":"good"}') == Plan(id="a", node="n1")


def test_a_plan_tells_what_its_gang_was_estimated_to_be_worth() -> None:
    worth = CommunicatorEstimate(together=43.2, inside=370.8, between=43.2)
    plan = Plan(id="a", node="n1", communicator=worth)
    assert write_plan(plan) == (
        '{"v":1,"id":"a","node":"n1",'
        '"communicator":{"together":43.2,"inside":370.8,"between":43.2}}'
    )
    assert read_plan(write_plan(plan)) == plan


@pytest.mark.parametrize(
    "wrong",
    [
        "null",
        "7",
        '"48 GB/s"',
        "[]",
        "{}",
        '{"together":"48","inside":48}',
        '{"together":-1,"inside":48}',
        '{"together":1e7,"inside":48}',
        '{"together":1e999,"inside":48}',
        '{"together":48,"inside":48,"between":"48"}',
        "[" * 500 + "]" * 500,
    ],
)
def test_a_wrong_estimate_costs_the_plan_nothing_else(wrong: str) -> None:
    text = f'{{"v":1,"id":"a","node":"n1","epoch":2,"mood":[1],"communicator":{wrong}}}'
    assert read_plan(text) == Plan(id="a", node="n1", epoch=2)


def test_a_wrong_estimate_does_not_hide_what_else_is_wrong() -> None:
    with pytest.raises(AnnotationError, match=r"length >= 1 - at `\$.id`"):
        read_plan('{"v":1,"id":"","node":"n1","communicator":7}')


@pytest.mark.parametrize("read", [read_plan, read_in_use])
def test_a_newer_version_is_refused_whatever_its_shape(read: object) -> None:
    assert callable(read)
    with pytest.raises(VersionError, match="'version 2': expected version 1 or older"):
        read('{"v":2,"plans":[]}')


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "JSON like {"),
        ("null", "Expected `object`, got `null`"),
        ("{}", "missing required field `id`"),
        ('{"id":"","node":"n1"}', r"length >= 1 - at `\$.id`"),
        ('{"id":"a","node":7}', r"Expected `str`, got `int` - at `\$.node`"),
        ('{"id":"a","node":"n1","epoch":"1"}', r"at `\$.epoch`"),
        ('{"v":"one","id":"a","node":"n1"}', r"Expected `int`, got `str` - at `\$.v`"),
        ('{"x":' + "[" * 99999, "JSON like {"),
    ],
)
def test_a_bad_plan_is_refused_with_the_key_and_the_place(text: str, error: str) -> None:
    with pytest.raises(AnnotationError, match=rf"^linkwise.dev/plan: .*{error}"):
        read_plan(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "Expected `object`, got `array`"),
        ('{"main":"GPU-a"}', "Expected `array`, got `str`"),
        ('{"main":[""]}', "length >= 1"),
        ('{"main":[7]}', "Expected `str`, got `int`"),
    ],
)
def test_bad_shares_are_refused(text: str, error: str) -> None:
    with pytest.raises(AnnotationError, match=rf"^linkwise.dev/gpus: .*{error}"):
        read_gpus(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"pods":[]}', r"Expected `object`, got `array` - at `\$.pods`"),
        ('{"pods":{"ml/w":["GPU-a"]}}', "Expected `object`, got `array`"),
    ],
)
def test_bad_use_is_refused(text: str, error: str) -> None:
    with pytest.raises(AnnotationError, match=rf"^linkwise.dev/in-use: .*{error}"):
        read_in_use(text)


@given(st.text() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_a_value_or_a_refusal(text: str) -> None:
    with pytest.raises(AnnotationError):
        read_plan(text)
