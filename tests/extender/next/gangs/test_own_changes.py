"""A gang whose own pods change after they were planned waits before the next plan: each plan is a
write for each member."""

import pytest

from linkwise.extender.next.gangs.lifecycle import ALTERED
from linkwise.extender.state.actions import WithdrawPlan, WritePlan
from linkwise.topology import names
from tests.extender.cluster import Cluster

MEMBERS = 8
FLIPS = {
    "a clash": ({"gang_size": "9"}, {"gang_size": "8"}),
    "no room for a member": ({"gpu_model": "B200"}, {"gpu_model": "H100"}),
}


def planned() -> Cluster:
    at = Cluster()
    for number in range(2):
        at.add_node(f"n{number}", "hgx-h100")
    at.add_gang("g", MEMBERS, 1)
    at.settle()
    assert at.phase("g") == "planned"
    return at


def writes(at: Cluster) -> int:
    return sum(isinstance(each, WritePlan | WithdrawPlan) for each in at.settle())


@pytest.mark.parametrize("flip", FLIPS.values(), ids=FLIPS)
def test_one_who_changes_a_pod_all_the_time_causes_few_writes(
    flip: tuple[dict[str, str], dict[str, str]],
) -> None:
    at, count = planned(), 0
    for _ in range(150):
        for said in flip:
            at.annotate("g-0", **said)
            count += writes(at)
            at.now += 0.2
    # A minute: without pauses each second flip makes all plans again.
    assert count < 8 * 2 * MEMBERS


def test_it_is_planned_again_after_a_second() -> None:
    at = planned()
    at.annotate("g-0", gang_size="9")
    at.settle()
    at.annotate("g-0", gang_size="8")
    at.settle()
    (waits,) = at.core.gangs(at.now)
    assert waits.reason == ALTERED
    explained = at.core.explain("ml", "g-0", at.now)
    assert explained is not None
    assert explained.summary == f"Gang g: {ALTERED}."
    at.pass_time(1.5)
    assert at.phase("g") == "planned"


def test_pods_that_are_created_one_by_one_wait_for_nothing() -> None:
    at = Cluster()
    at.add_node("n0", "hgx-h100")
    for rank in range(8):
        at.add_pod(f"g-{rank}", 1, said={"gang": "g", "gang-size": "8", "rank": str(rank)})
        at.settle()
    assert at.phase("g") == "planned"


def test_a_change_that_ends_no_plan_delays_none() -> None:
    at = planned()
    at.annotate("g-0", require_link="node")
    at.settle()
    at.add_gang("h", 2, 1)
    at.settle()
    assert at.phase("h") == "planned"


def test_the_repair_of_a_gang_that_runs_waits_for_nothing() -> None:
    at = planned()
    for rank in range(MEMBERS):
        assert at.schedule(f"g-{rank}")
        at.settle()
        at.start(f"g-{rank}")
    (node,) = at.places("g-0")
    at.delete("g-0")
    at.stop("g-0", node)
    at.settle()
    said = {"gang": "g", "gang-size": str(MEMBERS), "rank": "0"}
    at.add_pod("g-0", 1, said=said, gates=[names.GATE])
    at.settle()
    assert at.plan("g-0") is not None
    at.annotate("g-0", gpu_model="B200")
    at.settle()
    assert at.plan("g-0") is None
    at.annotate("g-0", gpu_model="H100")
    at.settle()
    assert at.plan("g-0") is not None
