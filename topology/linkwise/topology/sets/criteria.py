"""The order by which GPU sets of one machine are chosen, told once: `ORDER`.

`choose` takes the set that is best by it, `pack` the best sets side by side, explanations name the
first criterion in which two sets differ, and docs/topology.md has the same list in prose.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkwise.topology.machine.model import LinkClass
from linkwise.topology.sets.outlook import outlook_of
from linkwise.topology.sets.subsets import Masks
from linkwise.topology.sets.tables import UNITS_PER_GBYTE, Floats, MachineTable

Values = NDArray[np.int8] | NDArray[np.int16] | NDArray[np.int64] | Floats
"""[sets] a number of each."""

Running = tuple[int, ...] | None
"""The GPU sets that come free as a whole, sorted; None if unknown."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a set's values depend on beside the set. *free*: the GPUs that can be had. *prefer*: the
    link class that is enough, if it is below NVLINK. *drawn*: as of `MachineTable.worth`."""

    table: MachineTable
    free: int
    prefer: LinkClass = LinkClass.NVLINK
    running: Running = None
    drawn: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Criterion:
    """Something by which sets or placements are compared, in words.

    *lost* says why one lost by it, with the values of both, `{lost}` and `{won}`, as *text* writes
    them; empty for what is never compared on one machine, of which `linkwise choose` tells.
    """

    name: str
    lost: str = ""
    text: Callable[[float], str] = "{:.0f}".format
    unit: str = ""


@dataclass(frozen=True, slots=True)
class OfSets:
    """How a criterion judges GPU sets, and whether *more* is better.

    Of sets side by side, values that *add_up* are added, as multiples of 1 / *scale*; others are of
    all their GPUs together.
    """

    criterion: Criterion
    values: Callable[[Question, Masks], Values]
    more: bool = True
    adds_up: bool = True
    scale: int = 1

    def worth(self, question: Question, sets: Masks) -> Values:
        """The values as numbers of which more is better."""
        values = self.values(question, sets)
        return values if self.more else -values


@dataclass(frozen=True, slots=True)
class Difference:
    """The first criterion in which two sets or placements differ, and the values of both as
    text."""

    criterion: Criterion
    first_wins: bool
    first: str = ""
    second: str = ""

    @property
    def in_words(self) -> str:
        """Text such as `worth: 370.8 against 48 GB/s`, the winner's value first."""
        won, lost = (self.first, self.second) if self.first_wins else (self.second, self.first)
        unit = f" {self.criterion.unit}" if self.criterion.unit else ""
        name = self.criterion.name
        return f"{name}: {won} against {lost}{unit}" if won else name

    @property
    def why_not(self) -> str:
        """Why the second, the runner-up, lost."""
        return self.criterion.lost.format(won=self.first, lost=self.second)


def one_decimal(value: float) -> str:
    return f"{value:.1f}"


def link_name(value: float) -> str:
    return LinkClass(int(value)).name if value >= 0 else "none"


def unsaid(_value: float) -> str:
    return ""


PREFERRED = Criterion(
    "preferred link",
    "it does not keep to the preferred link",
    lambda value: "kept" if value else "not",
)
WORTH = Criterion("worth", "it is slower: {lost} GB/s against {won}", one_decimal, "GB/s")
MODELS = Criterion("GPU models", "as fast, but of {lost} GPU models against {won}")
CLOSEST = Criterion(
    "closest link", "as fast, but linked less closely: {lost} against {won}", link_name
)
OUTLOOK = Criterion(
    "outlook", "as good, but what it leaves free is worth less to later jobs", unsaid
)
NVLINKS = Criterion(
    "NVLinks", "as good, but it has more NVLinks, which later jobs may use: {lost} against {won}"
)
NUMA_NODES = Criterion("NUMA nodes", "as good, but spread over {lost} NUMA nodes against {won}")
NEAREST_NIC = Criterion(
    "nearest NIC", "as good, but its closest common NIC is {lost} away against {won}", link_name
)
LOWEST_INDICES = Criterion("lowest indices", "as good in everything; the lower indices win", unsaid)


def _keeps(question: Question, sets: Masks) -> NDArray[np.int8]:
    kept: NDArray[np.bool_] = _ring_classes(question, sets) >= question.prefer
    return kept.astype(np.int8)


def _ring_classes(question: Question, sets: Masks) -> NDArray[np.int8]:
    return question.table.worth(question.drawn).ring_classes[sets]


def _where_it_counts(question: Question, sets: Masks, values: Values) -> Values:
    """Where a link below NVLINK is preferred and kept, more is worth nothing."""
    if question.prefer is LinkClass.NVLINK:
        return values
    return np.where(_ring_classes(question, sets) >= question.prefer, 0, values)


def _bandwidth(question: Question, sets: Masks) -> Values:
    values = question.table.worth(question.drawn).values[sets]
    return _where_it_counts(question, sets, values)


def _bandwidth_of_all(question: Question, sets: Masks) -> Values:
    """Of the init container that has them all."""
    if not question.drawn:
        return np.zeros(len(sets))
    return _where_it_counts(question, sets, question.table.values[sets])


def _closeness(question: Question, sets: Masks) -> Values:
    return _where_it_counts(question, sets, _ring_classes(question, sets))


def _left(question: Question, sets: Masks) -> Values:
    """What each of the *sets* leaves for the jobs to come; comparable among *sets* only."""
    table, free, running = question.table, question.free, question.running
    outlook = None if running is None else outlook_of(table)
    if outlook is not None and running is not None:
        return outlook.after(sets, free, running)
    left: Floats = table.remaining_value[free & ~sets]
    return left


def _models(question: Question, sets: Masks) -> Values:
    return question.table.models[sets]


def _nvlinks(question: Question, sets: Masks) -> Values:
    return question.table.nvlinks[sets]


def _numa_nodes(question: Question, sets: Masks) -> Values:
    return question.table.numa_nodes[sets]


def _nearest_nic(question: Question, sets: Masks) -> Values:
    return question.table.nic_classes[sets]


ORDER: tuple[OfSets, ...] = (
    OfSets(PREFERRED, _keeps),
    OfSets(WORTH, _bandwidth, scale=UNITS_PER_GBYTE),
    OfSets(WORTH, _bandwidth_of_all, scale=UNITS_PER_GBYTE),
    OfSets(MODELS, _models, more=False),
    OfSets(CLOSEST, _closeness),
    OfSets(OUTLOOK, _left, adds_up=False),
    OfSets(NVLINKS, _nvlinks, more=False, adds_up=False),
    OfSets(NUMA_NODES, _numa_nodes, more=False),
    OfSets(NEAREST_NIC, _nearest_nic),
)
"""Of sets that are equal in all of these, the one of the lowest indices is taken."""

AFTER_DAMAGE = ORDER[-3:]
"""What decides between sets that leave the same to later jobs."""


def best_of(question: Question, sets: Masks, order: Sequence[OfSets] = ORDER) -> int:
    """Return the best set; of equals the first. *sets* mostly come by lowest indices."""
    for each in order:
        if len(sets) == 1:
            break
        sets = most(sets, each.worth(question, sets))
    return int(sets[0])


def difference(question: Question, first: int, second: int) -> Difference:
    """Return the first criterion in which two sets of one size differ."""
    sets = np.array([first, second], dtype=np.int64)
    for each in ORDER:
        worth, values = each.worth(question, sets), each.values(question, sets).tolist()
        if worth[0] != worth[1]:
            texts = map(each.criterion.text, values)
            return Difference(each.criterion, bool(worth[0] > worth[1]), *texts)
    lowest = (first ^ second) & -(first ^ second)  # the lowest GPU that only one of them has
    return Difference(LOWEST_INDICES, bool(first & lowest))


def most(sets: Masks, worth: Values) -> Masks:
    """Return those of the *sets* that have the most."""
    found: Masks = sets[worth == worth.max()]
    return found
