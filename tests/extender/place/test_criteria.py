"""The orders of gangs and of nodes are those of the page, and each criterion is told."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from linkwise.extender.place.criteria import (
    OF_GANGS,
    OF_NODES,
    OfPlacements,
    difference,
    is_equal,
)
from linkwise.extender.place.judgement import GangJudgement
from linkwise.extender.state.cache.machine_kind import ENOUGH

PAGE = (Path(__file__).parents[3] / "docs" / "topology.md").read_text(encoding="utf-8")

BASE = GangJudgement(
    gpus={0: 0b0011},
    together=100.0,
    span="rack",
    spans_missed=0,
    worth=100.0,
    models=1,
    own=50.0,
    closeness=4,
    level=0,
    level_name="",
    domains=(),
    domain_levels=(),
    room=1,
    damage=1.0,
    nvlinks=4,
    numa_nodes=1,
    nic=4,
    free_share=0.25,
    order=(0, 0b0011),
    lost_room=1.0,
)
# By attribute: the fields of a placement that is better in it, and of one that is worse.
BETTER_AND_WORSE: Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]] = {
    "spans_missed": ({"spans_missed": 0}, {"spans_missed": 1, "span": ""}),
    "is_enough": ({"worth": ENOUGH}, {"worth": 90.0}),
    "worth": ({"worth": 100.0, "together": 100.0}, {"worth": 90.0, "together": 90.0}),
    "mixes": ({"models": 1}, {"models": 2}),
    "own": ({"own": 50.0}, {"own": 40.0}),
    "nodes": ({"gpus": {0: 3}}, {"gpus": {1: 1, 2: 1}}),
    "level": ({"level": 1, "level_name": "rack"}, {"level": 2}),
    "domains": (
        {"domains": (2, 2), "domain_levels": ("spine", "leaf")},
        {"domains": (2, 8), "domain_levels": ("spine", "leaf")},
    ),
    "has_preferred": ({"own": ENOUGH}, {"own": 40.0}),
    "quality": ({"own": 50.0}, {"own": 40.0}),
    "closeness": ({"closeness": 4}, {"closeness": 3}),
    "lost_room": ({"lost_room": 1.0}, {"lost_room": 2.0}),
    "damage": ({"damage": 1.0}, {"damage": 2.0}),
    "free_share": ({"free_share": 0.25}, {"free_share": 0.5}),
}


def one_and_other(order: Sequence[OfPlacements], place: int) -> tuple[GangJudgement, GangJudgement]:
    """The first is better in the criterion at *place*, the other in all that come after it."""
    one, other = dict[str, object](), dict[str, object]()
    for each in order[place:]:
        better, worse = BETTER_AND_WORSE[each.of]
        is_first = each is order[place]
        for field, value in (better if is_first else worse).items():
            one.setdefault(field, value)
        for field, value in (worse if is_first else better).items():
            other.setdefault(field, value)
    return replace(BASE, **one), replace(BASE, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", range(len(OF_GANGS)), ids=lambda n: OF_GANGS[n].criterion.name)
def test_of_a_gang_a_criterion_counts_before_those_after_it(place: int) -> None:
    one, other = one_and_other(OF_GANGS, place)
    check(one, other, OF_GANGS[place], alone=False)


@pytest.mark.parametrize("place", range(len(OF_NODES)), ids=lambda n: OF_NODES[n].criterion.name)
def test_of_a_single_pods_node_a_criterion_counts_before_those_after_it(place: int) -> None:
    one, other = one_and_other(OF_NODES, place)
    check(one, other, OF_NODES[place], alone=True)


def check(one: GangJudgement, other: GangJudgement, by: OfPlacements, *, alone: bool) -> None:
    found, back = difference(one, other, alone=alone), difference(other, one, alone=alone)
    assert (found.criterion, found.first_wins) == (by.criterion, True)
    assert (back.criterion, back.first_wins) == (by.criterion, False)
    assert "{" not in found.why_not
    assert by.criterion.name in found.in_words
    assert not is_equal(found)


def test_each_value_is_told_with_its_unit() -> None:
    gang, nodes = (
        [difference(*one_and_other(order, n), alone=order is OF_NODES) for n in range(len(order))]
        for order in (OF_GANGS, OF_NODES)
    )
    assert [found.in_words for found in gang] == [
        "preferred span: rack against none",
        "preferred link: kept against not",
        "worth: 100.0 against 90.0 GB/s",
        "GPU models: 1 against 2",
        "slowest pod's ring: 50.0 against 40.0 GB/s",
        "fewest nodes: 1 against 2",
        "nearest level: rack against none",
        "fewest domains: 2 of spine, 2 of leaf against 2 of spine, 8 of leaf",
    ]
    assert [found.in_words for found in nodes] == [
        "preferred link: kept against not",
        "worth: 50.0 against 40.0 GB/s",
        "closest link: PIX against PXB",
        "lost room: 1 against 2 GPUs",
        "damage: 1.0 against 2.0 GB/s",
        "fullest: 25% against 50%",
    ]


@pytest.mark.parametrize(
    ("level", "first"), [(0, "damage"), (1, "fullest")], ids=["one node", "a domain"]
)
def test_how_full_a_domain_is_counts_before_damage_and_on_one_node_after_it(
    level: int, first: str
) -> None:
    one = replace(BASE, level=level, room=1, damage=1.0)
    other = replace(BASE, level=level, gpus={1: 0b0011}, room=2, damage=2.0)
    assert difference(one, other).criterion.name == first
    emptier = replace(one, room=3)
    assert is_equal(difference(emptier, replace(other, damage=1.0)))


def test_on_the_same_nodes_their_gpus_are_compared() -> None:
    one = replace(BASE, nvlinks=4, numa_nodes=2, nic=3, order=(0, 5))
    for field, value, name in (
        ("closeness", 3, "closest link"),
        ("damage", 2.0, "damage"),
        ("nvlinks", 5, "NVLinks"),
        ("numa_nodes", 3, "NUMA nodes"),
        ("nic", 2, "nearest NIC"),
        ("order", (0, 6), "lowest indices"),
    ):
        found = difference(one, replace(one, **{field: value}))  # type: ignore[arg-type]
        assert (found.criterion.name, found.first_wins) == (name, True)


@pytest.mark.parametrize(("worth", "decides"), [(95.5, "slowest pod's ring"), (94.5, "worth")])
def test_of_a_gang_estimates_within_the_tolerance_are_equal(worth: float, decides: str) -> None:
    slower = replace(BASE, worth=worth, together=worth, own=60.0)
    assert difference(BASE, slower).criterion.name == decides


def test_values_that_look_alike_are_equal() -> None:
    """A sum of floats depends on the order of its parts."""
    found = difference(replace(BASE, damage=1.0000001), replace(BASE, gpus={1: 3}, order=(1, 3)))
    assert (found.criterion.name, is_equal(found)) == ("name", True)


@pytest.mark.parametrize(
    ("order", "after"),
    [(OF_GANGS, "In this order:"), (OF_NODES, "a free set as the pod requires, in this order:")],
    ids=["of a gang", "of nodes"],
)
def test_the_page_has_the_criteria_in_their_order(
    order: Sequence[OfPlacements], after: str
) -> None:
    listed = PAGE.split(after)[1].split("\n\n", 2)[1]
    names = [name.lower() for name in re.findall(r"^\d+\. \*\*(.+?)\*\*", listed, re.MULTILINE)]
    wanted = [each.criterion.name.lower() for each in order]
    start = names.index(wanted[0])
    assert names[start : start + len(wanted)] == wanted
