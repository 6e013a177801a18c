"""Linkwise in front of a vendor's plugin, on real kubelets: adopted, broken, updated, removed.

The vendor's plugin is made of Kubernetes' own stub of one.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import GPU, wait_until_none
from tests.cluster.support.nodes.faults import (
    HERE,
    KUBELET,
    PLUGIN,
    THERE,
    AllocationPhase,
    ClusterFault,
    Work,
)
from tests.cluster.support.nodes.gpu_holders import (
    assert_agreed,
    assert_sound,
    given,
    podresources,
    running,
    running_pod,
)
from tests.cluster.support.nodes.in_front import MIG, SHARED, VENDOR, VENDOR_PLUGIN, InFront
from tests.cluster.support.nodes.recovery import (
    named,
    sharing_a_node,
    strike,
    undisturbed,
    update_under_load,
)

P = AllocationPhase
# Where the kubelet has no list of devices for a moment, or an Allocate fails, it refuses for good a
# pod that it has not admitted.
MAY_REFUSE = {P.CREATED, P.PLANNED, P.BOUND, P.ASKED}
CELLS = [
    *((PLUGIN, phase) for phase in AllocationPhase),
    *((VENDOR_PLUGIN, phase) for phase in (P.ASKED, P.RUNNING)),
    (KUBELET, P.RUNNING),
]


@pytest.fixture(scope="module")
def world(run_directory: Path) -> Iterator[InFront]:
    """Two nodes, at first with the vendor's plugin alone."""
    deployed = InFront(run_directory / "in-front")
    try:
        deployed.start()
        yield deployed
    finally:
        deployed.stop()
        shutil.rmtree(deployed.directory, ignore_errors=True)


@pytest.fixture
def alone(world: InFront) -> Iterator[InFront]:
    """The vendor's plugin without Linkwise; after the test no device may be held."""
    if world.adopted:
        world.leave()
    yield world
    world.clear()
    wait_until_none(world.left)


@pytest.fixture
def in_front(world: InFront) -> Iterator[InFront]:
    """Linkwise in front of the vendor's plugin; after the test nothing of it may be left."""
    if not world.adopted:
        world.adopt()
    yield world
    world.clear()
    wait_until_none(world.left)


def test_adoption_loses_no_pod_and_no_device(alone: InFront) -> None:
    for node in (HERE, THERE):
        alone.apply(workloads.pod(f"early-{node}", 2, node=node, labels={"app": "early"}))
    alone.apply(workloads.pod("early-shared", 1, resource=SHARED, labels={"app": "early"}))
    before, held = running(alone, "app=early", 3), alone.held()
    alone.adopt()
    assert undisturbed(before, running(alone, "app=early", 3))
    assert alone.held() == held
    alone.apply(workloads.job("late", 4, pods=2, gang=True))
    early = {gpu for pods in held[HERE][GPU].values() for gpus in pods.values() for gpu in gpus}
    for pod in running(alone, "job-name=late", 2):
        assert_agreed(alone, pod)
        shares = podresources(alone.cluster.nodes[HERE]).get(f"default/{pod['metadata']['name']}")
        assert early.isdisjoint(frozenset().union(*(shares or {}).values()))


def test_whole_gpus_are_as_planned_and_all_else_as_the_vendor_says(in_front: InFront) -> None:
    gang = workloads.job("train", 4, pods=2, gang=True)
    single = workloads.pod("single", {"c1": 1, "c2": 1}, init={"i1": 2}, sidecars={"side": 1})
    shared = [workloads.pod(f"shared-{number}", 2, resource=SHARED) for number in range(2)]
    cut = [workloads.pod(f"mig-{number}", 1, resource=MIG) for number in range(2)]
    in_front.apply(gang, single)
    for pod in (*shared, *cut):  # one after the other: which devices are free is then known
        in_front.apply(pod)
        running_pod(in_front, pod["metadata"]["name"])
    gpu_pods = [*running(in_front, "job-name=train", 2), running_pod(in_front, "single")]
    assert_sound(in_front)  # the kubelet, which asks about no sidecar, may have chosen for it
    for pod in gpu_pods:
        assert_agreed(in_front, pod)

    offers, held = in_front.offers(THERE), in_front.held()[THERE]
    first, second, third, fourth = offers[SHARED]
    assert held[SHARED] == {
        "default/shared-0": {"main": frozenset({third, fourth})},
        "default/shared-1": {"main": frozenset({first, second})},
    }
    one, two = offers[MIG]
    assert held[MIG] == {
        "default/mig-0": {"main": frozenset({two})},
        "default/mig-1": {"main": frozenset({one})},
    }
    assert given(in_front, "shared-0", "main") == {first.partition("::")[0]}
    assert given(in_front, "mig-0", "main") == {two}
    log = in_front.vendor_log(THERE).splitlines()
    for device in (third, two):
        assert [line for line in log if '"PreStartContainer"' in line and device in line]


@named(CELLS)
def test_each_part_is_killed_at_each_moment(
    in_front: InFront, fault: ClusterFault, phase: AllocationPhase
) -> None:
    strike(in_front, fault, phase, sharing_a_node(phase), may_refuse=phase in MAY_REFUSE)


@pytest.mark.parametrize("daemonset", ["linkwise-plugin", VENDOR])
def test_an_update_under_load_disturbs_no_running_pod(in_front: InFront, daemonset: str) -> None:
    steady = Work([workloads.job("steady", 2, pods=2, gang=True)], "job-name=steady", 2)
    load = Work([workloads.deployment("load", 2, replicas=1)], "app=load", 5)
    update_under_load(in_front, daemonset, steady, load)


def test_back_to_the_vendors_plugin_alone_loses_no_pod(in_front: InFront) -> None:
    in_front.apply(
        *(workloads.pod(f"w-{n}", 2, node=n, labels={"app": "w"}) for n in (HERE, THERE)),
        workloads.pod("w-shared", 1, resource=SHARED, labels={"app": "w"}),
    )
    before = running(in_front, "app=w", 3)
    assert_sound(in_front)
    held = in_front.held()
    in_front.leave()
    assert undisturbed(before, running(in_front, "app=w", 3))
    assert in_front.held() == held
    wait_until_none(in_front.unoffered)
    wait_until_none(in_front.traces)
    in_front.apply(workloads.pod("after", 6, node=HERE))  # all that is free there
    running_pod(in_front, "after")
    assert len(given(in_front, "after", "main")) == 6
