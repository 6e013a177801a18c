"""What the doctor says of GPUs of whose PCIe lanes some are not up."""

from dataclasses import replace

import pytest

from linkwise.cli.doctor.diagnosis import findings
from linkwise.cli.doctor.facts import Facts
from linkwise.cli.doctor.finding import Level
from linkwise.topology.annotations.node_annotation import write_topology
from tests.cli.doctor.cluster_facts import MACHINE, WELL, node


def with_lanes(up: int, most: int, *positions: int) -> Facts:
    gpus = tuple(
        replace(gpu, pcie_lanes=up, most_pcie_lanes=most) if place in positions else gpu
        for place, gpu in enumerate(MACHINE.gpus)
    )
    narrow = node("n1", topology=write_topology(replace(MACHINE, gpus=gpus)))
    return replace(WELL, nodes=(narrow,))


@pytest.mark.parametrize(
    ("gpus", "what"),
    [
        ((3,), "GPU 3: 8 of 16 PCIe lanes are up"),
        ((1, 5), "GPUs 1, 5: 8 of 16 PCIe lanes are up"),
    ],
)
def test_gpus_that_came_up_with_fewer_lanes(gpus: tuple[int, ...], what: str) -> None:
    (found,) = (each for each in findings(with_lanes(8, 16, *gpus)) if "PCIe" in each.what)
    assert (found.level, found.where, found.what) == (Level.NOTE, ("n1",), what)
    assert found.page == "docs/topology.md#pcie-lanes"


def test_a_slot_of_eight_lanes_is_as_it_is_meant() -> None:
    assert not [each for each in findings(with_lanes(8, 8, 3)) if "PCIe" in each.what]
