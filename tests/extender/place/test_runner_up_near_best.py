"""The runner-up in random small clusters, beside brute force over all that lacks something of what
was taken."""

from dataclasses import replace

import pytest

from linkwise.extender.place.communicator import TOLERANCE
from linkwise.topology.machine.model import LINK_WORDS
from tests.extender.cluster import Cluster
from tests.extender.place.brute_force import Place, best_worth
from tests.extender.place.near_best import Case, case_of, fill
from tests.extender.place.runner_ups import runner_up


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_nothing_else_is_worth_more(first: int) -> None:
    found = [judged(number) for number in range(first, first + 20)]
    shares = [share for share in found if share is not None]
    assert shares
    assert min(shares) >= (1 - TOLERANCE) ** 2  # as good as the best; and that as good as it


@pytest.mark.parametrize("number", [125, 197, 310, 337, 349, 381])
def test_another_set_may_spill_over_to_another_node(number: int) -> None:
    share = judged(number)
    assert share is not None
    assert share >= (1 - TOLERANCE) ** 2


def judged(number: int) -> float | None:
    """What the runner-up is worth, as a share of the best that lacks a node of what was taken, or
    a GPU where that is one node; 1 where neither is there. None: nothing was taken."""
    case = case_of(number)
    at = Cluster()
    names = fill(at, case)
    at.settle()
    if case.mates or not all(at.plan(name) for name in names):
        return None
    taken: dict[str, int] = {}
    for name in names:
        plan = at.plan(name)
        assert plan is not None
        taken[plan.node] = taken.get(plan.node, 0) | sum(1 << gpu for gpu in at.indices(name))
    lacks = [(place.name, place.free) for place in case.places if place.name in taken]
    if len(taken) == 1:
        ((node, mask),) = taken.items()
        lacks = [(node, 1 << gpu) for gpu in range(mask.bit_length()) if mask >> gpu & 1]
    link = LINK_WORDS[case.require]
    worths = [best_worth(_without(case, *lack), case.members, link) for lack in lacks]
    best = max((worth for worth in worths if worth is not None), default=None)
    found = runner_up(at)
    assert (found is None) == (best is None), number
    if found is None or found.gbytes_per_s is None or best is None:
        return 1.0
    return found.gbytes_per_s / best


def _without(case: Case, node: str, gpus: int) -> tuple[Place, ...]:
    return tuple(
        replace(place, free=place.free & ~gpus) if place.name == node else place
        for place in case.places
    )
