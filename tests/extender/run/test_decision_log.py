"""The log has a line for each decision, and the facts as fields."""

import logging

import pytest

from linkwise.extender.run.logs import log_decisions
from linkwise.extender.state.decisions import Decision, What

EVICTED = Decision(
    5.0,
    What.EVICTED,
    "ml/low-0",
    "ml/low",
    ("n1",),
    why="to make room for gang ml/big, which is more important",
    for_whom="gang ml/big",
    priority=0,
    for_priority=100,
)
PLANNED = Decision(5.0, What.PLANNED, "ml/a", nodes=("n1",), gpus={"main": ("GPU-1",)}, count=1)
FIELDS = ("pod", "gang", "node", "gpus", "reason", "for", "priority", "for_priority")


def test_a_decision_is_a_line_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "linkwise.extender.run.logs"):
        log_decisions([EVICTED, PLANNED])
    evicted, planned = caplog.records
    assert evicted.getMessage() == (
        "evicted ml/low-0: to make room for gang ml/big, which is more important "
        "(priority 0, for priority 100)"
    )
    assert {name: vars(evicted)[name] for name in FIELDS if name in vars(evicted)} == {
        "pod": "ml/low-0",
        "gang": "ml/low",
        "node": "n1",
        "reason": "to make room for gang ml/big, which is more important",
        "for": "gang ml/big",
        "priority": 0,
        "for_priority": 100,
    }
    assert planned.getMessage() == "planned ml/a on n1"
    assert vars(planned)["gpus"] == '{"main":["GPU-1"]}'
    assert "reason" not in vars(planned)
