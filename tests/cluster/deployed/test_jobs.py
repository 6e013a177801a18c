"""Jobs of every shape on real kubelets: each container has its planned GPUs.

The tests compare what the container, the kubelet and the plan say for every pod. The fixture checks
that nothing is left afterwards.
"""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from linkwise.topology import names
from linkwise.topology.annotations.labels import node_labels
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.machine.topology_manager import Policy
from tests.cluster.support.api.control_plane import KubectlError
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import DeployedLinkwise
from tests.cluster.support.nodes.gpu_holders import (
    advice,
    assert_agreed,
    assert_best,
    assert_sound,
    described,
    plan,
    planned,
    podresources,
    running,
    running_pod,
    usage,
    wait_described,
)

DOCUMENTED = (Path(__file__).parents[3] / "docs" / "annotations.md").read_text()
ROUNDS, ROUNDS_TO_WARM_UP = 50, 10


def test_a_node_says_what_the_documentation_says(deployed: DeployedLinkwise) -> None:
    for name, node in deployed.nodes().items():
        metadata, machine = node["metadata"], deployed.machine(name)
        said = read_topology(metadata["annotations"][names.TOPOLOGY])
        assert replace(said, topology_manager=None) == machine
        assert said.topology_manager is not None
        assert said.topology_manager.policy is Policy.NONE, "as the kubelet says by /configz"
        ours = node_labels(machine)
        assert {key: metadata["labels"].get(key) for key in ours} == ours
        assert set(metadata["annotations"][names.OWN_LABELS].split(",")) == set(ours)
        for key in ours:
            assert f"`{key.removeprefix(names.PREFIX)}`" in DOCUMENTED, key


def test_a_job_of_four_gpus_runs_on_the_best_four_and_ends(deployed: DeployedLinkwise) -> None:
    deployed.apply(workloads.job("four", 4))
    (pod,) = running(deployed, "job-name=four")
    assert_sound(deployed)
    assert_agreed(deployed, pod)
    assert_best(deployed, [pod])

    with suppress(KubectlError):  # ending the container may end this command before its answer
        deployed.kubectl("exec", pod["metadata"]["name"], "--", "kill", "-USR1", "1")
    deployed.kubectl("wait", "job/four", "--for=condition=Complete", "--timeout=90s")
    # A finished pod stays, but its GPUs are free.
    assert_sound(deployed)
    assert not any(podresources(node) for node in deployed.cluster.nodes.values())


def test_a_gang_of_two_whole_machines_starts_together(deployed: DeployedLinkwise) -> None:
    deployed.apply(workloads.job("train", 8, pods=2, gang=True))
    members = running(deployed, "job-name=train", 2)
    assert_sound(deployed)
    assert {pod["spec"]["nodeName"] for pod in members} == set(deployed.cluster.nodes)
    assert len({plan(pod)["id"] for pod in members}) == 1
    for pod in members:
        assert_agreed(deployed, pod)


def test_a_gang_without_room_says_so_and_starts_before_who_came_later_and_would_delay_it(
    deployed: DeployedLinkwise,
) -> None:
    # not a server, which would free no GPUs
    deployed.apply(workloads.job("before", 2, node="node-1"))
    running(deployed, "job-name=before", 1)
    deployed.apply(workloads.job("train", 8, pods=2, gang=True))
    wait_for(lambda: len(deployed.pods("job-name=train")) == 2, "both members are there")
    first, second = (pod["metadata"]["name"] for pod in deployed.pods("job-name=train"))
    told = "train: no room for the whole gang"
    # By an Event: a condition may keep for good what was true before both pods existed.
    wait_for(lambda: any(told in described(deployed, name) for name in (first, second)), told)
    assert "room for 1 of 2 members" in deployed.explain(first)

    # The other machine is idle, and reserved for the gang. Ages are whole seconds; equal ages sort
    # by name.
    deployed.apply(workloads.pod("visitor", 8, node="node-2"))
    wait_described(deployed, "visitor", "linkwise: reserved for gang")
    assert_sound(deployed)
    for pod in deployed.pods("job-name=train"):
        assert not planned(pod)
        assert not pod["status"].get("nominatedNodeName")

    deployed.kubectl("delete", "job", "before", "--wait=false")
    for pod in running(deployed, "job-name=train", 2):
        assert_agreed(deployed, pod)
    assert_sound(deployed)


def test_five_equal_pods_at_once_on_one_node(deployed: DeployedLinkwise) -> None:
    before = advice(deployed, "node-1")
    pods = [f"equal-{number}" for number in range(5)]
    deployed.apply(*(workloads.pod(name, 1, node="node-1") for name in pods))
    found = [running_pod(deployed, name) for name in pods]
    assert_sound(deployed)
    found = [deployed.pod(name) for name in pods]
    for pod in found:
        assert_agreed(deployed, pod)
    assert_best(deployed, found)
    # Not by chance: the plugin answered with the plan, although the kubelet's questions name no
    # pod.
    now = advice(deployed, "node-1")
    told = {source: count - before.get(source, 0) for source, count in now.items()}
    assert {source: count for source, count in told.items() if count} == {"plan": 5}


def test_each_of_two_containers_has_its_own_gpus(deployed: DeployedLinkwise) -> None:
    deployed.apply(workloads.pod("pair", {"train": 2, "evaluate": 2}))
    pod = running_pod(deployed, "pair")
    assert_sound(deployed)
    assert_agreed(deployed, pod)
    assert_best(deployed, [pod])
    assert not planned(pod)["train"] & planned(pod)["evaluate"]


def test_init_containers_hand_their_gpus_on(deployed: DeployedLinkwise) -> None:
    deployed.apply(
        workloads.pod("phases", {"c1": 2, "c2": 1}, init={"i1": 2}, sidecars={"side": 1})
    )
    pod = running_pod(deployed, "phases")
    assert_sound(deployed)
    pod = deployed.pod("phases")
    shares = planned(pod)
    assert {name: len(gpus) for name, gpus in shares.items()} == {
        "i1": 2,
        "side": 1,
        "c1": 2,
        "c2": 1,
    }
    assert shares["i1"] < shares["side"] | shares["c1"]
    assert len(frozenset[str]().union(*shares.values())) == 4
    assert_agreed(deployed, pod)
    assert_best(deployed, [pod])
    # The ended container holds nothing any more; the sidecar does.
    held = podresources(deployed.cluster.nodes[pod["spec"]["nodeName"]])["default/phases"]
    assert held.keys() == {"side", "c1", "c2"}


def test_a_pod_keeps_both_gpus_of_an_init_container_of_which_its_container_gets_one(
    deployed: DeployedLinkwise,
) -> None:
    deployed.apply(workloads.pod("larger", {"main": 1}, init={"init": 2}, node="node-1"))
    running_pod(deployed, "larger")
    assert_sound(deployed)
    pod = deployed.pod("larger")
    shares = planned(pod)
    assert {name: len(gpus) for name, gpus in shares.items()} == {"init": 2, "main": 1}
    assert shares["main"] < shares["init"]
    assert_agreed(deployed, pod)
    held = podresources(deployed.cluster.nodes["node-1"])["default/larger"]
    assert held == {"main": shares["main"]}
    told = deployed.explain("larger")
    assert all(f"({gpu})" in told for gpu in shares["init"])

    # The kubelet keeps the other GPU, though it does not list it: the rest of the eight are six.
    deployed.apply(workloads.pod("rest", 6, node="node-1"))
    rest = running_pod(deployed, "rest")
    assert_agreed(deployed, rest)
    assert planned(rest)["main"].isdisjoint(shares["init"])
    assert_sound(deployed)


def test_a_deployment_scaled_up_and_down_leaks_nothing(deployed: DeployedLinkwise) -> None:
    deployed.apply(workloads.deployment("serve", 4, replicas=1))
    for _ in range(ROUNDS_TO_WARM_UP):
        up_and_down(deployed)
    assert_sound(deployed)
    before = usage(deployed)
    for _ in range(ROUNDS - ROUNDS_TO_WARM_UP):
        up_and_down(deployed)
    assert_sound(deployed)
    pods = 3 * (ROUNDS - ROUNDS_TO_WARM_UP)
    after = usage(deployed)
    assert after.keys() == before.keys(), "one of our pods is another than before"
    for name, was in before.items():
        # If a program kept something of every pod, it would be `pods` by now, or half of that on
        # each node.
        now, little = after[name], pods // 8
        assert now.descriptors <= was.descriptors + little, name
        assert now.threads <= was.threads + little, name
        assert now.files <= was.files + little, name
        # A histogram adds 19 at its first use.
        assert now.series <= was.series + pods // 3, name
        assert now.mib <= was.mib + 4, name


def up_and_down(deployed: DeployedLinkwise) -> None:
    """Fill both machines, then end half of the pods on one; later pods wait for the GPUs of earlier
    ones."""
    for replicas in (4, 1):
        path = "/apis/apps/v1/namespaces/default/deployments/serve"
        deployed.client.patch(path, {"spec": {"replicas": replicas}})
        running(deployed, "app=serve", replicas)
