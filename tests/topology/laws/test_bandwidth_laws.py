"""Laws of the value of GPU sets, on every machine, however odd."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from linkwise.topology.machine.model import LinkClass, Machine
from linkwise.topology.sets.bandwidth import bandwidth, pair_gbytes_per_s, ring_class
from linkwise.topology.sets.rings import disjoint_rings, one_way_rings
from linkwise.topology.sets.tables import MachineTable, fingerprint
from tests.topology.brute_force import members, most_disjoint, rings
from tests.topology.laws.strategies import machines, renamed, renamed_set, with_access


@given(machines())
def test_the_table_holds_the_definition(machine: Machine) -> None:
    table = MachineTable(machine)
    for gpus in range(machine.all_gpus + 1):
        assert table.values[gpus] == bandwidth(machine, gpus)
        assert table.ring_classes[gpus] == ring_class(machine, gpus)


@given(machines(), st.data())
def test_renaming_gpus_changes_no_value(machine: Machine, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(machine.gpus))))
    before, after = MachineTable(machine), MachineTable(renamed(machine, order))
    new_names = [renamed_set(gpus, order) for gpus in range(machine.all_gpus + 1)]
    for what in ("values", "ring_classes", "remaining_value", "numa_nodes", "nic_classes"):
        assert np.array_equal(getattr(before, what), getattr(after, what)[new_names]), what


@given(machines(), st.data())
def test_machines_with_one_fingerprint_have_one_table(
    machine: Machine, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(machine.gpus))))
    other = renamed(machine, order)
    if fingerprint(other) == fingerprint(machine):
        assert np.array_equal(MachineTable(other).values, MachineTable(machine).values)
        assert np.array_equal(
            MachineTable(other).remaining_value, MachineTable(machine).remaining_value
        )


@given(machines(fewest=2), st.data())
def test_more_nvlinks_never_lower_a_value(machine: Machine, data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(machine.links) - 1))
    links = list(machine.links)
    links[which] = replace(links[which], nvlinks=links[which].nvlinks + 1, routed=False)
    assert_never_lower(machine, replace(machine, links=tuple(links)))


@given(machines(fewest=2).map(with_access), st.data())
def test_a_closer_pcie_path_never_lowers_a_value(machine: Machine, data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(machine.links) - 1))
    links = list(machine.links)
    links[which] = replace(links[which], pcie=LinkClass.PIX)
    assert_never_lower(machine, replace(machine, links=tuple(links)))


@given(machines(fewest=2), st.data())
def test_more_pcie_lanes_never_lower_a_value(machine: Machine, data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(machine.gpus) - 1))
    gpus = list(machine.gpus)
    gpus[which] = replace(gpus[which], pcie_lanes=16)
    assert_never_lower(machine, replace(machine, gpus=tuple(gpus)))


def assert_never_lower(before: Machine, after: Machine) -> None:
    was, now = MachineTable(before), MachineTable(after)
    assert np.all(now.values >= was.values)
    assert np.all(now.ring_classes >= was.ring_classes)


@given(machines(fewest=2))
def test_without_peer_to_peer_access_no_value_is_higher(machine: Machine) -> None:
    assert_never_lower(machine, with_access(machine))


@given(machines(fewest=2).map(with_access))
def test_a_ring_of_a_class_is_worth_at_least_the_slowest_link_of_that_class(
    machine: Machine,
) -> None:
    for gpus in range(machine.all_gpus + 1):
        if gpus.bit_count() < 2:
            continue
        inside = members(gpus)
        kept = ring_class(machine, gpus)
        speeds = [
            pair_gbytes_per_s(machine, a, b)
            for a in inside
            for b in inside
            if a < b and machine.link(a, b).kind >= kept
        ]
        assert bandwidth(machine, gpus) >= round(min(speeds), 4)


@given(machines(fewest=2))
def test_a_pair_keeps_to_the_kind_of_its_link(machine: Machine) -> None:
    for first, second, link in machine.pairs():
        pair = 1 << first | 1 << second
        assert ring_class(machine, pair) is link.kind
        assert bandwidth(machine, pair) == round(pair_gbytes_per_s(machine, first, second), 4)


@given(machines())
def test_what_more_gpus_leave_is_never_worth_less(machine: Machine) -> None:
    table = MachineTable(machine)
    for gpus in range(machine.all_gpus + 1):
        assert 0 <= table.remaining_value[gpus] <= 1
        for gone in members(gpus):
            fewer = gpus & ~(1 << gone)
            assert table.remaining_value[fewer] <= table.remaining_value[gpus]
            assert 0 <= table.remaining_gbytes_per_s[fewer] <= table.remaining_gbytes_per_s[gpus]


@given(machines(), st.sampled_from(LinkClass))
def test_requiring_more_never_gives_more(machine: Machine, require: LinkClass) -> None:
    table = MachineTable(machine)
    assert np.all(table.best_with(require) <= table.best)


@given(st.integers(3, 5), st.data())
def test_disjoint_rings_are_as_many_as_trying_all_ways_finds(
    count: int, data: st.DataObject
) -> None:
    edges = list(combinations(range(count), 2))
    links = {edge: data.draw(st.integers(0, 4)) for edge in edges}
    matrix = tuple(
        tuple(links.get((min(a, b), max(a, b)), 0) for b in range(count)) for a in range(count)
    )
    left = Counter({edge: number for edge, number in links.items() if number})
    found = {frozenset(ring) for ring in rings(tuple(range(count))) if set(ring) <= set(left)}
    assert disjoint_rings(matrix) == most_disjoint(left, [Counter(ring) for ring in found])


@given(st.integers(3, 4), st.data())
def test_one_way_rings_are_as_many_as_trying_all_ways_finds(
    count: int, data: st.DataObject
) -> None:
    edges = list(combinations(range(count), 2))
    links = {edge: data.draw(st.integers(0, 3)) for edge in edges}
    matrix = tuple(
        tuple(links.get((min(a, b), max(a, b)), 0) for b in range(count)) for a in range(count)
    )
    left = Counter({each: n for (a, b), n in links.items() if n for each in ((a, b), (b, a))})
    closed = ((0, *rest, 0) for rest in permutations(range(1, count)))
    found = [Counter(pairwise(points)) for points in closed if set(pairwise(points)) <= set(left)]
    assert one_way_rings(matrix) == most_disjoint(left, found)
