"""Consecutive ranks on one node are on GPUs that talk to each other as fast as can be."""

from itertools import combinations, pairwise, permutations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from linkwise.topology.sets.chain import chain, hops_of
from linkwise.topology.sets.tables import table_of
from tests.extender.cluster import Cluster

LARGEST = 6  # of which all orders are looked at


def in_chain(machine: str, *positions: int) -> list[int]:
    """Single GPUs of a machine, all of them without *positions*."""
    table = table_of(recorded_machine(machine, node="n"))
    gpus = positions or range(table.count)
    dealt = chain([1 << position for position in gpus], hops_of(table))
    return [gpu.bit_length() - 1 for gpu in dealt]


def speeds(machine: Machine, order: list[int]) -> list[float]:
    values = table_of(machine).values
    return [float(values[1 << one | 1 << other]) for one, other in pairwise(order)]


@pytest.mark.parametrize("name", ["dgx1-v100", "dgx1-p100", "p3.16xlarge"])
def test_on_a_cube_mesh_each_rank_has_an_nvlink_to_the_next_and_the_last_to_the_first(
    name: str,
) -> None:
    machine = recorded_machine(name, node="n")
    order = in_chain(name)
    assert sorted(order) == list(range(8))
    ring = pairwise([*order, order[0]])
    assert all(machine.link(one, other).kind is LinkClass.NVLINK for one, other in ring)


def test_gpus_on_one_bridge_come_one_after_the_other() -> None:
    assert in_chain("a100-pcie-8-bridged") == [0, 2, 1, 3, 4, 5, 6, 7]
    assert in_chain("a100-pcie-8-bridged", 1, 2, 3, 5, 6, 7) == [1, 3, 2, 5, 6, 7]


@pytest.mark.parametrize("name", ["hgx-h100", "dgx2-v100"])
def test_where_all_are_alike_they_come_by_their_indices(name: str) -> None:
    order = in_chain(name)
    assert order == sorted(order)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(machine_names())), data=st.data())
def test_no_other_order_has_a_faster_slowest_hop(name: str, data: st.DataObject) -> None:
    machine = recorded_machine(name, node="n")
    count = len(machine.gpus)
    some = st.lists(st.integers(0, count - 1), min_size=2, max_size=LARGEST, unique=True)
    gpus = data.draw(some)
    found = min(speeds(machine, in_chain(name, *gpus)))
    assert found == max(min(speeds(machine, list(order))) for order in permutations(gpus))


def test_members_of_several_gpus_are_neighbours_too() -> None:
    """Two halves of four GPUs each, joined by bridges within."""
    table = table_of(recorded_machine("h200-nvl-2x4", node="n"))
    sets = [0b0000_0011, 0b0011_0000, 0b0000_1100, 0b1100_0000]
    assert chain(sets, hops_of(table)) == (sets[0], sets[2], sets[1], sets[3])


def test_the_members_of_a_gang_are_dealt_out_that_way_by_their_ranks() -> None:
    at = Cluster()
    for node in ("n1", "n2"):
        at.add_node(node, "dgx1-v100")
    members = at.add_gang("g", 16, 1)
    at.settle()
    for node in ("n1", "n2"):
        machine = at.machine(node)
        plans = [(member, at.plan(member)) for member in members]
        here = [at.indices(member)[0] for member, plan in plans if plan and plan.node == node]
        assert sorted(here) == list(range(8))
        joined = [machine.link(one, other).kind for one, other in pairwise(here)]
        assert set(joined) == {LinkClass.NVLINK}


def test_hops_are_the_same_both_ways() -> None:
    hops = hops_of(table_of(recorded_machine("dgx1-v100", node="n")))
    assert all(hops[one][other] == hops[other][one] for one, other in combinations(range(8), 2))
