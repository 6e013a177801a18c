"""The value of a GPU set, on machines that an operator recognises."""

from dataclasses import replace
from itertools import combinations

import pytest

from linkwise.topology.machine.hardware import facts_of
from linkwise.topology.machine.model import Gpu, Link, LinkClass, Machine
from linkwise.topology.machine.recorded import machine_names, recorded_machine
from linkwise.topology.sets.bandwidth import (
    bandwidth,
    islands,
    pair_gbytes_per_s,
    ring_class,
    sharp_gain,
)
from linkwise.topology.sets.rings import disjoint_rings, one_way_rings
from linkwise.topology.sets.tables import table_of
from tests.machines import (
    BRIDGED_8,
    DGX_1V,
    DGX_2,
    DGX_A100,
    GEFORCE_4,
    HGX_H100,
    PCIE_8,
    TWO_ISLANDS,
)
from tests.topology.brute_force import JUDGES, judge_of, subsets


@pytest.mark.parametrize(
    ("machine", "gpus", "gbytes_per_s"),
    [
        pytest.param(DGX_1V, 0b11111111, 120.0, id="DGX-1V, all: three rings, both ways"),
        pytest.param(DGX_1V, 0b1001, 40.0, id="DGX-1V, 0 and 3: two NVLinks"),
        pytest.param(DGX_1V, 0b11, 20.0, id="DGX-1V, 0 and 1: one NVLink"),
        pytest.param(DGX_1V, 0b1111, 80.0, id="DGX-1V, a quad: two rings, both ways"),
        pytest.param(DGX_1V, 0b100001, 6.0, id="DGX-1V, 0 and 5: between the sockets"),
        pytest.param(DGX_A100, 0b111, 240.0, id="NVSwitch of 12 links each"),
        pytest.param(HGX_H100, 0b1111, 370.8, id="NVSwitch of 18 links each"),
        pytest.param(HGX_H100, 0b11111111, 490.28, id="NVSwitch that reduces"),
        pytest.param(DGX_2, 0xFFFF, 120.0, id="DGX-2: 6 links each, 16 GPUs"),
        pytest.param(BRIDGED_8, 0b101, 210.0, id="a bridged pair: 7/8 of 12 links"),
        pytest.param(BRIDGED_8, 0b1111, 13.8889, id="two bridged pairs: between the sockets"),
        pytest.param(TWO_ISLANDS, 0b1111, 370.8, id="a 4-way bridge: nine rings, both ways"),
        pytest.param(TWO_ISLANDS, 0b11, 123.6, id="two GPUs of a 4-way bridge: 6 links"),
        pytest.param(PCIE_8, 0b1111, 12.0, id="PCIe Gen3 below one switch"),
        pytest.param(PCIE_8, 0b11111, 8.3333, id="PCIe Gen3 through the host bridge"),
        pytest.param(GEFORCE_4, 0b0011, 8.3333, id="GeForce: two share a switch's way up"),
        pytest.param(GEFORCE_4, 0b0101, 13.8889, id="GeForce: two switches"),
        pytest.param(GEFORCE_4, 0b0111, 8.3333, id="GeForce: two of three share a way up"),
        pytest.param(PCIE_8, 0b1, 5000.0, id="a lone GPU"),
        pytest.param(PCIE_8, 0, 0.0, id="no GPU"),
    ],
)
def test_known_values(machine: Machine, gpus: int, gbytes_per_s: float) -> None:
    assert bandwidth(machine, gpus) == pytest.approx(gbytes_per_s)


@pytest.mark.parametrize("name", JUDGES)
def test_every_set_is_worth_what_trying_all_rings_says(name: str) -> None:
    judge = judge_of(name)
    for gpus in judge.everything:
        assert bandwidth(judge.machine, gpus) == pytest.approx(judge.values[gpus])
        assert ring_class(judge.machine, gpus) is judge.classes[gpus]


@pytest.mark.parametrize(
    ("size", "sets", "best", "mean", "without_ring"),
    [
        (2, 28, 50, 25.7, 12),
        (3, 56, 50, 15.7, 48),
        (4, 70, 100, 16.0, 62),
        (5, 56, 50, 27.1, 32),
        (6, 28, 100, 57.1, 0),
        (7, 8, 100, 100.0, 0),
        (8, 1, 150, 150.0, 0),
    ],
)
def test_a_dgx_1v_under_mapas_constants(
    size: int, sets: int, best: float, mean: float, without_ring: int
) -> None:
    """MAPA (SC'21) counts 25 GB/s a link, and 10 on PCIe: the averages over all sets by hand."""
    theirs = []
    for gpus in subsets(DGX_1V.all_gpus, size):
        nvlink = ring_class(DGX_1V, gpus) is LinkClass.NVLINK
        theirs.append(bandwidth(DGX_1V, gpus) * 25 / 20 if nvlink else 10.0)
    assert len(theirs) == sets
    assert max(theirs) == best
    assert sum(theirs) / sets == pytest.approx(mean, abs=0.05)
    assert theirs.count(10.0) == without_ring


@pytest.mark.parametrize(
    ("pcie", "by_default", "with_peers"),
    [
        (LinkClass.PIX, 24.0, 24.0),
        (LinkClass.PXB, 24.0, 24.0),
        (LinkClass.PHB, 24 / 1.2**2, 20.0),
        (LinkClass.NODE, 24 / 1.2**2, 20.0),
        (LinkClass.SYS, 24 / 1.2**3, 16.0),
    ],
)
def test_a_pair_without_nvlink_is_worth_its_pcie_path(
    pcie: LinkClass, by_default: float, with_peers: float
) -> None:
    """With NCCL_P2P_LEVEL=SYS, and without: then no peer-to-peer access leads through a CPU."""
    machine = pair_of(Link(pcie), "NVIDIA A10", "NVIDIA A10")
    assert pair_gbytes_per_s(machine, 0, 1) == pytest.approx(by_default)
    assert pair_gbytes_per_s(machine, 0, 1, LinkClass.SYS) == with_peers


def test_four_gpus_of_one_socket_are_faster_than_two_of_each() -> None:
    """By default, 8 RTX PRO 6000 on two sockets reach 22.2 GB/s and 4 on one 30.3."""
    gpus = tuple(Gpu(f"GPU-{n}", n, "NVIDIA RTX PRO 6000 Blackwell", 1) for n in range(8))
    near, far = Link(LinkClass.NODE), Link(LinkClass.SYS)
    pairs = combinations(range(8), 2)
    machine = Machine(gpus, tuple(near if a // 4 == b // 4 else far for a, b in pairs))
    values = table_of(machine).values
    assert (values[0b1111], values[0b110011]) == (33.3333, 27.7778)
    assert bandwidth(machine, 0b1111, LinkClass.SYS) == bandwidth(machine, 0xFF, LinkClass.SYS)


def test_a_gpu_with_half_of_its_pcie_lanes_halves_what_crosses_them() -> None:
    gpus = list(PCIE_8.gpus)
    gpus[1] = replace(gpus[1], pcie_lanes=8)
    machine = replace(PCIE_8, gpus=tuple(gpus))
    values = table_of(machine).values
    assert (values[0b1101], values[0b11], values[0b10001]) == (12.0, 6.0, 8.3333)
    assert values[0b10010] == bandwidth(machine, 0b10010) == 4.1667
    nvswitch = replace(HGX_H100, gpus=(replace(HGX_H100.gpus[0], pcie_lanes=1), *HGX_H100.gpus[1:]))
    assert table_of(nvswitch).values[-1] == table_of(HGX_H100).values[-1]


def test_the_lanes_of_a_gpu_count_where_it_shares_a_way_up() -> None:
    narrow = replace(GEFORCE_4.gpus[0], pcie_lanes=4)
    machine = replace(GEFORCE_4, gpus=(narrow, *GEFORCE_4.gpus[1:]))
    for gpus in (0b0011, 0b0111, 0b0101):
        assert table_of(machine).values[gpus] == bandwidth(machine, gpus)
    assert bandwidth(machine, 0b0011) == pytest.approx(bandwidth(GEFORCE_4, 0b0011) / 4, abs=1e-4)


def test_the_more_gpus_share_a_way_to_the_hosts_memory_the_less_each_has_of_it() -> None:
    links = tuple(replace(link, peer_to_peer=False) for link in PCIE_8.links)
    machine = replace(PCIE_8, links=links)
    slot = 12.0 / 1.2**2
    for gpus, share in ((0b1, 0), (0b11, 2), (0b111, 3), (0b1111, 4), (0b110111, 3)):
        expected = slot / share if share else 5000.0
        assert bandwidth(machine, gpus) == pytest.approx(expected, abs=1e-4)
        assert table_of(machine).values[gpus] == bandwidth(machine, gpus)


def test_gpus_below_a_switch_that_reach_each_other_leave_its_way_up_alone() -> None:
    links = [Link(LinkClass.PIX), *[Link(LinkClass.PIX, peer_to_peer=False)] * 5]
    machine = Machine(PCIE_8.gpus[:4], tuple(links))
    assert bandwidth(machine, 0b0011) == 12.0
    assert bandwidth(machine, 0b0101) == pytest.approx(4.1667)
    assert [table_of(machine).values[gpus] for gpus in (0b0011, 0b0101)] == [12.0, 4.1667]


def test_of_two_models_the_slower_one_counts() -> None:
    assert pair_gbytes_per_s(pair_of(Link(LinkClass.PIX), "NVIDIA H100", "Tesla T4"), 0, 1) == 12.0
    nvlinks = Link(LinkClass.PIX, nvlinks=4)
    assert pair_gbytes_per_s(pair_of(nvlinks, "NVIDIA H100", "NVIDIA A40"), 0, 1) == 48.0


def test_of_two_models_the_slower_ones_nvlinks_count_for_a_whole_ring() -> None:
    models = ("NVIDIA H100", "NVIDIA H100", "NVIDIA A40")
    gpus = tuple(Gpu(f"GPU-{index}", index, model, 1) for index, model in enumerate(models))
    machine = Machine(gpus, (Link(LinkClass.PIX, nvlinks=4),) * 3)
    assert bandwidth(machine, 0b111) == 2 * 4 * 12.0
    assert table_of(machine).values[0b111] == 2 * 4 * 12.0


def test_a_pair_takes_pcie_where_its_nvlink_is_slower() -> None:
    one_nvlink = pair_of(Link(LinkClass.PIX, nvlinks=1), "NVIDIA H100 NVL", "NVIDIA H100 NVL")
    assert pair_gbytes_per_s(one_nvlink, 0, 1) == 48.0


def test_between_sockets_a_pair_is_never_faster_than_its_way_out() -> None:
    """An L40S leaves its slot at 20 GB/s at most, so 22 between the sockets do not help."""
    far = pair_of(Link(LinkClass.SYS), "NVIDIA L40S", "NVIDIA L40S")
    assert pair_gbytes_per_s(far, 0, 1, LinkClass.SYS) == 20.0
    assert pair_gbytes_per_s(far, 0, 1) == pytest.approx(24 / 1.2**3)


@pytest.mark.parametrize(
    ("model", "gains"),
    [
        # H100: 0.85 x 2(n-1)/(n+1). B200: 0.74 of NCCL's 40.1 GB/s, where a ring gets 37.6; of
        # five GPUs that would be 712 of 677, but NCCL compares 712 with the 722 that it expects.
        ("NVIDIA H100", {4: 1.0, 5: 1.1333, 6: 1.2143, 8: 1.3222, 72: 1.3222}),
        ("NVIDIA B200", {4: 1.0, 5: 1.0, 6: 1.1274, 8: 1.2276, 72: 1.2276}),
        ("NVIDIA A100", {8: 1.0}),
    ],
)
def test_from_how_many_gpus_on_switches_reduce_with_gain(
    model: str, gains: dict[int, float]
) -> None:
    found = {count: round(sharp_gain(facts_of(model), count), 4) for count in gains}
    assert found == gains


def pair_of(link: Link, *models: str) -> Machine:
    gpus = tuple(Gpu(f"GPU-{index}", index, model, 1) for index, model in enumerate(models))
    return Machine(gpus, (link,))


def test_a_gpu_with_fewer_links_into_the_switch_slows_every_set_it_is_in() -> None:
    links = tuple(
        replace(link, nvlinks=12 if 0 in (first, second) else 18)
        for first, second, link in HGX_H100.pairs()
    )
    machine = replace(HGX_H100, links=links)
    assert bandwidth(machine, 0b1111) == pytest.approx(12 * 20.6)
    assert bandwidth(machine, 0b1110) == pytest.approx(18 * 20.6)


def test_a_gpu_that_lost_its_nvlinks_takes_its_ring_down_to_pcie() -> None:
    links = tuple(
        Link(link.pcie) if 0 in (first, second) else link
        for first, second, link in HGX_H100.pairs()
    )
    machine = replace(HGX_H100, links=links)
    assert ring_class(machine, 0b1111) is LinkClass.NODE
    assert bandwidth(machine, 0b1111) == 33.3333
    assert bandwidth(machine, 0b1110) == pytest.approx(370.8)


def test_the_pieces_that_nvlinks_hold_together() -> None:
    assert islands(DGX_1V) == (0b11111111,)
    assert sorted(islands(TWO_ISLANDS)) == [0b1111, 0b11110000]
    assert len(islands(HGX_H100)) == 8  # a switch joins all: no island of direct links


@pytest.mark.parametrize("name", machine_names())
def test_the_table_of_a_machine_holds_the_definition(name: str) -> None:
    machine = recorded_machine(name)
    table = table_of(machine)
    step = 1 if len(machine.gpus) <= 8 else 4999
    for gpus in range(0, 1 << len(machine.gpus), step):
        assert table.values[gpus] == bandwidth(machine, gpus)
        assert table.ring_classes[gpus] == ring_class(machine, gpus)


def mesh(count: int, links: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(0 if a == b else links for b in range(count)) for a in range(count))


@pytest.mark.parametrize(
    ("links", "number"),
    [
        pytest.param(mesh(3, 4), 4, id="a triangle: as often as it has links"),
        pytest.param(mesh(4, 1), 1, id="K4: a ring, and a pair of edges that make none"),
        pytest.param(mesh(4, 2), 3, id="K4 doubled: each of its three rings"),
        pytest.param(mesh(7, 1), 3, id="K7: all its edges (Walecki)"),
        pytest.param(mesh(8, 1), 3, id="K8: all but a matching (Walecki)"),
        pytest.param(mesh(8, 2), 7, id="K8 doubled: all its edges"),
        pytest.param(
            ((0, 3, 4, 3), (3, 0, 2, 2), (4, 2, 0, 2), (3, 2, 2, 0)), 3, id="odd links stay unused"
        ),
        pytest.param(mesh(2, 3), 0, id="a pair is no ring"),
        pytest.param(mesh(9, 2), 2, id="nine: one ring, as often as it has links"),
        pytest.param(mesh(4, 30), 30, id="more links than a chip has: one ring, so often"),
    ],
)
def test_disjoint_rings(links: tuple[tuple[int, ...], ...], number: int) -> None:
    assert disjoint_rings(links) == number


def test_in_an_island_of_nine_only_copies_of_one_ring_count() -> None:
    gpus = tuple(Gpu(f"GPU-{index}", index, "NVIDIA A100", 1) for index in range(9))
    machine = Machine(gpus, (Link(LinkClass.SYS, nvlinks=2),) * 36)
    assert disjoint_rings(mesh(4, 2)) == 3  # as of an island of four
    assert bandwidth(machine, 0b1111) == table_of(machine).values[0b1111] == 2 * 2 * 20.0


def test_a_mesh_that_nobody_builds_ends_all_the_same() -> None:
    """No cut forbids five rings, and no search has found them: it gives up at four."""
    links = (
        (0, 2, 4, 0, 3, 2, 4, 3),
        (2, 0, 2, 0, 0, 5, 1, 0),
        (4, 2, 0, 6, 0, 0, 4, 1),
        (0, 0, 6, 0, 4, 3, 0, 5),
        (3, 0, 0, 4, 0, 3, 2, 5),
        (2, 5, 0, 3, 3, 0, 4, 1),
        (4, 1, 4, 0, 2, 4, 0, 3),
        (3, 0, 1, 5, 5, 1, 3, 0),
    )
    assert disjoint_rings(links) == 4


@pytest.mark.parametrize(
    ("links", "number"),
    [
        # As many as each point has links, except of four and six (Tillson 1980).
        *((mesh(count, 1), count - 1) for count in (3, 5, 7, 8)),
        (mesh(4, 1), 2),
        (mesh(6, 1), 4),
        (mesh(2, 3), 0),
    ],
)
def test_one_way_rings(links: tuple[tuple[int, ...], ...], number: int) -> None:
    assert one_way_rings(links) == number


def amd(model: str, *links: Link) -> Machine:
    """A machine of as many GPUs as there are *links*, one of each pair."""
    count = next(count for count in range(2, 9) if count * (count - 1) // 2 == len(links))
    gpus = tuple(Gpu(f"0000:{index:02x}:00.0", index, model, 1) for index in range(count))
    return Machine(gpus, links, vendor="amd")


@pytest.mark.parametrize(
    ("size", "gbytes_per_s"), [(2, 48), (3, 96), (4, 96), (5, 192), (6, 192), (7, 288), (8, 336)]
)
def test_a_mesh_of_mi300x(size: int, gbytes_per_s: float) -> None:
    """Measured of 8: 310 to 330 GB/s, mostly 319 (AMD's blog "mi300x-rccl-xgmi"). The rule for
    NVIDIA's GPUs would say 288."""
    machine = amd("AMD Instinct MI300X OAM", *[Link(LinkClass.SYS, nvlinks=1)] * 28)
    assert bandwidth(machine, (1 << size) - 1) == gbytes_per_s
    assert table_of(machine).values[(1 << size) - 1] == gbytes_per_s


def test_a_pair_that_other_gpus_links_join_has_one_link() -> None:
    routed = Link(LinkClass.SYS, routed=True, peer_to_peer=False)
    machine = amd("AMD Instinct MI250X", Link(LinkClass.SYS, nvlinks=2), routed, routed)
    assert [bandwidth(machine, gpus) for gpus in (0b011, 0b101, 0b111)] == [72, 36, 36]
    assert ring_class(machine, 0b111) is LinkClass.NVLINK
