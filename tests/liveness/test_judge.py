"""The judge of days: of which gangs it knows, and where filters that Linkwise does not know let a
gang go."""

from dataclasses import dataclass

import pytest

from linkwise.extender.core import Core
from linkwise.extender.state.actions import Action
from linkwise.kube.objects import OwnerReference
from linkwise.pods.podgrouper.workloads.answer import ObjectRef
from linkwise.simulator.scheduler import OtherFilter
from tests.liveness.day import Day
from tests.liveness.judge import STUCK_SECONDS, Judge, change
from tests.other_filters import Apart, Drawn, NodeClosed


class Idle(Core):
    def decide(self, now: float) -> tuple[Action, ...]:  # noqa: ARG002
        return ()

    def next_due(self) -> None:
        """What is due stays due: a day would ask 20 times in each of its seconds."""


@dataclass
class IdleDay(Day):
    """Its extender forgets every gang."""

    def new_core(self) -> Core:
        return Idle(self.settings)


FOR_EVER = 1e12


def found_on(day: Day, seconds: float = STUCK_SECONDS + 900.0) -> list[str]:
    judge, ends, found = Judge(day), day.now + seconds, list[str]()
    while day.now < ends:
        day.live(day.now + 60.0, judge.before_jump)
        found += day.failures
        day.failures.clear()
    return found


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
    found = found_on(day)
    assert any("the filters let g-0, g-1 go" in text for text in found) is could_go


def test_a_gang_of_a_job_that_does_not_go_is_seen() -> None:
    """Of which gang a pod of a Job is, an extender knows once it has read the Job."""
    day = IdleDay(owners={ObjectRef("batch", "Job", "red", "g"): {"metadata": {"uid": "u"}}})
    day.add_node("n1", "hgx-h100")
    job = OwnerReference("Job", "g", "u", "batch/v1", controller=True)
    for rank in range(2):
        said = {"gang": "g", "gang-size": "2", "rank": str(rank)}
        day.make(f"g-{rank}", 2, namespace="red", said=said, owner=job)
    assert any("g-0, g-1 could go to n1" in text for text in found_on(day, 120.0))


def by_claims(day: Day, closed_until: float) -> None:
    """A pod with a claim waits while a filter refuses the node that gives GPUs by claims."""
    day.add_node_by_claims("n1", "hgx-h100")
    day.claims_for = lambda _: True
    day.other_filters.append(NodeClosed("n1", 0.0, closed_until))
    pod = day.make("p", 2, namespace="red", said={})
    day.put_pod(change(pod, spec=change(pod.spec, scheduling_gates=())))


def test_filters_let_no_pod_with_a_claim_go_where_a_device_plugin_gives_the_gpus() -> None:
    day = IdleDay()
    day.add_node("n2", "hgx-h100")
    by_claims(day, FOR_EVER)
    assert not any("the filters let p go" in text for text in found_on(day))


def test_a_node_that_a_filter_refused_is_left_to_the_pause() -> None:
    """The fifth pause begins after 310 s, and nothing tells the extender that the node is open."""
    day = Day()
    by_claims(day, day.now + 350.0)
    assert not found_on(day, 700.0)
    assert day.pod("p").spec.node_name == "n1"


def half_full(kind: type[Day], *, closed: str, seconds: float) -> Day:
    """Of two nodes, the one that a filter has not *closed* is full. After these seconds, the other
    one opens by time alone, which makes no event."""
    day = kind()
    day.other_filters.append(NodeClosed(closed, 0.0, day.now + seconds))
    for node in ("n1", "n2"):
        day.add_node(node, "hgx-h100")
    day.make("first", 8, namespace="red", said={})
    day.live(day.now + 30.0, lambda _: None)
    return day


@pytest.mark.parametrize("kind", [Day, IdleDay])
def test_a_planned_pod_that_a_filter_refused_is_left_to_kube_scheduler(kind: type[Day]) -> None:
    day = half_full(kind, closed="n2", seconds=60.0)
    day.make("p", 2, namespace="red", said={})
    found = found_on(day, 400.0)
    assert any("p would do on n2" in text for text in found) is (kind is IdleDay)
    assert day.pod("p").spec.node_name == "n2"


@pytest.mark.parametrize("kind", [Day, IdleDay])
def test_a_gang_that_no_node_takes_is_left_to_its_pause(kind: type[Day]) -> None:
    """Events of n2, which is full, have n1 refuse it several times. Then n1 opens."""
    day = half_full(kind, closed="n1", seconds=150.0)
    for rank in range(2):
        said = {"gang": "g", "gang-size": "2", "rank": str(rank)}
        day.make(f"g-{rank}", 2, namespace="red", said=said)
    for number in range(7):
        day.live(day.now + 15.0, lambda _: None)
        full = day.nodes["n2"]
        labels = {**full.metadata.labels, "number": str(number)}
        day.put_node(change(full, metadata=change(full.metadata, labels=labels)))
    found = found_on(day, 700.0)
    assert any("g-0, g-1 could go to n1" in text for text in found) is (kind is IdleDay)
    assert (day.pod("g-0").spec.node_name == "n1") is (kind is Day)
