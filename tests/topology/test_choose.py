"""The chosen set is the best one, for every free set and every size."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from linkwise.topology.errors import RequestError
from linkwise.topology.machine.model import Link, LinkClass, Machine, Nic
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.machine.topo_matrix import read_matrix
from linkwise.topology.sets.choose import Choice, better_of, choose, nearest_miss, pack, ranked
from tests.machines import (
    BRIDGED_8,
    DGX_1V,
    DGX_2,
    GEFORCE_4,
    HGX_H100,
    PCIE_8,
    T4_4,
    TWO_ISLANDS,
    TWO_SWITCHES,
    machine,
)
from tests.topology.brute_force import (
    JUDGES,
    PCIE_TREE_16,
    BruteForceJudge,
    judge_of,
    members,
    subsets,
)

ALL_8 = 0b11111111


def set_of(*indices: int) -> int:
    return sum(1 << index for index in indices)


def indices(choice: Choice | None) -> tuple[int, ...]:
    return members(choice.gpus) if choice else ()


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize(
    ("require", "prefer"),
    [
        (LinkClass.SYS, LinkClass.NVLINK),
        (LinkClass.NODE, LinkClass.NVLINK),
        (LinkClass.PHB, LinkClass.NVLINK),
        (LinkClass.PXB, LinkClass.NVLINK),
        (LinkClass.PIX, LinkClass.NVLINK),
        (LinkClass.NVLINK, LinkClass.NVLINK),
        (LinkClass.SYS, LinkClass.SYS),
        (LinkClass.SYS, LinkClass.PXB),
        (LinkClass.NODE, LinkClass.PHB),
    ],
)
def test_no_set_is_better_than_the_chosen_one(
    name: str, require: LinkClass, prefer: LinkClass
) -> None:
    judge = judge_of(name)
    for free in judge.everything:
        for size in range(1, free.bit_count() + 1):
            best = judge.order(free, size, require, prefer)
            found = ranked(judge.machine, free, size, require=require, prefer=prefer)
            assert [choice.gpus for choice in found] == best[:2]
            for choice in found:
                assert choice.gbytes_per_s == pytest.approx(judge.values[choice.gpus])
                assert choice.ring_class is judge.classes[choice.gpus]
                assert choice.remaining_value == pytest.approx(
                    judge.remaining_value[free & ~choice.gpus], abs=2e-9
                )


@pytest.mark.parametrize("name", JUDGES)
def test_what_must_be_in_is_in_the_best_set_that_holds_it(name: str) -> None:
    judge = judge_of(name)
    for free in judge.everything:
        must = free & 0b10010010
        for size in range(1, free.bit_count() + 1):
            order = judge.order(free, size, LinkClass.SYS, LinkClass.NVLINK)
            best = next((gpus for gpus in order if gpus & must == must), None)
            found = choose(judge.machine, free, size, must=must)
            assert (found.gpus if found else None) == best


def best_total(
    judge: BruteForceJudge, free: int, size: int, count: int, require: LinkClass
) -> tuple[int, int, float]:
    """Return sets, sets of NVLinks, and GB/s together, by trying every way to place the sets."""

    @cache
    def best(left: int, count: int) -> tuple[int, int, float]:
        if not left or not count:
            return 0, 0, 0.0
        options = [best(left & (left - 1), count)]
        for part in subsets(left, size):
            if part & left & -left and judge.classes[part] >= require:
                sets, nvlink, total = best(left & ~part, count - 1)
                joined = judge.classes[part] is LinkClass.NVLINK
                options.append((sets + 1, nvlink + joined, round(total + judge.values[part], 6)))
        return max(options)

    return best(free, count)


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize("require", [LinkClass.SYS, LinkClass.NVLINK])
@pytest.mark.parametrize(("size", "count"), [(1, 3), (2, 2), (2, 4), (3, 2), (4, 2)])
def test_no_sets_side_by_side_are_better_together(
    name: str, require: LinkClass, size: int, count: int
) -> None:
    judge = judge_of(name)
    for free in judge.everything[:: 1 if size > 1 else 5]:
        found = pack(judge.machine, free, size, count, require=require)
        taken = 0
        for choice in found:
            assert choice.gpus.bit_count() == size
            assert not choice.gpus & ~(free & ~taken)
            assert choice.ring_class >= require
            taken |= choice.gpus
        assert all(
            c.remaining_value == pytest.approx(judge.remaining_value[free & ~taken], abs=2e-9)
            for c in found
        )
        nvlink = sum(choice.ring_class is LinkClass.NVLINK for choice in found)
        total = sum(judge.values[choice.gpus] for choice in found)
        best = best_total(judge, free, size, count, require)
        assert (len(found), nvlink) == best[:2]
        assert total == pytest.approx(best[2])


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_single_gpus_side_by_side_leave_the_most(name: str, count: int) -> None:
    judge = judge_of(name)
    for free in judge.everything:
        found = pack(judge.machine, free, 1, count)
        left = [
            judge.remaining_value[free & ~taken] for taken in subsets(free, min(count, len(found)))
        ]
        assert all(choice.remaining_value == pytest.approx(max(left), abs=2e-9) for choice in found)


# --- what an operator would expect -----------------------------------------------------------


def test_two_gpus_of_a_dgx_1v_get_a_double_link_and_leave_three_more() -> None:
    found = choose(DGX_1V, ALL_8, 2)
    assert found is not None
    assert found.gbytes_per_s == 40.0
    left = pack(DGX_1V, ALL_8 & ~found.gpus, 2, 3)
    assert [choice.gbytes_per_s for choice in left] == [40.0, 40.0, 40.0]


def test_a_bridged_pair_is_taken_whole() -> None:
    assert indices(choose(BRIDGED_8, set_of(0, 1, 2, 4), 2)) == (0, 2)


def test_a_single_gpu_does_not_break_a_bridged_pair() -> None:
    assert indices(choose(BRIDGED_8, set_of(0, 2, 4, 6, 7), 1)) == (4,)


def test_a_single_gpu_comes_from_the_island_that_is_broken_already() -> None:
    assert indices(choose(TWO_ISLANDS, ALL_8 & ~set_of(5), 1)) == (4,)


def test_where_closeness_is_not_wanted_the_fast_links_are_left_to_others() -> None:
    free = set_of(0, 2, 4, 5, 1)  # two bridged pairs and GPU 1, whose other half is taken
    assert indices(choose(BRIDGED_8, free, 2)) == (0, 2)
    spared = choose(BRIDGED_8, free, 2, prefer=LinkClass.SYS)
    assert spared is not None
    assert spared.gpus & set_of(1)


def test_equal_links_are_told_apart_by_numa_nodes() -> None:
    machine = recorded_machine("rtx4090-8-sys")  # every pair SYS, 0-3 and 4-7 on a NUMA node each
    found = choose(machine, set_of(0, 1, 4, 5, 6), 3)
    assert indices(found) == (4, 5, 6)


def test_equal_sets_are_told_apart_by_a_common_nic() -> None:
    far, near = LinkClass.NODE, LinkClass.PIX
    nic = Nic("mlx5_0", (far, far, near, near, *[LinkClass.SYS] * 4))
    machine = replace(HGX_H100, nics=(nic,))
    assert indices(choose(machine, ALL_8, 2)) == (2, 3)
    assert [indices(choice) for choice in pack(machine, ALL_8, 2, 1)] == [(2, 3)]


def test_one_numa_node_counts_for_more_than_a_near_nic() -> None:
    """The NIC is beside GPUs 3 and 4, which are on two NUMA nodes."""
    near = [LinkClass.PIX if gpu in (3, 4) else LinkClass.SYS for gpu in range(8)]
    machine = replace(HGX_H100, nics=(Nic("mlx5_0", tuple(near)),))
    free = set_of(3, 4, 5)
    assert indices(choose(machine, free, 2)) == (4, 5)
    assert [indices(choice) for choice in pack(machine, free, 2, 1)] == [(4, 5)]


def test_what_is_left_counts_for_more_than_one_numa_node() -> None:
    """Each GPU of the broken island is on its own NUMA node; the whole island is on one."""
    gpus = tuple(replace(g, numa_nodes=(min(g.index, 4),)) for g in TWO_ISLANDS.gpus)
    machine, free = replace(TWO_ISLANDS, gpus=gpus), ALL_8 & ~set_of(3)
    assert indices(choose(machine, free, 2)) == (0, 1)
    assert [indices(choice) for choice in pack(machine, free, 2, 1)] == [(0, 1)]


def test_of_equally_fast_sets_the_one_that_is_linked_most_closely_is_taken() -> None:
    machine = replace(T4_4, gpus=tuple(replace(gpu, numa_nodes=()) for gpu in T4_4.gpus))
    assert indices(choose(machine, 0b1111, 2)) == (1, 2)
    assert indices(choose(machine, 0b1111, 3)) == (1, 2, 3)
    assert [indices(choice) for choice in pack(machine, 0b1111, 2, 1)] == [(1, 2)]
    assert better_of(machine, 0b1111, set_of(0, 1), set_of(1, 2)) == set_of(1, 2)


def test_a_closer_link_counts_for_more_than_what_is_left() -> None:
    """All pairs but (2,3) have 12 GB/s. (0,1) is the closest, and leaves (2,3) with 6.9 GB/s."""
    links = [LinkClass.PIX, LinkClass.PXB, LinkClass.PXB, LinkClass.PXB, LinkClass.PXB]
    machine = Machine(T4_4.gpus, (*map(Link, links), Link(LinkClass.SYS)))
    free = set_of(0, 1, 2, 3)
    assert indices(choose(machine, free, 2)) == (0, 1)
    assert [indices(choice) for choice in pack(machine, free, 2, 1)] == [(0, 1)]


def test_geforce_cards_below_one_switch_are_taken_last() -> None:
    assert indices(choose(GEFORCE_4, 0b1111, 2)) == (0, 2)
    assert [indices(choice) for choice in pack(GEFORCE_4, 0b1111, 2, 2)] == [(0, 2), (1, 3)]
    opened = replace(GEFORCE_4, links=read_matrix(TWO_SWITCHES).links)
    assert indices(choose(opened, 0b1111, 2)) == (0, 1)


def test_one_gpu_model_counts_for_more_than_a_closer_link() -> None:
    gpus = (*T4_4.gpus[:2], *(replace(gpu, model="Quadro RTX 8000") for gpu in T4_4.gpus[2:]))
    machine = replace(T4_4, gpus=gpus)
    assert indices(choose(machine, 0b0111, 2)) == (0, 1)
    assert [indices(choice) for choice in pack(machine, 0b0111, 2, 1)] == [(0, 1)]


def test_where_a_link_below_nvlink_is_enough_a_closer_one_does_not_count() -> None:
    machine = replace(T4_4, gpus=tuple(replace(gpu, numa_nodes=()) for gpu in T4_4.gpus))
    assert indices(choose(machine, 0b1111, 2, prefer=LinkClass.SYS)) == (0, 1)
    packed = pack(machine, 0b1111, 2, 1, prefer=LinkClass.SYS)
    assert [indices(choice) for choice in packed] == [(0, 1)]


def test_bandwidth_counts_where_the_preferred_class_cannot_be_had() -> None:
    """No two of GPUs 0, 8 and 12 share a switch; 8 and 12 share a socket."""
    gpus = tuple(replace(gpu, numa_nodes=()) for gpu in PCIE_TREE_16.gpus)
    machine = replace(PCIE_TREE_16, gpus=gpus)
    assert indices(choose(machine, set_of(0, 8, 12), 2, prefer=LinkClass.PXB)) == (8, 12)


def test_side_by_side_each_gets_the_preferred_class_before_one_gets_more_bandwidth() -> None:
    """(0,1) has 18 NVLinks, but leaves (2,3) with none."""
    links = (
        Link(LinkClass.SYS, nvlinks=18),
        Link(LinkClass.SYS, nvlinks=1),
        Link(LinkClass.SYS),
        Link(LinkClass.SYS),
        Link(LinkClass.SYS, nvlinks=1),
        Link(LinkClass.PIX),
    )
    machine = Machine(HGX_H100.gpus[:4], links)
    assert [indices(c) for c in pack(machine, 0b1111, 2, 2)] == [(0, 2), (1, 3)]


def test_of_sets_equal_in_everything_the_lowest_indices_are_taken() -> None:
    assert indices(choose(HGX_H100, ALL_8, 2)) == (0, 1)
    assert indices(choose(HGX_H100, ALL_8 & ~1, 2)) == (1, 2)


def test_the_runner_up_is_the_second_best() -> None:
    first, second = ranked(BRIDGED_8, set_of(0, 2, 4, 5), 2)
    assert (indices(first), indices(second)) == ((0, 2), (4, 5))


@pytest.mark.parametrize("name", JUDGES)
def test_the_better_of_two_sets_is_the_one_that_comes_first_in_the_order(name: str) -> None:
    judge = judge_of(name)
    for free in judge.everything[::7]:
        for size in range(1, free.bit_count() + 1):
            order = judge.order(free, size, LinkClass.SYS, LinkClass.NVLINK)
            for earlier, later in pairwise(order[:6]):
                found = {
                    better_of(judge.machine, free, *sets)
                    for sets in ((earlier, later), (later, earlier))
                }
                if judge.values[earlier] > judge.values[later] * 1.001:
                    assert found == {earlier}
                assert found in ({earlier}, {earlier, later})  # both: equal except their indices


def test_of_two_equal_sets_the_first_counts() -> None:
    pairs = set_of(2, 3), set_of(0, 1)
    assert better_of(HGX_H100, ALL_8, *pairs) == pairs[0]
    assert better_of(HGX_H100, ALL_8, *pairs[::-1]) == pairs[1]


def test_two_pods_side_by_side_get_an_island_each() -> None:
    assert [indices(c) for c in pack(TWO_ISLANDS, ALL_8, 4, 2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_each_of_the_pods_stays_on_one_numa_node_where_all_else_is_equal() -> None:
    free = set_of(1, 2, 3, 4, 5, 6)  # NUMA nodes 0-3 and 4-7
    assert [indices(c) for c in pack(HGX_H100, free, 3, 2)] == [(1, 2, 3), (4, 5, 6)]
    assert [indices(c) for c in pack(HGX_H100, free & ~set_of(1), 3, 1)] == [(4, 5, 6)]
    assert [indices(c) for c in pack(HGX_H100, free, 2, 2)] == [(1, 2), (4, 5)]


def test_one_takes_less_so_that_both_get_more() -> None:
    """Free {0,2,4,5} of a DGX-1V: 0-4 alone has two links, but then 2-5 has none."""
    free = set_of(0, 2, 4, 5)
    alone = choose(DGX_1V, free, 2)
    assert indices(alone) == (0, 4)
    assert [indices(choice) for choice in pack(DGX_1V, free, 2, 2)] == [(0, 2), (4, 5)]


def test_fewer_sets_where_no_more_fit() -> None:
    assert len(pack(TWO_ISLANDS, ALL_8 & ~1, 4, 2, require=LinkClass.NVLINK)) == 1
    assert len(pack(TWO_ISLANDS, ALL_8, 3, 5)) == 2
    assert pack(TWO_ISLANDS, ALL_8, 5, 1, require=LinkClass.NVLINK) == ()
    assert pack(TWO_ISLANDS, ALL_8, 9, 1) == ()
    assert pack(TWO_ISLANDS, ALL_8, 4, 0) == ()


def test_too_few_gpus_is_an_answer() -> None:
    assert choose(DGX_1V, 0b11, 3) is None
    assert choose(DGX_1V, 0, 1) is None
    assert choose(DGX_1V, ALL_8, 9) is None
    assert choose(DGX_1V, 0b110, 2, must=1) is None
    assert choose(DGX_1V, 0b111, 1, must=0b11) is None
    assert choose(BRIDGED_8, ALL_8, 3, require=LinkClass.NVLINK) is None


def test_the_nearest_miss_says_what_could_be_had() -> None:
    assert nearest_miss(PCIE_8, ALL_8, 5, LinkClass.PXB) is LinkClass.PHB
    assert nearest_miss(PCIE_8, ALL_8, 4, LinkClass.NVLINK) is LinkClass.PIX
    assert nearest_miss(PCIE_8, ALL_8, 4, LinkClass.PXB) is LinkClass.PXB  # no miss at all
    assert nearest_miss(PCIE_8, 0b111, 4, LinkClass.PXB) is None
    assert nearest_miss(PCIE_8, ALL_8, 17, LinkClass.PXB) is None


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_makes_no_sense(size: int) -> None:
    with pytest.raises(RequestError, match=f"{size} GPUs wanted: expected 1 or more"):
        choose(DGX_1V, ALL_8, size)
    with pytest.raises(RequestError, match="GPUs wanted"):
        pack(DGX_1V, ALL_8, size, 1)
    with pytest.raises(RequestError, match="GPUs wanted"):
        nearest_miss(DGX_1V, ALL_8, size, LinkClass.PIX)


def test_gpus_that_the_machine_does_not_have_make_no_sense() -> None:
    with pytest.raises(RequestError, match="0b100000000: expected GPUs of the machine"):
        choose(DGX_1V, 0b100000000, 1)
    with pytest.raises(RequestError, match="0b100000001"):
        choose(DGX_1V, ALL_8, 2, must=0b100000001)
    with pytest.raises(RequestError, match="GPU set"):
        choose(DGX_1V, -1, 1)


def test_a_negative_number_of_sets_makes_no_sense() -> None:
    with pytest.raises(RequestError, match="-1 sets wanted: expected 0 or more"):
        pack(DGX_1V, ALL_8, 2, -1)


def test_sixteen_gpus_behind_a_switch_stay_on_one_socket() -> None:
    assert indices(choose(DGX_2, DGX_2.all_gpus & ~0xF, 8)) == tuple(range(8, 16))


def test_sixteen_gpus_in_a_tree_keep_the_whole_socket_whole() -> None:
    free = 0xFFFF & ~set_of(4, 5)
    assert indices(choose(PCIE_TREE_16, free, 2)) == (6, 7)
    assert indices(choose(PCIE_TREE_16, free, 4)) == (0, 1, 2, 3)
    assert [indices(choice) for choice in pack(PCIE_TREE_16, free, 4, 3)] == [
        (0, 1, 2, 3),
        (8, 9, 10, 11),
        (12, 13, 14, 15),
    ]


ONE_WITHOUT_NVLINKS = machine("""
      GPU0  GPU1  GPU2  GPU3
GPU0   X    NV18  NODE  NV18
GPU1  NV18   X    NODE  NV18
GPU2  NODE  NODE   X    NODE
GPU3  NV18  NV18  NODE   X
""")


@pytest.mark.parametrize("free", [0b1111, 0b0111, 0b0101])
def test_a_gpu_without_nvlinks_goes_first_where_others_would_do(free: int) -> None:
    chosen = choose(ONE_WITHOUT_NVLINKS, free, 1)
    assert chosen is not None
    assert chosen.gpus == 0b100
    assert [each.gpus for each in pack(ONE_WITHOUT_NVLINKS, free, 1, 1)] == [0b100]
