"""Which of two assignments counts: docs/topology.md, "A gang is one communicator"."""

from dataclasses import replace

from linkwise.extender.place.search.candidates import AssignedPart, Assignment, best_of

ONE = Assignment((AssignedPart(0, 0, (1, 2)),), worth=100.0, own=50.0, damage=5.0, level=1)
TWO = replace(ONE, parts=(AssignedPart(0, 0, (1,)), AssignedPart(1, 0, (1,))))


def test_much_more_worth_counts_first() -> None:
    assert best_of([ONE, replace(TWO, worth=106.0, own=1.0, level=3, damage=9.0)]).worth == 106.0


def test_what_is_worth_nearly_as_much_is_equal() -> None:
    assert best_of([ONE, replace(ONE, worth=104.0, own=49.0)]) == ONE


def test_of_equals_the_slowest_members_ring_counts_then_nodes_then_the_level_then_damage() -> None:
    better_ring = replace(TWO, own=51.0, level=3, damage=9.0)
    assert best_of([ONE, better_ring]) == better_ring
    fewer_nodes = replace(ONE, level=3, damage=9.0)
    assert best_of([TWO, fewer_nodes]) == fewer_nodes
    nearer = replace(ONE, level=0, damage=9.0)
    assert best_of([ONE, nearer]) == nearer
    gentler = replace(ONE, damage=4.0)
    assert best_of([ONE, gentler]) == gentler
