"""The annotation of what pods do with their GPUs."""

import pytest

from linkwise.topology.annotations.activity import (
    Activity,
    PodActivity,
    read_activity,
    write_activity,
)
from linkwise.topology.errors import AnnotationError, VersionError


def test_what_is_written_is_read_and_what_is_not_known_is_left_out() -> None:
    activity = Activity(
        at=1_763_876_400,
        pods={
            "ml/nb": PodActivity(since=1_763_870_000, idle=1_763_870_600, day=1, memory=12),
            "ml/job": PodActivity(since=1_763_870_000, whole=True),
        },
    )
    text = write_activity(activity)
    assert text == (
        '{"v":1,"at":1763876400,"hold":300,"pods":{'
        '"ml/nb":{"since":1763870000,"idle":1763870600,"day":1,"memory":12},'
        '"ml/job":{"since":1763870000,"whole":true}}}'
    )
    assert read_activity(text) == activity


def test_fields_of_a_later_reader_are_ignored() -> None:
    assert read_activity('{"at":1,"new":2,"pods":{"a/b":{"since":1,"more":[]}}}') == Activity(
        at=1, pods={"a/b": PodActivity(since=1)}
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "Input data was truncated"),
        ("{}", "missing required field `at`"),
        ('{"at":-1}', "`int` >= 0"),
        ('{"at":1,"pods":{"a/b":{"since":1,"idle":"yesterday"}}}', "Expected `int | null`"),
        ('{"at":1,"pods":{"a/b":{"since":1,"day":101}}}', "`int` <= 100"),
        ('{"at":1,"pods":{"a/b":{}}}', "missing required field `since`"),
    ],
)
def test_a_wrong_annotation_names_itself_and_what_was_expected(text: str, wrong: str) -> None:
    with pytest.raises(AnnotationError, match=r"linkwise\.dev/activity") as caught:
        read_activity(text)
    assert wrong in str(caught.value)


def test_a_newer_version_is_refused_as_such() -> None:
    with pytest.raises(VersionError):
        read_activity('{"v":2,"at":"other"}')
