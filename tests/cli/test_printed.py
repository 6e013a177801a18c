"""What others wrote does not rule the terminal of who reads it."""

import json

import pytest

from linkwise.cli.printed import printable, say
from linkwise.cli.table import aligned


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


def test_no_cell_forges_a_row() -> None:
    table = aligned([["NAME", "STATE"], ["a\nb  running", "waits"]])
    assert table.splitlines() == ["NAME           STATE", r"a\nb  running  waits"]


def test_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say("one\ntwo\x1b[2J\n")
    say(b"three\xff\n", err=True)
    assert capsys.readouterr() == ("one\ntwo\\u001b[2J\n", "three\ufffd\n")
