"""The tables of a kind of machine, compared with the exhaustive judge."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine, Nic
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets.tables import MachineTable, fingerprint, table_of
from tests.machines import DGX_1V, DGX_2, HGX_H100, MIXED_5, TWO_ISLANDS
from tests.topology.brute_force import JUDGES, PCIE_TREE_16, judge_of, subsets


@pytest.mark.parametrize("name", JUDGES)
def test_what_is_left_is_worth_what_trying_all_cuts_says(name: str) -> None:
    judge = judge_of(name)
    assert table_of(judge.machine).remaining_value.tolist() == pytest.approx(
        judge.remaining_value, abs=2e-9
    )


@pytest.mark.parametrize("name", JUDGES)
def test_what_is_left_in_gbytes_per_s_is_what_trying_all_cuts_says(name: str) -> None:
    judge = judge_of(name)
    left = table_of(judge.machine).remaining_gbytes_per_s
    assert left.tolist() == pytest.approx(judge.remaining_gbytes_per_s)


def test_a_gpu_that_no_link_reaches_loses_nothing_and_one_of_a_switch_the_most() -> None:
    assert table_of(lone_gpu()).remaining_gbytes_per_s.tolist() == [0.0, 0.0]
    lost = {
        name: float(left[-1] - left[-2])  # of the idle machine, its first GPU taken
        for name in ("l40s-4", "a100-pcie-8-bridged", "dgx-a100", "hgx-h100")
        for left in [table_of(recorded_machine(name)).remaining_gbytes_per_s]
    }
    assert list(lost) == sorted(lost, key=lambda name: lost[name])
    # A pair, a four, and the eight, for which the switches reduce.
    assert lost["hgx-h100"] == pytest.approx((370.8 + 370.8 + 490.28) / 4)


@pytest.mark.parametrize("name", JUDGES)
@pytest.mark.parametrize("require", [LinkClass.SYS, LinkClass.PHB, LinkClass.NVLINK])
def test_the_best_of_any_free_gpus(name: str, require: LinkClass) -> None:
    judge = judge_of(name)
    best = table_of(judge.machine).best_with(require)
    for free in judge.everything:
        for size in range(1, 9):
            values = [
                judge.values[gpus] for gpus in subsets(free, size) if judge.classes[gpus] >= require
            ]
            assert best[size, free] == pytest.approx(max(values, default=-np.inf))


def test_best_without_more_said_requires_nothing() -> None:
    table = table_of(TWO_ISLANDS)
    assert table.best[5, -1] == 22.0
    assert table.best_with(LinkClass.NVLINK)[5, -1] == -np.inf
    assert table.best_with(LinkClass.NVLINK)[4, -1] == pytest.approx(370.8)


def test_the_future_of_an_idle_machine_is_all_and_of_a_full_one_nothing() -> None:
    for machine in (DGX_1V, DGX_2, MIXED_5, lone_gpu()):
        remaining_value = table_of(machine).remaining_value
        assert remaining_value[0] == 0.0
        assert remaining_value[-1] == 1.0


def test_a_broken_island_leaves_less_than_a_whole_one() -> None:
    remaining_value = table_of(TWO_ISLANDS).remaining_value
    assert remaining_value[0b00001111] > remaining_value[0b00110011]


def lone_gpu() -> Machine:
    return Machine((Gpu("GPU-1", 0, "Tesla T4", 15360),), ())


def test_in_a_ring_over_several_machines_no_switch_reduces() -> None:
    table = table_of(HGX_H100)
    assert (table.values[-1], table.ring_values[-1]) == (490.28, 370.8)
    assert table_of(DGX_1V).values.tolist() == table_of(DGX_1V).ring_values.tolist()


def test_a_lone_gpu_has_a_table() -> None:
    table = table_of(lone_gpu())
    assert table.values.tolist() == [0.0, 5000.0]
    assert table.best.tolist() == [[0.0, 0.0], [-np.inf, 5000.0]]


def test_numa_nodes_that_are_not_known_count_as_one_more() -> None:
    gpus = list(MIXED_5.gpus)  # 0 on NUMA node 1, the others on node 0
    gpus[1] = replace(gpus[1], numa_nodes=(-1,))
    gpus[2] = replace(gpus[2], numa_nodes=(0, 1))
    spanned = table_of(replace(MIXED_5, gpus=tuple(gpus))).numa_nodes
    assert [spanned[gpus] for gpus in (0b0, 0b1, 0b110, 0b1001, 0b11000, 0b11111)] == [
        0,
        1,
        1,
        2,
        1,
        3,
    ]


def test_the_nearest_nic_is_one_that_all_of_the_set_are_near_to() -> None:
    nic_classes = table_of(DGX_1V).nic_classes  # GPUs (0,1) and (2,3) share a switch with a NIC
    assert nic_classes[0b11] == LinkClass.PIX
    assert nic_classes[0b101] == LinkClass.PHB
    assert nic_classes[0b10001] == LinkClass.SYS
    assert set(table_of(replace(DGX_1V, nics=())).nic_classes) == {-1}


def test_machines_of_one_kind_share_a_table() -> None:
    one = recorded_machine("dgx1-v100", node="a")
    other = recorded_machine("dgx1-v100", node="b")
    assert one != other
    assert table_of(one) is table_of(other)


def test_health_names_and_memory_make_no_other_kind() -> None:
    gpus = tuple(
        replace(gpu, healthy=False, memory_mib=1, uuid=f"GPU-x{gpu.index}") for gpu in DGX_1V.gpus
    )
    nics = tuple(replace(nic, name=f"eth{n}") for n, nic in enumerate(reversed(DGX_1V.nics)))
    assert fingerprint(replace(DGX_1V, gpus=gpus, nics=nics)) == fingerprint(DGX_1V)


def of_model(model: str, capability: tuple[int, int] | None = None) -> Machine:
    gpus = (replace(g, model=model, compute_capability=capability) for g in HGX_H100.gpus)
    return replace(HGX_H100, gpus=tuple(gpus))


def with_first_link(link: Link) -> Machine:
    return replace(HGX_H100, links=(link, *HGX_H100.links[1:]))


FIRST_LINK = HGX_H100.links[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(HGX_H100, with_first_link(replace(FIRST_LINK, nvlinks=9)), id="NVLinks"),
        pytest.param(HGX_H100, with_first_link(replace(FIRST_LINK, pcie=LinkClass.PIX)), id="PCIe"),
        pytest.param(
            HGX_H100, with_first_link(replace(FIRST_LINK, through_switch=False)), id="NVSwitch"
        ),
        pytest.param(
            HGX_H100, replace(HGX_H100, nics=(Nic("eth0", (LinkClass.PIX,) * 8),)), id="NICs"
        ),
        pytest.param(
            HGX_H100,
            replace(HGX_H100, gpus=tuple(replace(g, numa_nodes=()) for g in HGX_H100.gpus)),
            id="NUMA",
        ),
        pytest.param(
            DGX_1V,
            replace(DGX_1V, nics=(replace(DGX_1V.nics[0], gbit_per_s=100), *DGX_1V.nics[1:])),
            id="speed of a NIC",
        ),
        pytest.param(of_model("P100"), of_model("V100"), id="speed of NVLink"),
        pytest.param(of_model("GB200"), of_model("GPU", (13, 0)), id="speed of PCIe"),
        pytest.param(of_model("GB200"), of_model("B200"), id="speed between sockets"),
    ],
)
def test_what_makes_another_kind(one: Machine, other: Machine) -> None:
    assert fingerprint(other) != fingerprint(one)


def test_a_table_cannot_be_spoilt_by_who_reads_it() -> None:
    table = table_of(DGX_1V)
    for array in (
        table.values,
        table.remaining_value,
        table.remaining_gbytes_per_s,
        table.ring_classes,
        table.best,
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[..., 0] = 1


def test_many_threads_get_the_same_numbers() -> None:
    machines = [recorded_machine("dgx1-p100", node=f"n{n}") for n in range(16)]
    with ThreadPoolExecutor(8) as pool:
        best = list(pool.map(lambda machine: table_of(machine).best_with(LinkClass.PIX), machines))
    alone = MachineTable(machines[0]).best_with(LinkClass.PIX)
    assert all(np.array_equal(found, alone) for found in best)


def test_sixteen_gpus_in_a_pcie_tree() -> None:
    """Two sockets of two switches of four GPUs: links that no two machines on record have."""
    table = table_of(PCIE_TREE_16)
    assert table.values[0xF] == 12.0  # one switch
    assert table.values[0xFF] == 8.3333  # two switches of a socket
    assert table.values[-1] == 6.0
    assert table.ring_classes[-1] == LinkClass.SYS
    assert table.best[4, 0b1110_1111_0000_0000] == 12.0
    assert table.best[4, 0b1100_0011_0000_0000] == 8.3333
