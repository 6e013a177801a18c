"""A call looks at so many sets of GPUs; the next one about the pod goes on where it ended."""

import pytest

from linkwise.extender.place.shares import choice
from linkwise.extender.place.shares.nodes import UNSOUGHT
from linkwise.topology.machine.recorded import recorded_machine
from tests.divided import SHARED, replicas
from tests.extender.shares.cluster import ShareCluster

DGX_1V = recorded_machine("dgx1-v100", node="n1")

NODES = 12


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> ShareCluster:
    """Its nodes differ, and a call has the time to look at one or two of them."""
    monkeypatch.setattr(choice.Effort.__init__, "__defaults__", (1,))
    choice.search.cache_clear()
    at = ShareCluster()
    for number in range(NODES):
        free = dict.fromkeys(range(8), 2) | {number % 8: 3 + number // 8}
        at.add_divided(f"n{number}", replicas(DGX_1V, free))
    return at


def sought(at: ShareCluster, name: str) -> int:
    answer = at.filter(name)
    told = [*answer.failed.values(), *answer.unresolvable.values()]
    return NODES - told.count(UNSOUGHT)


def test_each_call_about_a_pod_goes_on(at: ShareCluster) -> None:
    at.add_taker("p", {SHARED: 3}, {SHARED: 3}, share="spread")
    seen = [sought(at, "p") for _ in range(20)]
    assert 0 < seen[0] < NODES
    assert seen == sorted(seen)
    assert seen[-1] == NODES


def test_a_pod_that_suits_none_of_the_first_nodes_is_nominated_for_a_later_one(
    at: ShareCluster,
) -> None:
    at.add_taker("p", {SHARED: 4}, share="pack")  # the last four nodes have a GPU with four
    assert at.try_to_place("p") == ""
    for _ in range(30):
        at.pass_time(1.1)
        if at.pod("p").status.nominated_node_name:
            break
    assert at.pod("p").status.nominated_node_name in {"n8", "n9", "n10", "n11"}
    assert at.try_to_place("p") == at.pod("p").status.nominated_node_name


def test_one_search_ends_however_many_sets_there_are() -> None:
    machine = replicas(recorded_machine("dgx2-v100", node="n1"), dict.fromkeys(range(16), 40))
    at = ShareCluster()
    at.add_divided("n1", machine)
    at.add_taker("p", *[{SHARED: 8}] * 64, share="spread", require_link="nvlink")
    choice.search.cache_clear()
    at.filter("p")
    assert not at.core.take_defects()
