"""The orders by which placements are compared, told once (docs/topology.md, "What counts for a
gang" and "Which node a single pod gets"). For a single pod on one node, `sets.criteria` has it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from linkwise.extender.place.communicator import TOLERANCE
from linkwise.extender.place.judgement import GangJudgement
from linkwise.extender.state.cache.machine_kind import ENOUGH
from linkwise.topology.sets.criteria import (
    AFTER_DAMAGE,
    CLOSEST,
    LOWEST_INDICES,
    MODELS,
    NEAREST_NIC,
    NUMA_NODES,
    NVLINKS,
    PREFERRED,
    WORTH,
    Criterion,
    Difference,
    one_decimal,
    unsaid,
)


@dataclass(frozen=True, slots=True)
class OfPlacements:
    """How a criterion judges placements, and whether *more* is better.

    *of* is the attribute that has the value, of a `GangJudgement` and whatever else is ordered so.
    Values within *tolerance*, as a share of the larger one, are equal; *as_shown*, those of which
    the texts are. *text* writes more than the value.
    """

    criterion: Criterion
    of: str
    more: bool = False
    tolerance: float = 0.0
    as_shown: bool = False
    text: Callable[[GangJudgement], str] | None = None

    def difference(self, one: GangJudgement, other: GangJudgement) -> Difference | None:
        """None if they are equal in this."""
        values = getattr(one, self.of), getattr(other, self.of)
        if values[0] == values[1]:
            return None
        if self.tolerance and abs(values[0] - values[1]) <= self.tolerance * max(values):
            return None
        texts = [
            self.criterion.text(value) if self.text is None else self.text(judgement)
            for value, judgement in zip(values, (one, other), strict=True)
        ]
        if self.as_shown and texts[0] == texts[1]:
            return None
        return Difference(self.criterion, (values[0] > values[1]) is self.more, *texts)


SPAN = Criterion("preferred span")
OWN = Criterion(
    "slowest pod's ring",
    "about as fast, but the ring of its slowest member has {lost} GB/s against {won}",
    lambda value: "enough" if value >= ENOUGH else one_decimal(value),
    "GB/s",
)
NODES = Criterion("fewest nodes")
LEVEL = Criterion("nearest level")
DOMAINS = Criterion("fewest domains")
FULLEST = Criterion("fullest", unit="pods")
FREE = Criterion("fullest", text="{:.0%}".format)
LOST_ROOM = Criterion("lost room", text="{:.2g}".format, unit="GPUs")
DAMAGE = Criterion(
    "damage", "as good, but later jobs lose more: {lost} GB/s against {won}", one_decimal, "GB/s"
)
NAME = Criterion("name", text=unsaid)

_DAMAGE = OfPlacements(DAMAGE, "damage", as_shown=True)
_FULLEST = OfPlacements(FULLEST, "room")
_ATTRIBUTES = {NVLINKS: "nvlinks", NUMA_NODES: "numa_nodes", NEAREST_NIC: "nic"}

OF_ASSIGNMENTS = (
    OfPlacements(OWN, "own", more=True),
    OfPlacements(NODES, "nodes"),
    OfPlacements(LEVEL, "level", text=lambda it: it.level_name or "none"),
    OfPlacements(DOMAINS, "domains", text=lambda it: it.domains_text),
    _DAMAGE,
)
"""Between assignments that the search finds at one worth."""

OF_GANGS = (
    OfPlacements(SPAN, "spans_missed", text=lambda it: it.span or "none"),
    OfPlacements(PREFERRED, "is_enough", more=True),
    OfPlacements(
        WORTH, "worth", more=True, tolerance=TOLERANCE, text=lambda it: one_decimal(it.together)
    ),
    OfPlacements(MODELS, "mixes", text=lambda it: str(it.models)),
    *OF_ASSIGNMENTS[:-1],
)
"""Then `_last_of_gangs`."""

OF_NODES = (
    OfPlacements(PREFERRED, "has_preferred", more=True),
    OfPlacements(WORTH, "quality", more=True),
    OfPlacements(CLOSEST, "closeness", more=True),
    OfPlacements(LOST_ROOM, "lost_room", as_shown=True),
    _DAMAGE,
    OfPlacements(FREE, "free_share"),
)
"""Of a single pod, between nodes. Then the first name wins."""

_BY_NAME = OfPlacements(NAME, "order")
_ON_THE_SAME_NODES = (
    OfPlacements(CLOSEST, "closeness", more=True),
    _DAMAGE,
    *(OfPlacements(of.criterion, _ATTRIBUTES[of.criterion], of.more) for of in AFTER_DAMAGE),
    OfPlacements(LOWEST_INDICES, "order"),
)


def difference(one: GangJudgement, other: GangJudgement, *, alone: bool = False) -> Difference:
    """The first criterion in which two placements differ. *alone*: both are of a single pod, on
    different nodes."""
    order = (*OF_NODES, _BY_NAME) if alone else (*OF_GANGS, *_last_of_gangs(one, other))
    found = (each.difference(one, other) for each in order)
    return next((each for each in found if each is not None), Difference(NAME, first_wins=True))


def is_equal(difference: Difference) -> bool:
    """Whether the two are equal in all that matters to their own pods and to other pods."""
    tidier = difference.criterion in (FULLEST, FREE) and not difference.first_wins
    return tidier or difference.criterion in (NAME, LOWEST_INDICES)


def _last_of_gangs(one: GangJudgement, other: GangJudgement) -> Sequence[OfPlacements]:
    if one.gpus.keys() == other.gpus.keys():
        return _ON_THE_SAME_NODES
    costs = (_FULLEST, _DAMAGE) if one.level else (_DAMAGE, _FULLEST)
    return (*costs, _BY_NAME)
