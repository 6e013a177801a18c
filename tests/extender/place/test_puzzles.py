"""Whether members of unequal size fit is a puzzle, which may take forever. It is given up in time,
and a place that is easily found is found."""

import random
from unittest.mock import patch

import pytest

from linkwise.extender.place.search import unequal
from linkwise.kube.objects import Container, Quantity, Resources
from tests.extender.cluster import GPU, Cluster

NODES, MEMBERS = 400, 128
RACK = "example.com/rack"


def scattered() -> Cluster:
    """Nodes with 0 to 8 free GPUs, in racks of 16."""
    chance, at = random.Random(1), Cluster()
    for number in range(NODES):
        kind = ["hgx-h100", "dgx-a100", "dgx1-v100"][number % 3]
        at.add_node(f"n{number}", kind, labels={RACK: f"r{number // 16}"})
        for _ in range(chance.randint(0, 8)):
            at.add_pod(f"r{len(at.pods)}", 1, node=f"n{number}")
    at.settle(rounds=60)
    return at


def add(at: Cluster, kinds: int, **said: str) -> None:
    for rank in range(MEMBERS):
        kind = rank % kinds
        amounts: dict[str, Quantity] = {GPU: str(1 + kind % 4), "cpu": f"{1000 + kind}m"}
        main = Container(name="main", resources=Resources(limits=amounts, requests=amounts))
        words = {"gang": "g", "gang-size": str(MEMBERS), "rank": str(rank), **said}
        at.add_pod(f"g-{rank}", containers=[main], said=words)


@pytest.mark.parametrize("kinds", [2, 5, 64])
def test_a_gang_for_which_there_is_room_has_it_whichever_members_it_has(kinds: int) -> None:
    at = scattered()
    add(at, kinds)
    at.settle()
    assert all(at.places(*(f"g-{rank}" for rank in range(MEMBERS))))
    assert at.sound()


@pytest.mark.parametrize("kinds", [3, 64])
def test_a_gang_that_no_rack_has_room_for_costs_a_bounded_search(kinds: int) -> None:
    """Found: one of 256 members of 256 kinds held the lock for 72 s."""
    at = scattered()
    looks, all_loads = 0, unequal._OnModel._all_loads

    def counted(*given: object) -> object:
        nonlocal looks
        looks += 1
        return all_loads(*given)  # type: ignore[arg-type]

    with patch.object(unequal._OnModel, "_all_loads", counted):
        add(at, kinds, **{"require-span": RACK})
        at.settle()
    assert at.places("g-0") == [""]
    assert looks <= 20_000  # at nodes, in all searches of the round; it was 107,000 to 164,000
