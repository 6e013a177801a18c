"""Each criterion of the choice counts before the next one, and the page tells their order."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from linkwise.topology.machine.model import LinkClass, Machine, Nic
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets import choose as module
from linkwise.topology.sets import subsets
from linkwise.topology.sets.criteria import (
    LOWEST_INDICES,
    ORDER,
    OfSets,
    Question,
    best_of,
    difference,
)
from linkwise.topology.sets.tables import table_of

PAGE = (Path(__file__).parents[2] / "docs" / "topology.md").read_text(encoding="utf-8")


def one_without_nvlinks(name: str, gpu: int) -> Machine:
    machine = recorded_machine(name)
    alone = (
        replace(link, nvlinks=0, through_switch=False) if gpu in (one, other) else link
        for one, other, link in machine.pairs()
    )
    return replace(machine, links=tuple(alone))


def one_of_another_model(name: str, gpu: int) -> Machine:
    machine = recorded_machine(name)
    gpus = (replace(g, model=f"{g.model} Ti") if g.index == gpu else g for g in machine.gpus)
    return replace(machine, gpus=tuple(gpus))


def one_nvlink_less(name: str, one: int, other: int) -> Machine:
    machine = recorded_machine(name)
    links = (
        replace(link, nvlinks=0) if (a, b) == (one, other) else link
        for a, b, link in machine.pairs()
    )
    return replace(machine, links=tuple(links))


def with_a_nic_beside(name: str, *gpus: int) -> Machine:
    near = (LinkClass.PIX if gpu in gpus else LinkClass.SYS for gpu in range(8))
    return replace(recorded_machine(name), nics=(Nic("mlx5_0", tuple(near)),))


class Decides(NamedTuple):
    """A question in which two neighbouring criteria disagree: by their order it is *chosen*, by the
    other order *otherwise*."""

    machine: Machine
    free: tuple[int, ...]
    chosen: tuple[int, ...]
    otherwise: tuple[int, ...]
    prefer: LinkClass = LinkClass.NVLINK
    drawn: tuple[int, ...] = ()


DECIDES: Sequence[Decides] = (
    Decides(recorded_machine("dgx1-p100"), (0, 1, 3, 6), (0, 1), (0, 6), LinkClass.NODE),
    Decides(
        one_without_nvlinks("dgx1-p100", 0),
        (0, 1, 2, 3, 4, 6, 7),
        (0, 1, 2, 3),
        (2, 3, 6, 7),
        drawn=(2,),
    ),
    Decides(
        one_of_another_model("dgx1-p100", 0),
        (0, 2, 3, 4, 5, 6),
        (0, 2, 4, 6),
        (2, 3, 5, 6),
        LinkClass.NODE,
        drawn=(2,),
    ),
    Decides(one_of_another_model("plx-8-pxb", 0), (0, 1, 2), (1, 2), (0, 1)),
    Decides(recorded_machine("plx-8-pxb"), (1, 3, 4, 5, 6, 7), (4, 5), (1, 3)),
    Decides(one_nvlink_less("dgx1-p100", 0, 1), (0, 2, 5), (5,), (0,)),
    Decides(one_nvlink_less("dgx1-p100", 0, 1), (1, 4, 5), (1, 4), (4, 5), LinkClass.SYS),
    Decides(with_a_nic_beside("hgx-h100", 3, 4), (3, 4, 5), (4, 5), (3, 4)),
    Decides(recorded_machine("dgx1-p100"), (1, 3, 4, 5), (4, 5), (1, 3), LinkClass.SYS),
)


def mask(gpus: Sequence[int]) -> int:
    return sum(1 << gpu for gpu in gpus)


def swapped(place: int) -> list[OfSets]:
    """The order with two neighbours exchanged; the last one's neighbour are the indices."""
    order = list(ORDER)
    order[place : place + 2] = reversed(order[place : place + 2])
    return order if place + 1 < len(order) else order[:-1]


def test_each_pair_of_neighbours_has_a_question() -> None:
    assert len(DECIDES) == len(ORDER)


@pytest.mark.parametrize("place", range(len(ORDER)), ids=lambda n: ORDER[n].criterion.name)
def test_a_criterion_counts_before_the_next_one(place: int) -> None:
    it = DECIDES[place]
    free, size = mask(it.free), len(it.chosen)
    table = table_of(it.machine)
    sets = subsets.within(subsets.layer(table.count, size), free)
    question = Question(table, free, it.prefer, None, it.drawn)
    assert best_of(question, sets, swapped(place)) == mask(it.otherwise)
    found = module.choose(it.machine, free, size, prefer=it.prefer, drawn=it.drawn)
    assert found is not None
    assert found.gpus == mask(it.chosen)
    if not it.drawn:
        (packed,) = module.pack(it.machine, free, size, 1, prefer=it.prefer)
        assert packed.gpus == mask(it.chosen)


@pytest.mark.parametrize("place", range(len(ORDER)), ids=lambda n: ORDER[n].criterion.name)
def test_the_criterion_that_decided_is_named(place: int) -> None:
    it = DECIDES[place]
    question = Question(table_of(it.machine), mask(it.free), it.prefer, None, it.drawn)
    found = difference(question, mask(it.chosen), mask(it.otherwise))
    assert (found.criterion, found.first_wins) == (ORDER[place].criterion, True)
    back = difference(question, mask(it.otherwise), mask(it.chosen))
    assert (back.criterion, back.first_wins) == (ORDER[place].criterion, False)


def test_equal_sets_are_told_apart_by_their_indices() -> None:
    question = Question(table_of(recorded_machine("dgx-a100")), 0xFF)
    assert difference(question, 0b0011, 0b1100).criterion is LOWEST_INDICES
    assert difference(question, 0b0011, 0b1100).first_wins
    assert not difference(question, 0b1100, 0b0011).first_wins


def test_the_page_has_the_criteria_in_their_order() -> None:
    listed = PAGE.split("the choice is by this order:")[1].split("\n### ")[0]
    names = re.findall(r"^\d+\. \*\*(.+?)\*\*", listed, re.MULTILINE)
    order = [each.criterion.name for each in ORDER]
    assert [name.lower() for name in names] == [
        "required link",
        *(name.lower() for name in dict.fromkeys(order)),
        LOWEST_INDICES.name,
    ]
