"""The choices for a gang's members on a node, against all the ways to place them there."""

import random
from collections.abc import Iterator
from itertools import combinations

import pytest

from linkwise.extender.place import communicator
from linkwise.extender.place.communicator import APART, ONE_NODE, Choice, Choices, Reach
from linkwise.extender.state.cache.machine_kind import ENOUGH, GpuRequest, MachineKind
from linkwise.pods.requirement import TopologyRequirement
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.machine.model import LinkClass
from linkwise.topology.machine.recorded import recorded_machine

REACHES = (ONE_NODE, Reach(share=0.9), Reach(fabric=True), APART)
MASKS = 200  # more than are computed together, even when half of them are known


def request(containers: tuple[int, ...], requirement: TopologyRequirement) -> GpuRequest:
    asked = tuple(ContainerDemand(f"c{i}", Role.MAIN, n) for i, n in enumerate(containers))
    return GpuRequest(PodDemand(asked), requirement)


def cuts(gpus: tuple[int, ...], size: int) -> Iterator[list[int]]:
    """All ways to cut the GPUs into sets of *size*; a set is a bitmask."""
    if not gpus:
        yield []
        return
    for others in combinations(gpus[1:], size - 1):
        rest = tuple(gpu for gpu in gpus[1:] if gpu not in others)
        for cut in cuts(rest, size):
            yield [mask_of((gpus[0], *others)), *cut]


def mask_of(gpus: tuple[int, ...]) -> int:
    return sum(1 << gpu for gpu in gpus)


def of_eight(draw: random.Random, kind: MachineKind) -> int:
    """A mask with eight free GPUs at most: there are few ways to cut them."""
    free = draw.sample(range(kind.table.count), min(8, kind.table.count))
    return mask_of(tuple(free)) & draw.randint(0, kind.all_gpus)


def all_ways(
    kind: MachineKind, wanted: GpuRequest, free: int, count: int
) -> Iterator[tuple[int, list[int]]]:
    """(the GPUs of all, those of each) for *count* members. There is one way if a pod's containers
    divide its GPUs."""
    if not wanted.simple:
        parts = kind.pack(wanted, free, count)
        if len(parts) == count:
            yield sum(parts), list(parts)
        return
    gpus = [gpu for gpu in range(kind.table.count) if free >> gpu & 1]
    for cover in combinations(gpus, count * wanted.size):
        for cut in cuts(cover, wanted.size):
            if all(kind.table.ring_classes[part] >= wanted.requirement.require for part in cut):
                yield mask_of(cover), cut


def own_ring(kind: MachineKind, wanted: GpuRequest, part: int) -> float:
    return ENOUGH if wanted.size == 1 else kind.quality(wanted, part)


def expected(
    kind: MachineKind, wanted: GpuRequest, free: int, beside: int, most: int, reach: Reach
) -> set[Choice]:
    """Of all ways, those that no other beats in both values."""
    worth = communicator.worths(kind, wanted.requirement.prefer, reach)
    found = set()
    for count in range(1, most + 1):
        pairs = {
            (float(worth[cover | beside]), min(own_ring(kind, wanted, part) for part in cut))
            for cover, cut in all_ways(kind, wanted, free, count)
        }
        found |= {
            (count, *pair)
            for pair in pairs
            if not any(o != pair and o[0] >= pair[0] and o[1] >= pair[1] for o in pairs)
        }
    return found


@pytest.mark.parametrize("machine", ["dgx1-v100", "dgx2-v100", "h200-nvl-2x4", "mixed-5"])
@pytest.mark.parametrize("containers", [(1,), (2,), (3,), (2, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_choices_for_many_masks_are_those_of_all_ways(
    machine: str, containers: tuple[int, ...], seed: int
) -> None:
    draw = random.Random(seed)
    kind = MachineKind(recorded_machine(machine, node="n"), 0)
    near = TopologyRequirement(require=LinkClass.PIX, prefer=LinkClass.PHB)
    for wanted in (request(containers, TopologyRequirement()), request(containers, near)):
        beside = draw.choice([0, draw.randint(0, kind.all_gpus)])
        masks = [of_eight(draw, kind) & ~beside for _ in range(MASKS)]
        reach = draw.choice(REACHES)
        most = draw.randint(1, kind.table.count // wanted.size)
        half = MASKS // 2
        choices = Choices(kind, wanted, beside, most, reach)
        choices.within(masks[:half])  # known from now on
        found = choices.within(masks)
        for mask, of_mask in zip(masks, found, strict=True):
            assert len(of_mask) == len(set(of_mask))
            assert set(of_mask) == expected(kind, wanted, mask, beside, most, reach), bin(mask)
