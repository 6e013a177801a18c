"""A plan that is not carried out gives way to a more important gang."""

import pytest

from linkwise.extender.next.core_settings import CoreSettings, Preempt
from linkwise.extender.next.preemption.gang_preemption import IDLING_SECONDS, TRY_SECONDS
from linkwise.extender.state.extender_calls import BindOrder
from linkwise.topology import names
from tests.extender.cluster import Cluster
from tests.extender.meanwhile import Meanwhile

SOON = IDLING_SECONDS + 2 * TRY_SECONDS
LONG = "8760h"


def cluster(nodes: int = 1, preempt: Preempt = Preempt.CONSENTING) -> Cluster:
    at = Cluster(settings=CoreSettings(preempt=preempt))
    for number in range(nodes):
        at.add_node(f"n{number}", "hgx-h100")
    return at


def add(at: Cluster, gang: str, priority: int, size: int = 2, gpus: int = 4, **said: str) -> None:
    for rank in range(size):
        words = {"gang": gang, "gang_size": str(size), "rank": str(rank), **said}
        at.add_pod(f"{gang}-{rank}", gpus, priority=priority, said=words)
    at.settle()


def wait(at: Cluster, seconds: float) -> None:
    for _ in range(int(seconds)):
        at.pass_time(1.0)


@pytest.mark.parametrize("preempt", Preempt)
def test_a_more_important_gang_gets_what_nobody_binds(preempt: Preempt) -> None:
    """Found: a gang of priority 2,000,000,000 waited for as long as the other's timeout."""
    at = cluster(preempt=preempt)
    add(at, "hog", 0, gang_timeout=LONG)
    add(at, "urgent", 1000)
    wait(at, IDLING_SECONDS - 1)
    assert at.places("hog-0", "urgent-0") == ["n0", ""]
    wait(at, SOON)
    assert at.places("urgent-0", "urgent-1") == ["n0", "n0"]
    assert at.places("hog-0", "hog-1") == ["", ""]
    assert at.evicted == []
    told = [event.message for event in at.events if event.reason == "Withdrawn"]
    assert told == ["its plan was withdrawn for gang ml/urgent, which is more important"]
    assert at.sound()


def test_it_gets_a_plan_again_once_there_is_room() -> None:
    at = cluster()
    add(at, "hog", 0, gang_timeout=LONG)
    add(at, "urgent", 1000)
    wait(at, SOON)
    at.add_node("n1", "hgx-h100")
    at.settle()
    assert at.places("hog-0", "hog-1") == ["n1", "n1"]


def test_a_single_pod_behind_the_gate_may_have_it_too() -> None:
    at = cluster()
    add(at, "hog", 0, gang_timeout=LONG)
    at.add_pod("gated", 8, priority=1000, gates=[names.GATE])
    at.settle()
    wait(at, SOON)
    assert at.places("gated") == ["n0"]


@pytest.mark.parametrize("priority", [0, 7])
def test_one_that_is_not_more_important_waits(priority: int) -> None:
    at = cluster()
    add(at, "hog", 7, gang_timeout=LONG)
    add(at, "other", priority)
    wait(at, SOON)
    assert at.places("hog-0", "other-0") == ["n0", ""]


def test_a_gang_of_which_a_member_is_bound_keeps_its_plan() -> None:
    at = cluster()
    add(at, "runs", 0, gang_min="1", gang_timeout=LONG)
    at.bind("runs-0", "n0")
    add(at, "urgent", 1000)
    wait(at, SOON)
    assert at.places("runs-1", "urgent-0") == ["n0", ""]


def test_no_more_are_withdrawn_than_are_needed() -> None:
    at = cluster(nodes=3)
    for name in ("a", "b", "c"):
        add(at, name, 0, gang_timeout=LONG)
        at.now += 1.0
    add(at, "urgent", 1000)
    wait(at, SOON)
    planned = [name for name in ("a", "b", "c") if at.places(f"{name}-0") != [""]]
    assert len(planned) == 2
    assert at.places("urgent-0") != [""]


def test_none_is_withdrawn_if_that_makes_no_room() -> None:
    at = cluster()
    at.add_pod("runs", 1)
    at.schedule("runs")
    add(at, "small", 0, size=1, gang_timeout=LONG)
    add(at, "urgent", 1000)
    wait(at, SOON)
    assert at.places("small-0") == ["n0"]


@pytest.mark.parametrize("searches", range(6))
def test_a_plan_whose_binding_begins_meanwhile_is_carried_out(searches: int) -> None:
    at = cluster()
    at.core.replace_budgets([], at.now)
    add(at, "late", 0, gang_timeout=LONG)
    add(at, "urgent", 1000)
    wait(at, IDLING_SECONDS - 1)
    orders: list[object] = []

    def bind() -> None:
        for rank in range(2):
            at.come_to_bind(f"late-{rank}", "n0")
        orders.extend(at.come_to_bind(f"late-{rank}", "n0") for rank in range(2))

    meanwhile = Meanwhile(at, *[None] * searches, bind)
    wait(at, SOON)
    assert meanwhile.times > searches
    assert [type(order) for order in orders] == [BindOrder, BindOrder]
    assert at.places("late-0", "urgent-0") == ["n0", ""]
    assert at.sound()
