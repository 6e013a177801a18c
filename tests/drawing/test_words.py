"""Amounts, lists and what others wrote, as text."""

import json

import pytest

from linkwise.drawing.words import alike, duration, facts, indices, printable, some


def test_what_can_be_seen_stays() -> None:
    for text in ("train", "größe 8 → 16", "训练", ""):
        assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("ok\nCLUSTER running", r"ok\nCLUSTER running"),
        ("\x1b[31mred\x1b]0;title\a", r"\u001b[31mred\u001b]0;title\u0007"),
        ("\u202egnp", r"\u202egnp"),
        ("\r\x9b2J\x00\x7f", "\\r\\u009b2J\\u0000\\u007f"),
        ("\U000e0001", r"\udb40\udc01"),
    ],
)
def test_what_cannot_is_an_escape_of_json(text: str, seen: str) -> None:
    assert printable(text) == seen
    assert json.loads(f'"{seen}"') == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (119.9, "119s"),
        (120, "2m"),
        (3600, "1h"),
        (11400, "3h10m"),
        (86400, "1d"),
        (90000, "1d1h"),
    ],
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("gpus", "text", "with_short_runs_apart"),
    [
        ((), "", ""),
        ((3,), "3", "3"),
        ((1, 0), "0-1", "0,1"),
        ((0, 1, 2, 5), "0-2,5", "0-2,5"),
        ((7, 4, 0, 5), "0,4-5,7", "0,4,5,7"),
    ],
)
def test_gpus_are_runs_of_indices(
    gpus: tuple[int, ...], text: str, with_short_runs_apart: str
) -> None:
    assert indices(gpus) == text
    assert indices(gpus, shortest=3) == with_short_runs_apart


def test_of_many_names_the_first_are_told_and_how_many_more_there_are() -> None:
    assert some(("a", "b"), 2) == "a, b"
    assert some(("a", "b", "c"), 2) == "a, b and 1 more"
    assert some(("a", "b", "c"), 2, left_out=4) == "a, b and 5 more"
    assert [*facts("pods", ("a", "b", "c"), 2)] == [
        "  pods      a",
        "            b",
        "            and 1 more",
    ]
    assert alike(("ab", "cd", "ae"), lambda word: word[0]) == [("ab", 1), ("cd", 0)]
