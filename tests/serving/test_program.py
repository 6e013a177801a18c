"""The log as one JSON object a line."""

import io
import json
import logging
import sys
from typing import Any

from linkwise.serving.program import JsonFormatter


def written(*words: object, level: int = logging.INFO, **more: Any) -> dict[str, Any]:
    """The one line that a record becomes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    log = logging.Logger("linkwise.made.up")
    log.addHandler(handler)
    log.log(level, *words, **more)
    (line,) = stream.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_record_says_when_how_grave_who_and_what() -> None:
    said = written("bound %s", "ml/a to n1", level=logging.WARNING)
    assert sorted(said) == ["level", "logger", "message", "time"]
    assert (said["level"], said["logger"]) == ("warning", "linkwise.made.up")
    assert said["message"] == "bound ml/a to n1"
    assert said["time"][10] + said["time"][19] + said["time"][-1] == "T.Z"


def test_a_record_about_a_pod_and_a_node_names_them() -> None:
    said = written("bound", extra={"pod": "ml/a", "node": "n1", "secret": "x"})
    assert (said["pod"], said["node"]) == ("ml/a", "n1")
    assert "secret" not in said


def test_numbers_stay_numbers() -> None:
    assert written("evicted", extra={"priority": -7, "for": "gang ml/a"})["priority"] == -7


def test_text_of_any_kind_stays_in_one_line() -> None:
    text = 'two\nlines, "quotes", é, \x1b[31m and \u2028'
    assert written("%s", text)["message"] == text


def test_an_exception_is_a_field() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        said = written("failed", exc_info=sys.exc_info())
    assert said["exception"].splitlines()[-1] == "ValueError: odd"
