"""What a placement takes from the pods to come, beside its definition in loops; and what that
spares in a cluster."""

from collections.abc import Collection, Sequence
from random import Random

import numpy as np
import pytest

from linkwise.extender.place.room import Ask, LatestRoom, Left, PodKind, PodMix, Room
from linkwise.extender.state.cache.machine_kind import MachineKind
from linkwise.extender.state.cache.node_table import NOT_USABLE
from linkwise.extender.state.records import ResourceList
from linkwise.pods.requirement import HardwareRequirement, TopologyRequirement
from linkwise.topology.machine.recorded import recorded_machine
from tests.extender.cluster import Cluster
from tests.extender.place.room.pods import pod

NAMES = ("dgx1-v100", "a100-pcie-4-bridged", "l40s-4")
KINDS = [MachineKind(recorded_machine(name), number) for number, name in enumerate(NAMES)]
V100 = TopologyRequirement(hardware=HardwareRequirement(models=(("v100",),)))
PART = "example.com/part"
MIX = {
    PodKind(Ask(1), 3000, 10): 0.4,
    PodKind(Ask(1, V100), 1000, 0): 0.2,
    PodKind(Ask(3), 0, 40): 0.1,
    PodKind(Ask(1)): 0.1,
    PodKind(Ask(2, resource=PART), 2000, 0): 0.2,
}


def some_nodes(random: Random, count: int) -> Left:
    kinds = np.array([random.choice((0, 1, 2, NOT_USABLE)) for _ in range(count)])
    free = [random.getrandbits(KINDS[k].table.count) if k >= 0 else 0 for k in kinds.tolist()]
    cpu = [random.randrange(-2000, 20_000, 500) for _ in range(count)]
    memory = [random.randrange(0, 200, 10) for _ in range(count)]
    shares = {PART: np.array([random.randrange(6) for _ in range(count)])}
    return Left(kinds, np.array(free), np.array(cpu), np.array(memory), shares)


def pods_that_fit(left: Left, row: int, kind: PodKind) -> int:
    """One after the other."""
    number = int(left.kinds[row])
    allowed = KINDS[number].allowed(kind.ask.requirement) if number != NOT_USABLE else 0
    gpus = (int(left.free[row]) & allowed).bit_count()
    if kind.ask.resource:
        gpus = int(left.shares[PART][row]) if allowed else 0
    cpu, memory, count = int(left.milli_cpu[row]), int(left.memory[row]), 0
    while (
        gpus >= kind.ask.size
        and (cpu >= kind.milli_cpu or not kind.milli_cpu)
        and (memory >= kind.memory or not kind.memory)
    ):
        gpus, cpu, memory = gpus - kind.ask.size, cpu - kind.milli_cpu, memory - kind.memory
        count += 1
    return count


@pytest.mark.parametrize("seed", range(8))
def test_room_is_how_many_pods_of_the_kind_fit_one_after_the_other(seed: int) -> None:
    left = some_nodes(Random(seed), 20)
    found = Room(MIX, KINDS, left).of(left)
    for row in range(20):
        assert found[row].tolist() == [pods_that_fit(left, row, kind) for kind in MIX]


@pytest.mark.parametrize("seed", range(8))
def test_a_placement_costs_its_part_of_each_kinds_room(seed: int) -> None:
    left = some_nodes(Random(seed), 20)
    needs = ResourceList(2500, 20, 1)
    gpus = left.free & -left.free  # the lowest free GPU
    after = left.without(needs, gpus, {PART: 1})
    found = Room(MIX, KINDS, left).lost(left, after)
    free = sum(mask.bit_count() for mask in left.free.tolist())
    for row in range(20):
        cost = 0.0
        for kind, share in MIX.items():
            total = sum(pods_that_fit(left, each, kind) for each in range(20))
            lost = pods_that_fit(left, row, kind) - pods_that_fit(after, row, kind)
            cost += free * share * lost / max(total, 1)
        assert found[row] == pytest.approx(cost, abs=1e-6)


def idle(*kinds: int) -> Left:
    of = np.array(kinds, dtype=np.int64)
    full = np.array([KINDS[kind].all_gpus for kind in kinds], dtype=np.int64)
    plenty = np.full(len(kinds), 10**9)
    return Left(of, full, plenty, plenty, {})


def test_pods_of_several_gpus_have_room_by_bandwidth() -> None:
    """A pair of an L40S box has 20 GB/s of PCIe where the best pair has NVLinks."""
    left = idle(1, 2)
    room = Room({PodKind(Ask(2)): 1.0}, KINDS, left)
    bridged, pcie = (float(KINDS[number].table.side_by_side[2][-1]) for number in (1, 2))
    best = max(float(kind.table.best[2][-1]) for kind in KINDS)
    assert room.of(left)[:, 0].tolist() == pytest.approx([bridged / best, pcie / best])
    assert bridged > 2 * pcie
    lost = room.lost(left, left.without(ResourceList(), 1))
    assert lost[0] > 2 * lost[1]


def test_a_model_that_pods_insist_on_is_dear() -> None:
    left = idle(0, 2, 2, 2)
    mix = {PodKind(Ask(1, V100)): 0.5, PodKind(Ask(1)): 0.5}
    lost = Room(mix, KINDS, left).lost(left, left.without(ResourceList(), 1))
    assert lost[0] > 3 * lost[1]
    assert lost[1:].tolist() == [lost[1]] * 3


def test_without_any_node_there_is_no_room_to_lose() -> None:
    nothing = idle()
    room = Room(MIX, [], nothing)
    assert room.free == 0
    assert room.lost(nothing, nothing.without(ResourceList(1, 1, 1), 1)).tolist() == []


def test_prices_are_learnt_again_when_the_mix_changed_or_a_tenth_came_or_went() -> None:
    mix, left = PodMix(), idle(0, 0, 0, 0, 0)  # 40 GPUs
    latest = LatestRoom(mix)
    asked: list[Collection[str]] = []

    def all_nodes(resources: Collection[str]) -> Left:
        asked.append(resources)
        return left

    first = latest.at(100, KINDS, all_nodes)
    assert latest.at(107, KINDS, all_nodes) is first
    second = latest.at(108, KINDS, all_nodes)
    assert second is not first
    mix.came(pod(1, shares={PART: 1}))
    third = latest.at(108, KINDS, all_nodes)
    assert third is not second
    assert latest.at(108, KINDS, all_nodes) is third
    assert asked == [set(), set(), {PART}]


def test_before_any_pod_came_no_room_is_lost() -> None:
    left = idle(0, 2)
    room = Room({}, KINDS, left)
    assert room.lost(left, left.without(ResourceList(1, 1, 1), 1)).tolist() == [0.0, 0.0]


# In a cluster.


def placed(at: Cluster, name: str, gpus: int = 1, *, cpu: str = "1") -> str:
    at.add_pod(name, gpus, cpu=cpu)
    return at.schedule(name)


def cluster(*machines: str, cpus: Sequence[str]) -> Cluster:
    at = Cluster()
    for number, (machine, cpu) in enumerate(zip(machines, cpus, strict=True)):
        at.add_node(f"n{number}", machine, cpu=cpu)
    return at


def test_cpu_beside_idle_gpus_is_spared_for_pods_that_need_it() -> None:
    at = cluster("l40s-4", "l40s-4", cpus=("48", "8"))
    for number in range(3):
        at.delete(at.add_pod(f"past-{number}", 1, cpu="12").metadata.name)
    assert placed(at, "small", cpu="1") == "n1"
    fresh = cluster("l40s-4", "l40s-4", cpus=("48", "8"))
    assert placed(fresh, "small", cpu="1") == "n0"  # by name: no pod that needs CPU came


def test_pods_without_gpus_that_take_cpu_change_where_the_next_pod_goes() -> None:
    at = cluster("l40s-4", "l40s-4", cpus=("48", "48"))
    for number in range(3):
        at.delete(at.add_pod(f"past-{number}", 1, cpu="12").metadata.name)
    at.add_pod("asks-first", 1, cpu="1")
    assert at.filter("asks-first").node_names == ("n0",)
    at.delete("asks-first")
    at.add_pod("web", cpu="40", node="n1")
    assert placed(at, "small", cpu="1") == "n1"


def test_the_model_that_others_insist_on_is_spared() -> None:
    at = cluster("dgx1-v100", "l40s-4", cpus=("96", "96"))
    for number in range(20):
        at.delete(at.add_pod(f"past-{number}", 1, gpu_model="L40S").metadata.name)
    assert placed(at, "any") == "n0"
    fresh = cluster("dgx1-v100", "l40s-4", cpus=("96", "96"))
    assert placed(fresh, "any") == "n1"  # it spares the NVLinks


def test_bandwidth_comes_first() -> None:
    at = cluster("dgx1-v100", "l40s-4", cpus=("48", "8"))
    for number in range(20):
        at.delete(at.add_pod(f"past-{number}", 1, cpu="6", gpu_model="V100").metadata.name)
    assert placed(at, "pair", 2, cpu="1") == "n0"
