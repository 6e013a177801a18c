"""All faults of a pod's annotations at once, and keys that only look like annotations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.pods.annotation_faults import MOST, faults_of, meant, near_misses
from linkwise.pods.annotations import BY_PODS, ask_of
from linkwise.topology import names
from linkwise.topology.errors import AnnotationError

FIVE = {
    names.GANG: "train",
    "linkwise.dev/gang-sise": "2",
    "linkwise.dev/foo": "x",
    names.GANG_TIMEOUT: "soon",
    names.RANK: "first",
    names.REQUIRE_LINK: "NVLINK",
}


def test_every_wrong_annotation_is_named_and_what_only_follows_is_not() -> None:
    found = faults_of(FIVE, {})
    assert [fault.partition(":")[0] for fault in found] == [
        "linkwise.dev/foo",
        "linkwise.dev/gang-sise",
        names.RANK,
        names.REQUIRE_LINK,
        names.GANG_TIMEOUT,
    ]


@pytest.mark.parametrize(
    ("said", "count"),
    [
        ({names.GANG: "a", names.GANG_SIZE: "two", names.GANG_MIN: "2"}, 1),
        ({names.GANG: "a", names.GANG_SIZE: "two", names.GANG_MIN: "no"}, 2),
        ({names.GANG: "a", names.GANG_MIN: "1"}, 1),
        ({"linkwise.dev/gnag": "a", names.GANG_SIZE: "2"}, 1),
        ({names.GANG_SIZE: "2", names.GANG_MIN: "1", names.GANG_TIMEOUT: "1m"}, 1),
        ({names.GANG: " ", names.GANG_SIZE: "x"}, 2),
        ({names.GANG: "a", names.GANG_SIZE: "2", names.GANG_MIN: "3"}, 1),
        ({names.GANG: "a", names.GANG_SIZE: "2"}, 0),
    ],
)
def test_a_gang_is_judged_beside_what_is_right_of_it(said: dict[str, str], count: int) -> None:
    assert len(faults_of(said, {})) == count


WORDS = st.sampled_from(["gang", "2", "1h", "nvlink", "true", "spread", "x" * 2000, "", " "])
SAID = st.dictionaries(st.sampled_from([*BY_PODS, "linkwise.dev/a", "linkwise.dev/gnag"]), WORDS)


@given(SAID)
def test_there_are_faults_exactly_where_the_parser_finds_one_and_its_own_is_the_first(
    said: dict[str, str],
) -> None:
    found = faults_of(said, {})
    if not found:
        ask_of(said, {})
        return
    with pytest.raises(AnnotationError) as raised:
        ask_of(said, {})
    assert found[0] == str(raised.value)


def test_of_very_many_only_the_first_are_named() -> None:
    said = {f"linkwise.dev/x-{number}": "" for number in range(1000)}
    assert len(faults_of(said, {})) == MOST
    labels = {f"linkwise.dev/gang-size{number % 10}": "" for number in range(1000)}
    many = {f"linkwise.x{number}/gang": "" for number in range(1000)}
    assert len(near_misses(many, labels)) == MOST


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("linkwise.io/gang-size", names.GANG_SIZE),
        ("linkwise/gang", names.GANG),
        ("linkwise.dev.gang", names.GANG),
        ("linkwise-gang-size", names.GANG_SIZE),
        ("Linkwise.dev/gang-sise", names.GANG_SIZE),
        ("www.linkwise.dev/require-link", names.REQUIRE_LINK),
        ("simulator.linkwise.dev/run-seconds", ""),
        ("linkwise.dev/webhook", ""),
        ("example.com/gang", ""),
        ("linkwise", ""),
        ("linkwise.dev/gpu-node", ""),
        ("linkwise.dev/" + "g" * 100_000, ""),
    ],
)
def test_a_key_that_is_near_an_annotation_is_known(key: str, instead: str) -> None:
    assert meant(key) == instead


def test_annotations_and_labels_that_do_nothing_are_told_apart() -> None:
    annotations = {"linkwise.io/gang": "a", names.GANG: "a", "linkwise.dev/gang-sise": "2"}
    labels = {names.GANG: "a", "linkwise.io/gang-size": "2", "app": "a"}
    assert near_misses(annotations, labels) == (
        "annotation linkwise.io/gang has no effect: write linkwise.dev/gang",
        "label linkwise.dev/gang has no effect: write it as an annotation",
        "label linkwise.io/gang-size has no effect: write it as an annotation, "
        "linkwise.dev/gang-size",
    )
