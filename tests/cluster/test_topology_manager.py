"""Real kubelets with topologyManagerPolicy single-numa-node, and Linkwise as a user installs it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.machine.topology_manager import Policy, Source, TopologyManager
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import DeployedLinkwise
from tests.cluster.support.nodes.gpu_holders import running

MOST_REFUSED = 3
ALIGNING = {"topologyManagerPolicy": Policy.SINGLE_NUMA_NODE.value}


@pytest.fixture
def deployed(run_directory: Path) -> Iterator[DeployedLinkwise]:
    kubelets = {"node-1": ALIGNING, "node-2": ALIGNING}
    deployed = DeployedLinkwise(run_directory / "aligned", kubelets)
    try:
        deployed.start()
        yield deployed
    finally:
        deployed.stop()


def managers(deployed: DeployedLinkwise) -> list[TopologyManager | None]:
    """What the plugins publish."""
    return [
        read_topology(node["metadata"]["annotations"][names.TOPOLOGY]).topology_manager
        for node in deployed.nodes().values()
    ]


def test_a_node_that_cannot_align_the_gpus_of_a_deployment_refuses_few_of_its_pods(
    deployed: DeployedLinkwise,
) -> None:
    """Found: 414 pods failed in 55 s, all on that node, beside an idle one.

    The GPUs are played, the NUMA nodes that the kubelet knows are this machine's. So the first node
    may refuse a pod although its played GPUs are on one NUMA node: what only refusals tell.
    """
    by_configz = TopologyManager(Policy.SINGLE_NUMA_NODE, source=Source.CONFIGZ)
    wait_for(lambda: managers(deployed) == [by_configz] * 2, "the kubelets have said their policy")
    deployed.apply(workloads.deployment("small", 2, replicas=1, node="node-1"))
    running(deployed, "app=small")
    deployed.apply(workloads.deployment("big", 4, replicas=1))

    def phases() -> Counter[str]:
        return Counter(pod["status"]["phase"] for pod in deployed.pods("app=big"))

    wait_for(lambda: phases()["Running"] == 1, "big runs", 60.0)
    assert phases()["Failed"] <= MOST_REFUSED
