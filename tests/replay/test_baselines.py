"""The schedulers that Linkwise is compared with, on cases to follow by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay.baselines.device_plugin import nvidias_choice
from bench.replay.baselines.placements import (
    Placement,
    buddy,
    consolidated,
    first_fit,
    lowest,
    packed,
    spread,
)
from bench.replay.baselines.queues import Easy, Fifo, Greedy
from bench.replay.schedulers import LINKWISE, MULTIFACTOR, SCHEDULERS
from linkwise.replay.driver import replay
from linkwise.replay.jobs import OnNode
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.partition import choose_partition
from tests.replay.made_up import assert_possible, by_name, fleet, job, random_jobs

BASELINES = [name for name in SCHEDULERS if name not in (LINKWISE, MULTIFACTOR)]


def _lowest(_: int, free: int, wanted: int) -> int:
    return lowest(free, wanted)


def test_consolidated_takes_the_fullest_node_and_idle_ones_for_whole_parts() -> None:
    free = [0b1111_1111, 0b0000_0111, 0b0011_1100]
    assert consolidated(free, 8, [3], _lowest) == (OnNode(1, 0b111),)
    assert consolidated(free, 8, [4], _lowest) == (OnNode(2, 0b0011_1100),)
    assert consolidated(free, 8, [12], _lowest) == (OnNode(0, 0b1111_1111), OnNode(2, 0b0011_1100))
    assert consolidated(free, 8, [13], _lowest) is None


def test_a_buddy_cell_is_split_off_the_smallest_that_holds_it() -> None:
    assert buddy([0b1111_0011, 0b1111_1111], 8, [2], _lowest) == (OnNode(0, 0b0000_0011),)
    assert buddy([0b1111_0000, 0b0000_0110], 8, [2], _lowest) == (OnNode(0, 0b0011_0000),)
    assert buddy([0b0011_1100], 8, [4], _lowest) is None  # four are free, but no cell of four is


def test_pods_of_one_gpu_are_spread_or_packed() -> None:
    free = [0b1111, 0b11, 0b111]
    assert spread(free, 8, [3], _lowest) == (OnNode(0, 0b11), OnNode(2, 0b1))
    assert packed(free, 8, [3], _lowest) == (OnNode(1, 0b11), OnNode(2, 0b1))
    assert spread(free, 8, [10], _lowest) is None


def test_first_fit_takes_the_first_free_gpus_of_the_emptiest_node_for_each_pod() -> None:
    free = [0b0011_1100, 0b1111_0110, 0b1010_1010]
    prefer = nvidias_choice(["dgx1-v100"] * 3)  # first fit asks no device plugin
    assert first_fit(free, 8, [3], prefer) == (OnNode(1, 0b0001_0110),)
    assert first_fit(free, 8, [2, 2, 1], prefer) == (
        OnNode(0, 0b0000_1100),
        OnNode(1, 0b0001_0110),
    )
    assert first_fit(free, 8, [4, 4], prefer) == (
        OnNode(0, 0b0011_1100),
        OnNode(1, 0b0011_0110),
    )
    assert first_fit(free, 8, [5, 5], prefer) is None


@settings(deadline=None)
@given(st.lists(st.integers(0, 255), min_size=1, max_size=4), st.integers(1, 40))
def test_a_placement_has_as_many_gpus_as_wanted_and_all_are_free(
    free: list[int], wanted: int
) -> None:
    placements: tuple[Placement, ...] = (consolidated, spread, packed)
    for placement in placements:
        parts = placement(free, 8, [wanted], _lowest)
        if parts is not None:
            assert all(part.gpus & ~free[part.node] == 0 for part in parts)
            assert sum(part.gpus.bit_count() for part in parts) == wanted


def test_on_a_node_the_gpus_are_those_that_nvidias_plugin_prefers() -> None:
    taken = job("taken", 1, seconds=1_000.0)
    pair = job("pair", 2, at=1.0)
    runs = by_name(replay([taken, pair], Greedy(fleet(1, "dgx1-v100"), consolidated)))
    machine = recorded_machine("dgx1-v100", node="node")
    alone = choose_partition(machine, 0b1111_1111, 1)
    assert alone is not None
    together = choose_partition(machine, 0b1111_1111 & ~alone, 2)
    assert together is not None
    assert runs["taken"].parts == (OnNode(0, alone),)
    assert runs["pair"].parts == (OnNode(0, together),)
    assert together != lowest(0b1111_1111 & ~alone, 2)


def test_pods_of_one_gpu_get_theirs_one_after_the_other() -> None:
    machine = recorded_machine("dgx1-v100", node="node")
    prefer = nvidias_choice(["dgx1-v100"])
    (part,) = packed([0b1111_1110], 8, [2], prefer) or ()
    first = choose_partition(machine, 0b1111_1110, 1) or 0
    second = choose_partition(machine, 0b1111_1110 & ~first, 1) or 0
    assert part == OnNode(0, first | second)


@settings(deadline=None)
@given(st.integers(0, 255), st.integers(0, 8))
def test_the_lowest_gpus_of_a_set(free: int, count: int) -> None:
    positions = [gpu for gpu in range(8) if free >> gpu & 1]
    if count <= len(positions):
        assert lowest(free, count) == sum(1 << gpu for gpu in positions[:count])


# One node of eight. `first` has 6 of its GPUs until 100, `whole` wants all 8.
FIRST = job("first", 6, seconds=100.0)
WHOLE = job("whole", 8, at=1.0, seconds=50.0)
SHORT = job("short", 2, at=2.0, seconds=90.0)
LONG = job("long", 2, at=3.0, seconds=500.0)


def test_fifo_lets_nobody_pass() -> None:
    runs = by_name(replay([FIRST, WHOLE, SHORT], Fifo(fleet(1), consolidated)))
    assert (runs["whole"].start, runs["short"].start) == (100.0, 150.0)


def test_greedy_starts_whatever_fits_though_the_first_one_waits_for_it() -> None:
    runs = by_name(replay([FIRST, WHOLE, LONG], Greedy(fleet(1), consolidated)))
    assert (runs["long"].start, runs["whole"].start) == (3.0, 503.0)


def test_easy_lets_pass_who_does_not_delay_the_first_one() -> None:
    jobs = [FIRST, WHOLE, SHORT, LONG]
    runs = by_name(replay(jobs, Easy(fleet(1), consolidated)))
    assert runs["short"].start == 2.0
    assert runs["whole"].start == 100.0
    assert runs["long"].start == 150.0


def test_easy_lets_a_long_job_pass_on_gpus_that_are_not_reserved() -> None:
    other = job("other", 5, seconds=1000.0)
    runs = by_name(replay([FIRST, other, WHOLE, LONG], Easy(fleet(2), consolidated)))
    assert runs["long"].start == 3.0
    assert runs["long"].parts[0].node == 1
    assert runs["whole"].start == 100.0


def test_easy_goes_on_where_runs_are_longer_than_anybody_knew() -> None:
    jobs = [FIRST, WHOLE, SHORT, LONG]
    runs = replay(jobs, Easy(fleet(1), consolidated), stretch=lambda _: 3.0)
    assert_possible(runs, jobs, fleet(1))
    assert by_name(runs)["whole"].start == 300.0


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("seed", range(5))
def test_no_gpu_has_two_jobs_at_a_time_and_every_job_runs(name: str, seed: int) -> None:
    jobs = random_jobs(seed, 120)
    runs = replay(jobs, SCHEDULERS[name](fleet(3)))
    assert_possible(runs, jobs, fleet(3), in_cells=name == "buddy")


@pytest.mark.parametrize("seed", range(5))
def test_who_is_first_in_easy_starts_no_later_than_in_fifo(seed: int) -> None:
    """With true run times, FIFO's first job starts when it fits, and EASY keeps that promise."""
    jobs = [job("a", 6), job("b", 8, at=1.0), *random_jobs(seed, 60)]
    jobs.sort(key=lambda each: each.submit)
    first = next(each for each in jobs if each.name == "b")
    fifo, easy = (by_name(replay(jobs, kind(fleet(2), consolidated))) for kind in (Fifo, Easy))
    assert easy[first.name].start <= fifo[first.name].start
