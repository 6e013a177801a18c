"""A quota of one important pod is worth one pod, and not a gang."""

import pytest

from linkwise.topology import names
from tests.extender.cluster import Cluster


def cluster(nodes: int) -> Cluster:
    at = Cluster()
    for number in range(nodes):
        at.add_node(f"n{number}", "hgx-h100")
    return at


def add(at: Cluster, gang: str, *priorities: int) -> None:
    for rank, priority in enumerate(priorities):
        said = {"gang": gang, "gang-size": str(len(priorities)), "rank": str(rank)}
        said["preemptible"] = "true"
        at.add_pod(f"{gang}-{rank}", 8, priority=priority, said=said)
    at.settle()


def run(at: Cluster, gang: str, size: int) -> None:
    for rank in range(size):
        assert at.schedule(f"{gang}-{rank}")
        at.start(f"{gang}-{rank}")
    at.settle()


@pytest.mark.parametrize(("priorities", "evicts"), [((0, 1000), False), ((1000, 1000), True)])
def test_all_members_have_to_be_more_important(priorities: tuple[int, int], evicts: bool) -> None:
    """Found: one pod of priority 1000 among pods of 0 evicted four pods of 100."""
    at = cluster(2)
    add(at, "other", 100, 100)
    run(at, "other", 2)
    add(at, "g", *priorities)
    at.pass_time(30)
    assert bool(at.evicted) is evicts


def test_it_waits_behind_what_is_more_important_than_its_least_important_member() -> None:
    at = cluster(2)
    at.cordon("n1")
    add(at, "mixed", 0, 1000)
    at.now += 1
    add(at, "even", 10, 10)
    at.uncordon("n1")
    at.settle()
    assert at.places("even-0", "even-1") == ["n0", "n1"]
    assert at.places("mixed-0", "mixed-1") == ["", ""]


@pytest.mark.parametrize(("priority", "evicted"), [(500, []), (2000, ["mixed-0", "mixed-1"])])
def test_none_of_it_is_evicted_for_what_is_less_important_than_one_of_it(
    priority: int, evicted: list[str]
) -> None:
    at = cluster(2)
    add(at, "mixed", 0, 1000)
    run(at, "mixed", 2)
    at.add_pod("claimant", 8, priority=priority, gates=[names.GATE])
    at.settle()
    at.pass_time(30)
    assert at.evicted == evicted
