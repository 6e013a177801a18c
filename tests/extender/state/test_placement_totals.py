"""Gangs that were planned are counted by how well they were placed, for the metrics."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkwise.extender.state.views import (
    GBYTES_PER_S,
    ONE,
    SEVERAL,
    SHARES,
    Placed,
    Spread,
)
from linkwise.pods.spans import CLIQUE
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from tests.extender.cluster import Cluster
from tests.extender.place.partly_used import add, busy

Told = tuple[float, float]  # sums of GB/s and of shares


def told(at: Cluster, nodes: str) -> Told:
    placed = at.core.counts(at.now).placed
    return placed.gbytes_per_s[nodes].total, round(placed.shares[nodes].total, 3)


def count(at: Cluster) -> int:
    placed = at.core.counts(at.now).placed
    return sum(sum(spread.counts) for spread in placed.shares.values())


@settings(deadline=None)  # a busy machine is no mistake
@given(st.lists(st.floats(0, 2000)))
def test_every_value_is_in_one_bucket(values: list[float]) -> None:
    spread = Spread.empty(GBYTES_PER_S)
    for value in values:
        spread = spread.with_one(value)
    upto = [sum(value <= bound for value in values) for bound in spread.bounds]
    assert [sum(spread.counts[: n + 1]) for n in range(len(upto))] == upto
    assert sum(spread.counts) == len(values)
    assert spread.total == pytest.approx(sum(values))


def test_on_an_idle_machine_a_gang_has_all_there_is() -> None:
    at = Cluster()
    add(at, "n0", machine="dgx1-v100")
    at.add_gang("g", 8, 1)
    at.settle()
    assert told(at, ONE) == (120.0, 1.0)


def test_on_a_busy_machine_it_has_less() -> None:
    at = Cluster()
    add(at, "n0", machine="dgx1-v100")
    busy(at, "n0", 0, 5, 6, 7)
    at.add_gang("g", 4, 1)
    at.settle()
    assert told(at, ONE) == (6.0, 0.075)  # the best four make 80


def test_over_nodes_where_one_would_do_it_has_much_less() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="hgx-h100", free_gpus=4)
    at.add_gang("g", 2, 4)
    at.settle()
    assert told(at, ONE) == (0.0, 0.0)
    assert told(at, SEVERAL) == (48.0, 0.098)  # of 490.3


def test_over_as_many_nodes_as_it_takes_it_has_all() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="hgx-h100", leaf="a")
    at.add_gang("g", 2, 8)
    at.settle()
    assert told(at, SEVERAL) == (48.0, 1.0)


def test_far_nodes_are_measured_by_near_ones() -> None:
    at = Cluster()
    for node, leaf in (("n0", "a"), ("n1", "b")):
        add(at, node, machine="hgx-h100", leaf=leaf)
    at.add_gang("g", 2, 8)
    at.settle()
    assert told(at, SEVERAL) == (43.2, 0.9)


def test_a_fabric_is_the_best_there_is_between_nodes() -> None:
    at = Cluster()
    for number in range(4):
        tray = recorded_machine("gb200-tray", node=f"n{number}")
        at.add_node(f"n{number}", tray, labels={CLIQUE: f"c{number // 2}"})
    at.add_gang("near", 2, 4)
    at.add_gang("far", 2, 4)
    at.settle()
    assert told(at, SEVERAL)[1] == 2.0


def test_machines_too_small_for_a_member_measure_nothing() -> None:
    at = Cluster()
    whole = recorded_machine("gb200-tray", node="z")
    at.add_node("z", Machine(whole.gpus[:1], ()), labels={CLIQUE: "c"})
    add(at, "n0", "n1", machine="hgx-h100")
    at.add_gang("g", 2, 8)
    at.settle()
    assert told(at, SEVERAL) == (48.0, 1.0)


@pytest.mark.parametrize("said", [{}, {"communicator": "pod"}])
def test_who_talks_to_nobody_else_does_not_count(said: dict[str, str]) -> None:
    at = Cluster()
    add(at, "n0", machine="hgx-h100")
    at.add_gang("g", 2 if said else 1, 1, **said)
    at.add_pod("s", 2)
    at.settle()
    at.schedule("s")
    assert count(at) == 0


def test_a_gang_counts_once_however_its_members_come_and_go() -> None:
    at = Cluster()
    add(at, "n0", machine="hgx-h100")
    names = at.add_gang("g", 2, 2)
    at.settle()
    for name in names:
        at.schedule(name)
    at.delete("g-1")
    at.add_pod("g-1", 2, gang="g", gang_size="2", rank="1")
    at.pass_time(20)
    assert at.plan("g-1") is not None
    assert count(at) == 1


def test_without_machines_to_measure_by_it_has_its_all() -> None:
    placed = Placed().with_gang(1, 6.0, 0.0)
    assert placed.shares[ONE].total == 1.0
    assert SHARES[-1] == 1.0
