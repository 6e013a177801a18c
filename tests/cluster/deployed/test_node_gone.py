"""A node without power for so long that Kubernetes gives it up; then it returns."""

from collections.abc import Mapping
from typing import Any

from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import DeployedLinkwise, wait_until_none
from tests.cluster.support.nodes.faults import Work, restarts, unsettled
from tests.cluster.support.nodes.gpu_holders import assert_agreed, planned, running

# The node's lease counts for 50 s. The API server hears nothing of the power cut.
GIVEN_UP_SECONDS = 120.0
BACK_SECONDS = 90.0


def test_a_node_that_was_given_up_takes_no_pod_until_it_is_back(deployed: DeployedLinkwise) -> None:
    (gone,) = deployed.nodes().keys() - {deployed.extender()["spec"]["nodeName"]}
    (other,) = deployed.nodes().keys() - {gone}
    there = Work([workloads.deployment("there", 2, replicas=1, node=gone)], "app=there", 1)
    here = Work([workloads.deployment("here", 3, replicas=1, node=other)], "app=here", 1)
    # One member fits on each node, whichever of its pods the node that comes back starts first.
    train = Work([workloads.job("train", 5, pods=2, gang=True)], "job-name=train", 2)
    deployed.apply(*there.manifests, *here.manifests)
    (was,) = running(deployed, there.selector)
    before = running(deployed, here.selector)
    node = deployed.cluster.nodes[gone]
    node.stop()
    try:
        wait_for(lambda: not is_ready(deployed, gone), f"{gone} is given up", GIVEN_UP_SECONDS)
        deployed.apply(*train.manifests)
        wait_for(lambda: len(train.pods(deployed)) == train.count, "the gang is there")
        first = train.pods(deployed)[0]["metadata"]["name"]
        wait_for(lambda: "room for 1 of 2 members" in deployed.explain(first), "it waits")
        assert not any(map(planned, train.pods(deployed)))
    finally:
        node.start()
    wait_until_none(
        lambda: [*unsettled(deployed, there, here, train), *not_told_of(deployed, there, was)],
        BACK_SECONDS,
    )
    assert [pod["metadata"]["uid"] for pod in before] == list(here.uids(deployed))
    assert not any(map(restarts, here.pods(deployed)))
    for pod in (*there.pods(deployed), *here.pods(deployed), *train.pods(deployed)):
        assert_agreed(deployed, pod)


def not_told_of(deployed: DeployedLinkwise, work: Work, was: Mapping[str, Any]) -> list[str]:
    """Return the pod as it was before its kubelet restarted, which reports it some seconds
    later."""
    uid = was["metadata"]["uid"]
    return [
        f"{pod['metadata']['name']} is as it was"
        for pod in work.pods(deployed)
        if pod["metadata"]["uid"] == uid and restarts(pod) == restarts(was)
    ]


def is_ready(deployed: DeployedLinkwise, name: str) -> bool:
    conditions = deployed.nodes()[name]["status"]["conditions"]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
