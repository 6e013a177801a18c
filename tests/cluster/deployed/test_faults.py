"""Kills each component at each moment of an allocation; the cluster recovers.

Afterwards no two pods have the same GPU, no unused object is left, and kubelet, plan, Node and the
extender agree.
"""

from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import DeployedLinkwise
from tests.cluster.support.nodes.faults import (
    CONTAINERD,
    EXTENDER,
    KUBELET,
    PLUGIN,
    POWER,
    SCHEDULER,
    AllocationPhase,
    ClusterFault,
    Work,
)
from tests.cluster.support.nodes.recovery import named, sharing_a_node, strike

P = AllocationPhase
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


@named(CELLS)
def test_pods_that_share_a_node(
    deployed: DeployedLinkwise, fault: ClusterFault, phase: AllocationPhase
) -> None:
    check(deployed, fault, phase, sharing_a_node(phase))


@named(GANG_CELLS)
def test_a_gang_of_two_whole_machines(
    deployed: DeployedLinkwise, fault: ClusterFault, phase: AllocationPhase
) -> None:
    gang = workloads.job("train", 8, pods=2, gang=True)
    check(deployed, fault, phase, Work([gang], "job-name=train", 2))


def check(
    deployed: DeployedLinkwise, fault: ClusterFault, phase: AllocationPhase, work: Work
) -> None:
    may_refuse = phase in MAY_REFUSE.get(fault.name, ())
    strike(deployed, fault, phase, work, may_refuse=may_refuse)
