"""NVSwitch partitions: where the driver prepares no other sets, no other set is planned."""

from dataclasses import replace

import pytest

from linkwise.extender.place.communicator import own_rings
from linkwise.extender.place.nodes.reasons import (
    FEWER,
    NEVER_PARTITIONED,
    NO_PARTITION,
    why_never,
    why_not_now,
)
from linkwise.extender.state.cache.machine_kind import GpuRequest, MachineKind, will_do
from linkwise.extender.state.views import Explanation
from linkwise.kube.objects import Pod
from linkwise.pods.claims import ClaimAsk, write_claims
from linkwise.pods.requirement import TopologyRequirement
from linkwise.topology import names
from linkwise.topology.demand import ContainerDemand, PodDemand, Role
from linkwise.topology.machine.model import LinkClass
from tests.extender import claimed
from tests.extender.cluster import change
from tests.extender.late_claims import ClaimCluster, add, add_gang, claim_name, with_claim
from tests.machines import HGX_H100

QUARTERS = [(0, 1), (2, 3), (4, 5), (6, 7)]
HALVES = [(0, 2, 4, 6), (1, 3, 5, 7)]  # none that links would choose
ONES = [(index,) for index in range(8)]
TWO = ClaimAsk("linkwise-gpus", claim_name("pod"), {"main": 3, "side": 1})


def cluster(*partitions: tuple[int, ...]) -> ClaimCluster:
    at = ClaimCluster()
    claimed.add_node(at, "n1", "hgx-h100", partitions=partitions)
    return at


def placed(at: ClaimCluster, name: str, gpus: int) -> tuple[int, ...]:
    add(at, name, gpus)
    at.settle()
    own = claimed.uuids(at, "n1")
    return tuple(sorted(own.index(uuid) for uuid in at.run_scheduler(name)))


def missing(at: ClaimCluster, name: str) -> dict[str, str]:
    """By level: why nodes fail it."""
    found = at.core.explain("ml", name, at.now)
    assert isinstance(found, Explanation)
    assert found.search is not None
    levels = [level for level in found.search.levels if level.missing]
    return {level.level: f"linkwise: {level.missing[0].reason}" for level in levels}


def test_a_pod_gets_a_whole_partition() -> None:
    at = cluster(*QUARTERS, *HALVES)
    assert placed(at, "four", 4) in HALVES
    assert placed(at, "two", 2) == ()
    assert at.sound()


def test_partitions_of_one_size_are_given_one_after_the_other() -> None:
    at = cluster(*QUARTERS)
    got = [placed(at, f"pod-{number}", 2) for number in range(5)]
    assert sorted(got) == sorted([(), *QUARTERS])


def test_without_partitions_any_gpus_will_do() -> None:
    at = cluster()
    assert len(placed(at, "three", 3)) == 3


def test_a_gang_gets_one_partition_for_each_member() -> None:
    at = cluster(*QUARTERS)
    add_gang(at, "gang", 4, 2)
    at.settle()
    own = claimed.uuids(at, "n1")
    got = [at.run_scheduler(f"gang-{rank}") for rank in range(4)]
    assert sorted(tuple(sorted(map(own.index, each))) for each in got) == QUARTERS


def test_single_gpus_need_partitions_of_one() -> None:
    assert placed(cluster(*QUARTERS), "one", 1) == ()
    assert len(placed(cluster(*QUARTERS, *ONES), "one", 1)) == 1


def test_a_partition_that_lacks_a_gpu_is_none() -> None:
    at = cluster((0, 1, 2))
    claimed.publish(at, claimed.slice_of("n1", claimed.uuids(at, "n1")[:2], partitions=[(0, 1, 2)]))
    at.settle()
    assert placed(at, "three", 3) == ()
    assert placed(at, "two", 2) == ()


def test_partitions_may_come_later() -> None:
    at = cluster()
    claimed.publish(at, claimed.slice_of("n1", claimed.uuids(at, "n1"), partitions=HALVES))
    assert placed(at, "four", 4) in HALVES
    assert at.sound()


def test_what_two_containers_have_together_is_one_partition() -> None:
    at = cluster(*HALVES)

    def two(pod: Pod) -> Pod:
        pod = with_claim("pod", 3, "")(pod)
        side = change(pod.spec.containers[0], name="side")
        said = {**pod.metadata.annotations, names.CLAIMS: write_claims(TWO)}
        meta = change(pod.metadata, annotations=said)
        spec = change(pod.spec, containers=(*pod.spec.containers, side))
        return change(pod, metadata=meta, spec=spec)

    at.add_pod("pod", gates=[names.GATE], alter=two)
    at.settle()
    own = claimed.uuids(at, "n1")
    assert tuple(sorted(map(own.index, at.run_scheduler("pod")))) in HALVES


def test_explain_names_partitions() -> None:
    at = cluster(*QUARTERS, *HALVES)
    add(at, "three", 3)
    add(at, "two", 2)
    at.settle()
    at.run_scheduler("two")
    add(at, "also-two", 2)
    at.settle()
    at.run_scheduler("also-two")
    add(at, "four", 4)
    at.settle()
    assert missing(at, "three") == {"partition": NEVER_PARTITIONED}
    assert missing(at, "four") == {"free-partition": NO_PARTITION}


@pytest.mark.parametrize(
    ("partitions", "said"),
    [
        (ONES, "its NVSwitch partitions have 1 GPU"),
        ([*ONES, *QUARTERS, *HALVES], "its NVSwitch partitions have 1 or 2 or 4 GPUs"),
        ([(0, 8)], "none of its NVSwitch partitions has all its GPUs"),
    ],
)
def test_explain_says_how_many_gpus_partitions_have(
    partitions: list[tuple[int, ...]], said: str
) -> None:
    at = cluster(*partitions)
    placed(at, "one", 1)
    add(at, "three", 3)
    at.settle()
    found = at.core.explain("ml", "three", at.now)
    assert isinstance(found, Explanation)
    assert found.search is not None
    assert found.search.nearest is not None
    assert found.search.nearest.lacks == said
    assert not found.search.nearest.holders  # that their GPUs come free would change nothing


@pytest.mark.parametrize(("free", "why"), [(0b11, FEWER), (0b1111, NO_PARTITION)])
def test_the_reason_of_filter_names_partitions(free: int, why: str) -> None:
    kind = MachineKind(replace(HGX_H100, partitions=(0, 0b01010101, 0b10101010)), 0)
    assert why_never(kind, request(4)) == ""
    assert why_not_now(kind, request(4), free) == why
    assert why_never(kind, request(3)) == NEVER_PARTITIONED


def request(gpus: int) -> GpuRequest:
    return GpuRequest(PodDemand((ContainerDemand("main", Role.MAIN, gpus),)), TopologyRequirement())


def test_a_plan_of_another_set_is_not_carried_out() -> None:
    machine = replace(HGX_H100, partitions=(0, 0b0101, 0b1010))
    kind = MachineKind(machine, 0)
    uuids = [gpu.uuid for gpu in machine.gpus]
    assert will_do(kind, machine, request(2), {"main": (uuids[0], uuids[2])})
    assert not will_do(kind, machine, request(2), {"main": (uuids[0], uuids[1])})


@pytest.mark.parametrize(("gpus", "partition", "other"), [(2, 0b0101, 0b0011), (1, 0b0001, 0b0010)])
def test_no_member_of_a_gang_has_another_set(gpus: int, partition: int, other: int) -> None:
    kind = MachineKind(replace(HGX_H100, partitions=(0, partition)), 0)
    rings = own_rings(kind, gpus, LinkClass.SYS, LinkClass.NVLINK)
    assert rings[partition] > 0 > rings[other]


def test_plans_end_once_partitions_come_that_they_do_not_keep_to() -> None:
    at = cluster()
    add(at, "two", 2)
    at.settle()
    assert at.plan("two") is not None
    claimed.publish(at, claimed.slice_of("n1", claimed.uuids(at, "n1"), partitions=HALVES))
    at.settle()
    assert at.plan("two") is None


def test_one_that_waits_gets_a_partition_that_comes_later() -> None:
    at = cluster(*QUARTERS)
    add(at, "four", 4)
    at.settle()
    assert at.plan("four") is None
    both = [*QUARTERS, *HALVES]
    claimed.publish(at, claimed.slice_of("n1", claimed.uuids(at, "n1"), partitions=both))
    at.settle()
    assert at.plan("four") is not None
