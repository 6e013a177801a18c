"""Kills each component at each moment of an allocation; the cluster recovers.

Afterwards no two pods have the same GPU, no unused object is left, and kubelet, plan, Node and the
extender agree.
"""

from collections.abc import Sequence

import pytest

from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import DeployedLinkwise, wait_until_none
from tests.cluster.support.nodes.faults import (
    CONTAINERD,
    EXTENDER,
    HERE,
    KUBELET,
    PLUGIN,
    POWER,
    REFUSED,
    SCHEDULER,
    AllocationPhase,
    ClusterFault,
    Work,
    held,
    restarts,
    takers,
    unsettled,
)
from tests.cluster.support.nodes.gpu_holders import assert_agreed, planned

P = AllocationPhase
SECONDS = 60.0
# kube-scheduler retries a pod after at most 10 s, not after its 5 minutes; the rest is for a busy
# machine.
BACK_OFF_SECONDS = 10.0 + 20.0
CELLS = [
    *((fault, phase) for fault in (KUBELET, PLUGIN, EXTENDER) for phase in AllocationPhase),
    *((SCHEDULER, phase) for phase in (P.CREATED, P.PLANNED)),
    *((CONTAINERD, phase) for phase in (P.ALLOCATED, P.RUNNING)),
    *((POWER, phase) for phase in (P.BOUND, P.RUNNING)),
]
# What happens to one of two members on different nodes.
GANG_CELLS = [
    (EXTENDER, P.PLANNED),
    (KUBELET, P.BOUND),
    (PLUGIN, P.BOUND),
    (EXTENDER, P.BOUND),
    (POWER, P.RUNNING),
]
# A kubelet without its plugin, or without its own memory, refuses for good a pod that it has not
# admitted; the pod's controller creates another. Everywhere else the pods stay the same.
MAY_REFUSE = {
    KUBELET.name: {P.CREATED, P.PLANNED, P.BOUND, P.ASKED, P.ALLOCATED},
    PLUGIN.name: {P.CREATED, P.PLANNED, P.BOUND, P.ASKED},
    POWER.name: set(AllocationPhase),
}


def named(cells: Sequence[tuple[ClusterFault, AllocationPhase]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("fault", "phase"),
        [pytest.param(*cell, id=f"{cell[0].name}-{cell[1].name.lower()}") for cell in cells],
    )


@named(CELLS)
def test_pods_that_share_a_node(
    deployed: DeployedLinkwise, fault: ClusterFault, phase: AllocationPhase
) -> None:
    # Two that share the node, where the test can hold the kubelet between them and what they wait
    # for.
    count = 1 if phase is P.ALLOCATED else 2
    pods = workloads.deployment(
        "work",
        8 // count,
        replicas=count,
        node=HERE,
        gated=phase is P.PLANNED,
        stubborn=phase is P.ENDING,
    )
    check(deployed, fault, phase, Work([pods], "app=work", count))


@named(GANG_CELLS)
def test_a_gang_of_two_whole_machines(
    deployed: DeployedLinkwise, fault: ClusterFault, phase: AllocationPhase
) -> None:
    gang = workloads.job("train", 8, pods=2, gang=True)
    check(deployed, fault, phase, Work([gang], "job-name=train", 2))


def check(
    deployed: DeployedLinkwise, fault: ClusterFault, phase: AllocationPhase, work: Work
) -> None:
    try:
        with held(deployed, phase, work):
            before = work.uids(deployed)
            fault.strike(deployed)
    finally:
        fault.mend(deployed)
    if fault in (EXTENDER, SCHEDULER):
        wait_for(lambda: not work.unbound(deployed), "the scheduler goes on", BACK_OFF_SECONDS)
    wait_until_none(lambda: unsettled(deployed, work), SECONDS)
    if phase in MAY_REFUSE.get(fault.name, ()):
        assert set(work.refused(deployed)) <= {REFUSED}
    else:
        assert work.refused(deployed) == []
        assert work.uids(deployed) == before
        assert not any(map(restarts, work.pods(deployed)))
    taken = takers()
    for pod in work.pods(deployed):
        assert_agreed(deployed, pod)
        has = {gpu for gpu, uids in taken.items() if pod["metadata"]["uid"] in uids}
        assert has == frozenset[str]().union(*planned(pod).values())
