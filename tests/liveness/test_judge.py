"""The judge of filters that Linkwise does not know: it knows where they let a gang go."""

from dataclasses import dataclass

import pytest

from linkwise.extender.api.actions import Action
from linkwise.extender.core import Core
from linkwise.simulator.scheduler import OtherFilter
from tests.liveness.day import Day
from tests.liveness.judge import STUCK_SECONDS, Judge
from tests.other_filters import Apart, Drawn, NodeClosed


class Idle(Core):
    def decide(self, now: float) -> tuple[Action, ...]:  # noqa: ARG002
        return ()


@dataclass
class IdleDay(Day):
    """Its extender forgets every gang."""

    def new_core(self) -> Core:
        return Idle(self.settings)


FOR_EVER = 1e12


@pytest.mark.parametrize(
    ("filters", "could_go"),
    [
        ([NodeClosed("n3", 0.0, FOR_EVER)], True),
        ([Apart(Drawn(0, 1)), NodeClosed("n3", 0.0, FOR_EVER)], True),
        ([NodeClosed("n1", 0.0, FOR_EVER), NodeClosed("n2", 0.0, FOR_EVER)], False),
        ([Apart(Drawn(0, 1)), NodeClosed("n1", 0.0, FOR_EVER)], False),
    ],
)
def test_a_gang_that_does_not_go_where_the_filters_let_it_is_seen(
    filters: list[OtherFilter], could_go: bool
) -> None:
    day = IdleDay()
    for node in ("n1", "n2"):
        day.add_node(node, "hgx-h100")
    day.other_filters += filters
    for rank in range(2):
        said = {"gang": "g", "gang-size": "2", "rank": str(rank)}
        day.make(f"g-{rank}", 2, namespace="red", said=said)
    judge = Judge(day)
    found: list[str] = []
    while day.now < 1_000_000.0 + STUCK_SECONDS + 900.0:
        day.live(day.now + 60.0, judge.before_jump)
        found += day.failures
        day.failures.clear()
    assert any("the filters let g-0, g-1 go" in text for text in found) is could_go
