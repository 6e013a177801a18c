"""The leader's pod goes, as when its node is drained. The Service points to the other one at
once."""

from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import EXTENDER, EXTENDER_PODS, SYSTEM, DeployedLinkwise
from tests.cluster.support.nodes.faults import restarts
from tests.cluster.support.nodes.gpu_holders import assert_agreed, assert_sound, running
from tests.cluster.support.nodes.leader import led_to

PROXY = f"/api/v1/namespaces/{SYSTEM}/services/{EXTENDER}:http/proxy"
# The old leader finishes its calls and writes; kube-scheduler retries after at most 10 s. The rest
# is for a busy machine.
SECONDS = 30.0


def test_the_leaders_pod_is_deleted(deployed: DeployedLinkwise) -> None:
    assert len(deployed.pods(EXTENDER_PODS, namespace=SYSTEM)) == 2
    deployed.apply(workloads.job("before", 4, pods=2, gang=True))
    before = running(deployed, "job-name=before", 2)
    leader = deployed.extender()
    assert led_to(deployed) == leader["status"]["podIP"]
    assert "node-1" in deployed.kubectl("get", "--raw", f"{PROXY}/nodes")

    name = leader["metadata"]["name"]
    deployed.kubectl("delete", "pod", name, f"-n={SYSTEM}", "--wait=false")
    deployed.apply(workloads.job("after", 4, pods=2, gang=True))

    gone = ("", leader["status"]["podIP"])
    wait_for(lambda: led_to(deployed) not in gone, "another leads", SECONDS)
    after = running(deployed, "job-name=after", 2)
    successor = deployed.extender()
    assert successor["metadata"]["name"] != name
    assert led_to(deployed) == successor["status"]["podIP"]
    # The API server proxies this as it does for `kubectl linkwise`.
    assert "node-1" in deployed.kubectl("get", "--raw", f"{PROXY}/nodes")
    deployed.kubectl("rollout", "status", f"-n={SYSTEM}", f"deployment/{EXTENDER}", "--timeout=60s")
    assert_sound(deployed)
    for pod in (*before, *after):
        now = deployed.pod(pod["metadata"]["name"])
        assert now["metadata"]["uid"] == pod["metadata"]["uid"]
        assert not restarts(now)
        assert_agreed(deployed, now)
