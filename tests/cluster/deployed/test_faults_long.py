"""An API server that is away for a minute, and a plugin upgrade while pods come and go."""

import time
from typing import Any

from linkwise.topology import names
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import DeployedLinkwise, wait_until_none
from tests.cluster.support.nodes.faults import (
    HERE,
    THERE,
    Work,
    extender_of,
    kill,
    stopped,
    taken_twice,
    unsettled,
)
from tests.cluster.support.nodes.gpu_holders import (
    assert_agreed,
    podresources,
    running,
    running_pod,
)
from tests.cluster.support.nodes.recovery import undisturbed, update_under_load

OUTAGE_SECONDS = 60.0
# By then Kubernetes' own programs have retried: each after a minute, at its own moment.
HEARD_OF_SECONDS = 120.0


def test_an_api_server_that_is_away_for_a_minute(deployed: DeployedLinkwise) -> None:
    runs, bound = bare("runs", 2, 4, node=HERE), bare("bound", 1, 4, node=THERE)
    train = bare("train", 2, 8, annotations={names.GANG: "train", names.GANG_SIZE: "2"})
    deployed.apply(*runs.manifests, workloads.pod("ends", 4, node=THERE))
    before = running(deployed, runs.selector, runs.count)
    running_pod(deployed, "ends")
    server, extender = deployed.control.parts["kube-apiserver"], extender_of(deployed)
    # When the API server goes, one pod is bound and one is ending, and their kubelet knows neither.
    with stopped(deployed.cluster.nodes[THERE].kubelet.pid):
        deployed.apply(*bound.manifests, *train.manifests)
        wait_for(lambda: nodes_of(deployed, bound) == [THERE], "a pod is bound")
        wait_for(lambda: len(train.pods(deployed)) == train.count, "a gang waits")
        deployed.kubectl("delete", "pod", "ends", "--wait=false")
        server.kill()
    try:
        kill(extender)  # after its restart it has to wait for the API server
        held = podresources(deployed.cluster.nodes[HERE])
        back = time.monotonic() + OUTAGE_SECONDS
        wait_for(lambda: stands_still(deployed, held, back), "it is over", OUTAGE_SECONDS + 5)
    finally:
        server.start()
    deployed.control.wait_ready()
    wait_until_none(lambda: unsettled(deployed, runs, bound), HEARD_OF_SECONDS)
    assert undisturbed(before, running(deployed, runs.selector, runs.count))
    assert nodes_of(deployed, train) == ["", ""]

    deployed.kubectl("delete", "pods", "--selector=app in (runs,bound)", "--wait=false")
    wait_until_none(lambda: unsettled(deployed, train), HEARD_OF_SECONDS)
    for pod in train.pods(deployed):
        assert_agreed(deployed, pod)


def test_a_plugin_that_is_upgraded_under_load(deployed: DeployedLinkwise) -> None:
    steady = Work([workloads.job("steady", 2, pods=2, gang=True)], "job-name=steady", 2)
    load = Work([workloads.deployment("load", 2, replicas=1)], "app=load", 6)
    update_under_load(deployed, "linkwise-plugin", steady, load)


def bare(name: str, count: int, gpus: int, **more: Any) -> Work:
    """Return pods without a controller, which would notice too late that the server is back."""
    made = [
        workloads.pod(f"{name}-{number}", gpus, labels={"app": name}, **more)
        for number in range(count)
    ]
    return Work(made, f"app={name}", count)


def stands_still(deployed: DeployedLinkwise, held: object, until: float) -> bool:
    """Return whether *until* has come; before that, check that running pods keep their GPUs."""
    assert podresources(deployed.cluster.nodes[HERE]) == held
    assert not taken_twice()
    return time.monotonic() > until


def nodes_of(deployed: DeployedLinkwise, work: Work) -> list[str]:
    return [pod["spec"].get("nodeName", "") for pod in work.pods(deployed)]
