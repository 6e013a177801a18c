"""What a busy machine can give to the next requests, and the choice that knows what runs on it."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from linkwise.topology.errors import RequestError
from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.choose import choose, pack, ranked
from linkwise.topology.sets.outlook import Outlook, expected_sizes, outlook_of, states_of
from linkwise.topology.sets.tables import table_of
from tests.machines import BRIDGED_8, DGX_1V, DGX_2, HGX_H100, MIXED_5
from tests.topology.brute_force import members, subsets

BELL = (1, 1, 2, 5, 15, 52, 203, 877, 4140, 21147)
BRIDGED_4 = recorded_machine("a100-pcie-4-bridged")


def set_of(*indices: int) -> int:
    return sum(1 << index for index in indices)


@pytest.mark.parametrize("count", range(1, 9))
def test_every_cut_of_every_set_of_busy_gpus_is_a_state(count: int) -> None:
    states = states_of(count)
    cuts = {states.running(state) for state in range(len(states.busy))}
    assert len(cuts) == len(states.busy) == BELL[count + 1]
    for state in range(len(states.busy)):
        running, free = states.running(state), (1 << count) - 1 & ~int(states.busy[state])
        assert sum(running) == states.busy[state]
        assert states.free[state] == free.bit_count()
        assert states.find(np.array(states.key(running, free))) == state


def expected(machine: Machine, running: frozenset[int], requests: int) -> float:
    """Compute it by trying every choice, every size and every order in which sets can end."""
    table, chances = table_of(machine), expected_sizes(len(machine.gpus))

    def share(gpus: int) -> float:
        size = gpus.bit_count()
        return float(table.values[gpus] / table.best[size, -1]) if size > 1 else 0.0

    @cache
    def ahead(running: frozenset[int], left: int) -> float:
        if left == 0:
            return 0.0
        return sum(
            float(chances[size]) * served(running, size, left)
            for size in range(1, len(machine.gpus) + 1)
        )

    @cache
    def served(running: frozenset[int], size: int, left: int) -> float:
        free = machine.all_gpus & ~sum(running)
        if free.bit_count() < size:
            return sum(served(running - {end}, size, left) for end in running) / len(running)
        return max(share(g) + ahead(running | {g}, left - 1) for g in subsets(free, size))

    return ahead(running, requests)


@pytest.mark.parametrize("machine", [BRIDGED_4, MIXED_5], ids=["bridged pairs", "a GPU apart"])
@pytest.mark.parametrize("requests", [1, 3])
def test_a_state_is_worth_what_trying_all_choices_says(machine: Machine, requests: int) -> None:
    table, states = table_of(machine), states_of(len(machine.gpus))
    worth = Outlook(table, expected_sizes(table.count), requests).worth
    for state in range(len(states.busy)):
        running = frozenset(states.running(state))
        assert worth[state] == pytest.approx(expected(machine, running, requests), abs=2e-9)


def test_a_usual_size_is_four_times_as_likely() -> None:
    assert expected_sizes(5).tolist() == pytest.approx([0, 4 / 14, 4 / 14, 1 / 14, 4 / 14, 1 / 14])
    assert expected_sizes(1).tolist() == [0, 1]


def test_a_single_gpu_leaves_the_mate_of_what_comes_back_alone() -> None:
    """Bridges join (0,2) (1,3) (4,5) (6,7). GPU 2 comes back alone, 5 with three pairs' GPUs."""
    free, running = set_of(0, 4), (set_of(2), set_of(1, 3, 5, 6, 7))
    unknown, known = choose(BRIDGED_8, free, 1), choose(BRIDGED_8, free, 1, running=running)
    assert unknown is not None
    assert known is not None
    assert (members(unknown.gpus), members(known.gpus)) == ((0,), (4,))
    assert known.remaining_value == table_of(BRIDGED_8).remaining_value[set_of(0)]


def test_of_several_sets_too() -> None:
    free, running = set_of(0, 4), (set_of(2), set_of(1, 3, 5, 6, 7))
    (packed,) = pack(BRIDGED_8, free, 1, 1, running=running)
    assert members(packed.gpus) == (4,)


def test_what_runs_never_costs_bandwidth() -> None:
    states = states_of(8)
    for state in range(0, len(states.busy), 97):
        free, running = DGX_1V.all_gpus & ~int(states.busy[state]), states.running(state)
        for size in range(1, free.bit_count() + 1):
            best = max(table_of(DGX_1V).values[gpus] for gpus in subsets(free, size))
            found = ranked(DGX_1V, free, size, running=running)
            assert found[0].gbytes_per_s == best
            assert len({choice.gpus for choice in found}) == len(found)


def test_the_order_of_running_sets_does_not_count() -> None:
    running = (set_of(1, 2), set_of(0, 7), set_of(3))
    free = set_of(4, 5, 6)
    assert ranked(DGX_1V, free, 1, running=running) == ranked(
        DGX_1V, free, 1, running=running[::-1]
    )


def test_gpus_that_are_neither_free_nor_in_a_set_come_back_one_by_one() -> None:
    free, known = set_of(0, 2, 5), (set_of(1, 3),)
    others = tuple(1 << gpu for gpu in (4, 6, 7))
    for size in (1, 2):
        assert ranked(DGX_1V, free, size, running=known) == ranked(
            DGX_1V, free, size, running=known + others
        )


def test_beyond_eight_gpus_what_runs_changes_nothing() -> None:
    assert outlook_of(table_of(DGX_2)) is None
    free, running = 0xFF0F, (0x00F0,)
    assert choose(DGX_2, free, 4, running=running) == choose(DGX_2, free, 4)


def test_where_every_set_is_as_good_numa_nodes_decide_as_ever() -> None:
    free = set_of(2, 3, 4, 5, 6, 7)
    assert choose(HGX_H100, free, 4, running=(0b11,)) == choose(HGX_H100, free, 4)


@pytest.mark.parametrize(
    "running",
    [
        pytest.param((0b1,), id="free"),
        pytest.param((0b110, 0b100), id="in another"),
        pytest.param((1 << 8,), id="not the machine's"),
    ],
)
def test_a_running_set_that_cannot_be_is_refused(running: tuple[int, ...]) -> None:
    for ask in (
        lambda: choose(DGX_1V, 0b1, 1, running=running),
        lambda: pack(DGX_1V, 0b1, 1, 1, running=running),
    ):
        with pytest.raises(RequestError, match="running GPU set"):
            ask()


def test_more_requests_are_never_worth_less() -> None:
    worths = [
        Outlook(table_of(DGX_1V), expected_sizes(8), requests).worth for requests in (1, 2, 3)
    ]
    assert all(np.all(after >= before) for before, after in pairwise(worths))
