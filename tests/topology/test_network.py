"""What a GPU set sends to other machines, by docs/topology.md."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from linkwise.topology.machine.model import LinkClass, Machine, Nic
from linkwise.topology.machine.recorded import recorded_machine
from linkwise.topology.sets import subsets
from linkwise.topology.sets.network import fabric_gbytes_per_s, network_gbytes_per_s
from linkwise.topology.sets.tables import table_of

PIX, NODE, SYS = LinkClass.PIX, LinkClass.NODE, LinkClass.SYS
TWO_SOCKETS = recorded_machine("rtx4090-8-sys")  # PCIe 24, between sockets 22, through a root 20


def with_nics(*closeness: tuple[LinkClass, ...]) -> Machine:
    nics = tuple(Nic(f"mlx5_{number}", each) for number, each in enumerate(closeness))
    return replace(TWO_SOCKETS, nics=nics)


def test_a_machine_that_tells_no_nic_has_one_as_fast_as_its_slots() -> None:
    network = network_gbytes_per_s(TWO_SOCKETS)
    assert network[0] == 0.0
    assert set(network[1:].tolist()) == {24.0}


def test_every_nic_adds_the_best_path_to_it() -> None:
    near = (PIX,) * 4 + (SYS,) * 4
    network = network_gbytes_per_s(with_nics(near, near))
    assert network[0b0000_0011] == 48.0
    assert network[0b0011_0000] == 40.0  # through the root, 24 / 1.2, is slower than the sockets
    assert network[0b0001_0001] == 48.0


def test_a_nic_carries_no_more_than_its_own_speed() -> None:
    machine = with_nics((PIX,) * 8, (SYS,) * 8)
    slow, fast = replace(machine.nics[0], gbit_per_s=50), replace(machine.nics[1], gbit_per_s=400)
    network = network_gbytes_per_s(replace(machine, nics=(slow, fast)))
    assert network[-1] == 6.0 + 20.0  # of the far one, what the path to it carries


def test_a_set_sends_no_more_than_its_slots_carry() -> None:
    everywhere = (PIX,) * 8
    network = network_gbytes_per_s(with_nics(everywhere, everywhere, everywhere))
    assert [network[mask] for mask in (0b1, 0b11, 0b111, 0b1111)] == [24.0, 48.0, 72.0, 72.0]


def test_a_gpu_sends_no_more_than_its_lanes_carry() -> None:
    machine = with_nics((PIX,) * 8)
    narrow = replace(machine.gpus[0], pcie_lanes=4)
    network = network_gbytes_per_s(replace(machine, gpus=(narrow, *machine.gpus[1:])))
    assert (network[0b1], network[0b10], network[0b11]) == (6.0, 24.0, 24.0)


def test_a_nic_of_the_same_numa_node_is_behind_the_root() -> None:
    assert network_gbytes_per_s(with_nics((NODE,) * 8))[-1] == 20.0


@pytest.mark.parametrize(
    ("machine", "speed"), [("gb200-tray", 676.8), ("hgx-h100", 370.8), ("dgx1-v100", 0.0)]
)
def test_into_a_fabric_goes_what_goes_into_the_switch(machine: str, speed: float) -> None:
    fabric = fabric_gbytes_per_s(recorded_machine(machine))
    assert fabric[0] == np.inf
    assert set(fabric[1:].tolist()) == {speed}


def test_a_lone_gpu_has_the_links_of_its_model() -> None:
    whole = recorded_machine("gb200-tray")
    assert fabric_gbytes_per_s(Machine(whole.gpus[:1], ()))[1] == 676.8


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_worst_part_of_the_best_cut_is_what_trying_all_cuts_says(size: int) -> None:
    values = table_of(recorded_machine("dgx1-v100")).values
    values = np.where(subsets.sizes(8) == size, values, -np.inf)
    found = subsets.best_slowest_parts(values, size)

    def worst(gpus: int) -> float:
        if not gpus:
            return float("inf")
        others = [p for p in range(8) if gpus >> p & 1][1:]
        parts = (
            (gpus & -gpus) | sum(1 << p for p in some) for some in combinations(others, size - 1)
        )
        return max((min(values[part], worst(gpus & ~part)) for part in parts), default=-np.inf)

    assert found.tolist() == [worst(gpus) for gpus in range(256)]
