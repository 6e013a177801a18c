"""What others wrote does not rule the terminal of who reads it."""

import pytest

from linkwise.cli.printed import say


def test_lines_stay_lines(capsys: pytest.CaptureFixture[str]) -> None:
    say("one\ntwo\x1b[2J\n")
    say(b"three\xff\n", err=True)
    assert capsys.readouterr() == ("one\ntwo\\u001b[2J\n", "three\ufffd\n")
