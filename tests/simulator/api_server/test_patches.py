"""The patch formats: examples of their specifications, and laws."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkwise.simulator.api_server.patches import json_patch, merge, strategic
from linkwise.simulator.api_server.refusals import RequestRefusedError

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


# RFC 7386, appendix A
@pytest.mark.parametrize(
    ("old", "patch", "new"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches(old: Any, patch: Any, new: Any) -> None:
    assert merge(old, patch) == new


@given(JSON_VALUES, JSON_VALUES)
def test_a_merge_patch_leaves_the_old_value_and_does_no_more_the_second_time(
    old: Any, patch: Any
) -> None:
    before = deepcopy(old)
    once = merge(old, patch)
    assert old == before
    assert merge(once, patch) == once


# RFC 6902, appendix A
@pytest.mark.parametrize(
    ("old", "operation", "new"),
    [
        ({"foo": "bar"}, {"op": "add", "path": "/baz", "value": 1}, {"foo": "bar", "baz": 1}),
        ({"foo": [1, 3]}, {"op": "add", "path": "/foo/1", "value": 2}, {"foo": [1, 2, 3]}),
        ({"foo": [1]}, {"op": "add", "path": "/foo/-", "value": 2}, {"foo": [1, 2]}),
        ({"foo": [1, 2]}, {"op": "remove", "path": "/foo/0"}, {"foo": [2]}),
        ({"foo": [1, 2]}, {"op": "replace", "path": "/foo/0", "value": 9}, {"foo": [9, 2]}),
        ({"a": {"b": 1}, "c": {}}, {"op": "move", "from": "/a/b", "path": "/c/d"}, None),
        ({"foo": 1}, {"op": "copy", "from": "/foo", "path": "/bar"}, {"foo": 1, "bar": 1}),
        ({"a/b": 1}, {"op": "test", "path": "/a~1b", "value": 1}, {"a/b": 1}),
        ({"a": 1}, {"op": "replace", "path": "", "value": {"b": 2}}, {"b": 2}),
    ],
)
def test_json_patches(old: Any, operation: Any, new: Any) -> None:
    moved = {"a": {}, "c": {"d": 1}}
    assert json_patch(old, [operation]) == (moved if new is None else new)


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/absent"},
        {"op": "replace", "path": "/absent", "value": 1},
        {"op": "test", "path": "/foo", "value": "other"},
        {"op": "add", "path": "/list/9", "value": 1},
        {"op": "add", "path": "no-slash", "value": 1},
        {"op": "add", "path": "/foo"},
        {"op": "polish", "path": "/foo"},
        "add",
    ],
)
def test_a_json_patch_that_cannot_be_done_is_refused(operation: Any) -> None:
    with pytest.raises(RequestRefusedError) as error:
        json_patch({"foo": "bar", "list": []}, [operation])
    assert error.value.code == 422


@pytest.mark.parametrize(
    ("old", "patch", "new"),
    [
        ([{"name": "a", "x": 1}], [{"name": "a", "y": 2}], [{"name": "a", "x": 1, "y": 2}]),
        ([{"name": "a"}], [{"name": "b"}], [{"name": "a"}, {"name": "b"}]),
        ([{"name": "a"}, {"name": "b"}], [{"name": "a", "$patch": "delete"}], [{"name": "b"}]),
        ([{"name": "a"}], [{"$patch": "replace"}, {"name": "c"}], [{"name": "c"}]),
        (None, [{"name": "a"}], [{"name": "a"}]),
    ],
)
def test_strategic_patches_of_a_list_with_keys(old: Any, patch: Any, new: Any) -> None:
    spec = {} if old is None else {"containers": old}
    assert strategic(spec, {"containers": patch}) == {"containers": new}


def test_a_strategic_patch_replaces_lists_without_keys_and_merges_objects() -> None:
    old = {"taints": [{"key": "a"}], "labels": {"x": "1", "y": "2"}}
    patch = {"taints": [{"key": "b"}], "labels": {"x": None, "$retainKeys": ["y"]}}
    assert strategic(old, patch) == {"taints": [{"key": "b"}], "labels": {"y": "2"}}
    assert strategic(old, {"labels": {"$patch": "replace", "z": "3"}})["labels"] == {"z": "3"}


def test_an_entry_without_its_merge_key_is_refused() -> None:
    with pytest.raises(RequestRefusedError, match="merge key: name"):
        strategic({}, {"containers": [{"image": "x"}]})
