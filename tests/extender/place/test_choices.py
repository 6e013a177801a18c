"""What a gang's GPUs are worth as one communicator decides where it goes: cases with one answer."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from linkwise.topology.machine.model import LinkClass, Machine, Nic
from linkwise.topology.machine.recorded import recorded_machine
from tests.extender.cluster import Cluster
from tests.extender.place.partly_used import add, busy, free, named


def planned(at: Cluster, members: Iterable[str]) -> dict[str, list[tuple[int, ...]]]:
    """The GPU sets that the gang's members get, by node."""
    at.settle()
    found: dict[str, list[tuple[int, ...]]] = {}
    for member in members:
        plan = at.plan(member)
        assert plan is not None, at.core.gangs(at.now)
        found.setdefault(plan.node, []).append(at.indices(member))
    return found


def on_one(at: Cluster, members: Iterable[str]) -> set[int]:
    """The GPUs of all members, which are on one node."""
    found = planned(at, members)
    assert len(found) == 1, found
    (sets,) = found.values()
    return {gpu for each in sets for gpu in each}


@pytest.mark.parametrize(
    ("machine", "taken", "size", "gpus", "best"),
    [
        ("dgx1-v100", (0,), 4, 1, {4, 5, 6, 7}),
        ("dgx1-v100", (3,), 2, 2, {4, 5, 6, 7}),
        ("a100-pcie-8-bridged", (0,), 2, 1, {1, 3}),
        ("h200-nvl-2x4", (0,), 4, 1, {4, 5, 6, 7}),
        ("h200-nvl-2x4", (0,), 2, 2, {4, 5, 6, 7}),
    ],
)
def test_members_on_a_node_share_the_best_ring(
    machine: str, taken: tuple[int, ...], size: int, gpus: int, best: set[int]
) -> None:
    at = Cluster()
    at.add_node("n0", machine)
    busy(at, "n0", *taken)
    assert on_one(at, at.add_gang("g", size, gpus)) == best


def test_of_two_nodes_the_one_with_the_better_ring_is_taken() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="dgx1-v100")
    busy(at, "n0", 0, 5, 6, 7)  # 1, 2, 3 and 4 have no ring of NVLinks
    busy(at, "n1", 0, 1, 2, 3)
    assert list(planned(at, at.add_gang("g", 4, 1))) == ["n1"]


def test_the_machine_with_the_faster_links_is_taken() -> None:
    at = Cluster()
    add(at, "a10g", machine="g5.48xlarge")
    add(at, "h100", machine="hgx-h100")
    assert list(planned(at, at.add_gang("g", 8, 1))) == ["h100"]


def test_members_that_want_unequal_cpu_share_a_node() -> None:
    at = Cluster()
    add(at, "n0", machine="hgx-h100", free_gpus=1)
    add(at, "n1", machine="hgx-h100")
    members = [
        at.add_pod(
            f"g-{rank}", 1, cpu="4" if rank else "8", gang="g", gang_size="8", rank=f"{rank}"
        )
        for rank in range(8)
    ]
    assert list(planned(at, [pod.metadata.name for pod in members])) == ["n1"]


def test_no_idle_node_is_broken_where_broken_ones_do() -> None:
    at = Cluster()
    for node, count in (("n0", 8), ("n1", 6), ("n2", 6), ("n3", 4)):
        add(at, node, machine="hgx-h100", free_gpus=count)
    assert set(planned(at, at.add_gang("g", 6, 2))) == {"n1", "n2"}


def test_one_idle_node_of_a_slower_model_beats_four_over_the_network() -> None:
    at = Cluster()
    add(at, "a100", machine="hgx-a100")
    add(at, *(f"h{n}" for n in range(4)), machine="hgx-h100", free_gpus=2)
    assert list(planned(at, at.add_gang("g", 4, 2))) == ["a100"]


@pytest.mark.parametrize(("size", "gpus", "free_in_clique"), [(6, 1, 2), (16, 2, 2)])
def test_one_nvlink_clique_beats_fewer_nodes(size: int, gpus: int, free_in_clique: int) -> None:
    at = Cluster()
    count = size * gpus // free_in_clique
    for number in range(count):
        name = f"a{number:02}"
        at.add_node(name, replace(recorded_machine("gb200-tray", node=name), clique="a.1"))
        free(at, name, free_in_clique)
    for number in range(size * gpus // 4 + 1):  # idle trays, too few in each rack
        name = f"b{number:02}"
        clique = f"b.{number // max(size * gpus // 8, 1)}"
        at.add_node(name, replace(recorded_machine("gb200-tray", node=name), clique=clique))
    found = planned(at, at.add_gang("g", size, gpus))
    assert all(node.startswith("a") for node in found), found


def test_one_leaf_beats_fewer_nodes_in_two_zones() -> None:
    at = Cluster()
    add(at, "a0", "a1", "a2", machine="hgx-h100", free_gpus=4, leaf="a", zone="z1")
    add(at, "b0", machine="hgx-h100", free_gpus=6, leaf="b", zone="z2")
    add(at, "c0", machine="hgx-h100", free_gpus=6, leaf="c", zone="z3")
    assert set(planned(at, at.add_gang("g", 12, 1))) == {"a0", "a1", "a2"}


def test_two_models_that_are_fast_beat_one_that_is_slow() -> None:
    at = Cluster()
    add(at, "h100", machine="hgx-h100")
    add(at, "h200", machine="a3-ultra-h200")
    add(at, "r0", "r1", machine="rtx4090-8-sys")
    assert set(planned(at, at.add_gang("g", 2, 8))) == {"h100", "h200"}


def test_a_replacement_joins_its_mates_ring() -> None:
    at = Cluster()
    add(at, "n0", "n1", machine="h200-nvl-2x4")
    busy(at, "n0", 0)
    at.add_pod("g-0", 1, node="n0", gang="g", gang_size="2", rank="0")
    at.set_in_use(
        "n0", {"ml/busy-n0": {"main": at.uuids("n0", 0)}, "ml/g-0": {"main": at.uuids("n0", 5)}}
    )
    at.add_pod("g-1", 1, gang="g", gang_size="2", rank="1")
    at.settle()
    plan = at.plan("g-1")
    assert plan is not None
    assert plan.node == "n0"
    assert at.indices("g-1")[0] in {4, 6, 7}


def with_nics_near(machine: Machine, *gpus: int) -> Machine:
    close = tuple(
        LinkClass.PIX if number in gpus else LinkClass.SYS for number in range(len(machine.gpus))
    )
    return replace(machine, nics=tuple(Nic(f"mlx5_{n}", close) for n in range(2)))


def test_over_nodes_the_gpus_near_the_nics_are_taken() -> None:
    at = Cluster()
    for node in ("n0", "n1"):
        at.add_node(node, with_nics_near(recorded_machine("rtx4090-8-sys", node=node), 4, 5, 6, 7))
    for node in ("n0", "n1"):
        at.add_pod(f"no-room-{node}", node=node, cpu="92")  # for four more of one CPU each
    found = planned(at, at.add_gang("g", 8, 1))
    assert {node: {gpu for (gpu,) in sets} for node, sets in found.items()} == {
        "n0": {4, 5, 6, 7},
        "n1": {4, 5, 6, 7},
    }


def sizes(at: Cluster, *gpus: int) -> list[str]:
    return [
        at.add_pod(
            f"g-{rank}", size, gang="g", gang_size=f"{len(gpus)}", rank=f"{rank}"
        ).metadata.name
        for rank, size in enumerate(gpus)
    ]


def test_members_of_unequal_size_fill_nodes_to_the_last_gpu() -> None:
    at = Cluster()
    add(at, "n0", machine="hgx-h100", free_gpus=6)
    add(at, "n1", machine="hgx-h100", free_gpus=5)
    assert set(planned(at, sizes(at, 2, 4, 2, 3))) == {"n0", "n1"}


def test_ten_unequal_members_fill_four_nodes() -> None:
    at = Cluster()
    add(at, "n0", "n1", "n2", "n3", machine="hgx-h100")
    assert len(planned(at, sizes(at, 5, 5, 3, 3, 3, 3, 4, 2, 2, 2))) == 4


def two_models(node: str) -> Machine:
    """Eight GPUs without NVLink, A40 and A10 in turn, as far from each other as can be."""
    machine = recorded_machine("rtx4090-8-sys", node=node)
    names = ("NVIDIA A40", "NVIDIA A10")
    return replace(
        machine, gpus=tuple(replace(gpu, model=names[p % 2]) for p, gpu in enumerate(machine.gpus))
    )


@pytest.mark.parametrize(("size", "gpus"), [(1, 2), (1, 4), (2, 1), (4, 1), (2, 2)])
def test_of_a_machine_with_two_models_one_is_taken(size: int, gpus: int) -> None:
    at = Cluster()
    at.add_node("n0", two_models("n0"))
    busy(at, "n0", 1)
    taken = on_one(at, at.add_gang("g", size, gpus))
    assert len({gpu % 2 for gpu in taken}) == 1


@pytest.mark.parametrize(
    ("lesser", "linked"),
    [("l40s-4", "hgx-h100"), ("a100-pcie-2", "dgx1-v100"), ("l40s-4", "a100-pcie-8-bridged")],
)
def test_a_single_gpu_comes_from_the_machine_that_loses_least(lesser: str, linked: str) -> None:
    at = Cluster()
    add(at, "a-linked", machine=linked)
    add(at, "z-lesser", machine=lesser)
    at.add_pod("p", 1)
    assert at.filter("p").node_names == ("z-lesser",)


def test_a_single_gpu_comes_from_a_node_with_one_gpu() -> None:
    at = Cluster()
    add(at, "a-linked", machine="hgx-h100")
    whole = recorded_machine("l40s-4", node="z")
    at.add_node("z-lesser", Machine(whole.gpus[:1], ()))
    at.add_pod("p", 1)
    assert at.filter("p").node_names == ("z-lesser",)


def test_a_single_gpu_does_not_break_the_last_bridge() -> None:
    at = Cluster()
    add(at, "a-bridged", machine="a100-pcie-8-bridged")
    busy(at, "a-bridged", 1, 3, 4, 5, 6, 7)  # 0 and 2 are bridged
    add(at, "b-unbridged", machine="a100-pcie-2")
    at.add_pod("p", 1)
    assert at.filter("p").node_names == ("b-unbridged",)


def test_pods_that_do_not_talk_to_each_other_go_where_they_cost_least() -> None:
    for said, expected in (({}, {"linked"}), ({"communicator": "pod"}, {"lesser"})):
        at = Cluster()
        add(at, "linked", machine="hgx-h100")
        add(at, "lesser", machine="l40s-4")
        assert set(planned(at, at.add_gang("g", 4, 1, **said))) == expected


def test_a_single_gpu_leaves_the_pair_that_may_come_back() -> None:
    """0 and 2, 4 and 5 are bridged; 2 is in use by itself, 5 with four others."""
    at = Cluster()
    add(at, "n0", machine="a100-pcie-8-bridged")
    at.add_pod("alone", 1, node="n0")
    at.add_pod("many", 5, node="n0")
    at.set_in_use(
        "n0",
        {
            "ml/alone": {"main": at.uuids("n0", 2)},
            "ml/many": {"main": at.uuids("n0", 1, 3, 5, 6, 7)},
        },
    )
    at.add_pod("p", 1)
    at.schedule("p")
    assert at.indices("p") == (4,)


def test_a_gang_may_have_a_thousand_members_none_of_which_is_like_another() -> None:
    at = Cluster()
    add(at, *(f"n{number:03}" for number in range(128)), machine="hgx-h100")
    members = [
        at.add_pod(
            f"g-{rank}", 1, cpu=f"{500 + rank}m", gang="g", gang_size="1000", rank=f"{rank}"
        ).metadata.name
        for rank in range(1000)
    ]
    assert sum(map(len, planned(at, members).values())) == 1000
    assert at.core.take_defects() == []


def test_a_single_pod_on_a_machine_with_two_models_gets_one() -> None:
    at = Cluster()
    at.add_node("n0", two_models("n0"))
    busy(at, "n0", 1)
    at.add_pod("p", 4)
    at.schedule("p")
    assert len({gpu % 2 for gpu in at.indices("p")}) == 1


@pytest.mark.parametrize(("gpus", "free_of_b"), [((8, 8), 8), ((8, 7), 7)])
def test_of_machines_that_are_as_fast_those_of_one_model_are_taken(
    gpus: tuple[int, ...], free_of_b: int
) -> None:
    """Though the other one comes first by name, or would lose less."""
    at = Cluster()
    for node, model in (("n0", "A"), ("n1", "B"), ("n2", "A")):
        at.add_node(node, named(node, model))
    free(at, "n1", free_of_b)
    assert set(planned(at, sizes(at, *gpus))) == {"n0", "n2"}


def test_members_leave_the_island_whole_that_is_whole() -> None:
    at = Cluster()
    add(at, "n0", machine="h200-nvl-2x4")
    busy(at, "n0", 6, 7)
    assert on_one(at, at.add_gang("g", 2, 1)) == {4, 5}


def test_a_later_member_goes_where_the_gang_is_though_it_costs_more() -> None:
    at = Cluster()
    add(at, "n0", machine="hgx-h100", free_gpus=1)
    add(at, "n1", "n2", machine="hgx-h100")
    for rank, node in enumerate(("n1", "n2")):
        at.add_pod(f"g-{rank}", 2, node=node, gang="g", gang_size="3", rank=f"{rank}")
        at.set_in_use(node, {f"ml/g-{rank}": {"main": at.uuids(node, 0, 1)}})
    at.add_pod("g-2", 1, gang="g", gang_size="3", rank="2")
    assert set(planned(at, ["g-2"])) <= {"n1", "n2"}


def test_of_several_nodes_prioritize_likes_the_one_that_loses_least() -> None:
    at = Cluster()
    add(at, "a-linked", machine="hgx-h100", free_gpus=2)
    add(at, "z-lesser", machine="l40s-4")
    at.add_pod("p", 1)
    scores = at.prioritize("p").scores
    assert max(scores, key=lambda name: scores[name]) == "z-lesser"
