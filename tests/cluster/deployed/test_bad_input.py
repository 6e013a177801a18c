"""Mistakes on a real cluster: their author sees what is wrong in the usual place, other users see
nothing.

`tests/bad_input` has every reader's answer to every kind of nonsense. These tests show the result
in `kubectl describe pod`, and that other jobs go on.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest

from linkwise.topology import names
from tests.cluster.support.api.control_plane import KubectlError
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes import workloads
from tests.cluster.support.nodes.deployment import PLUGIN_PODS, SYSTEM, DeployedLinkwise
from tests.cluster.support.nodes.gpu_holders import (
    assert_agreed,
    assert_sound,
    plan,
    planned,
    running,
    running_pod,
    wait_described,
)

EXTENDER = "system:serviceaccount:kube-system:linkwise-extender"


@pytest.mark.parametrize(
    ("key", "mangled", "said"),
    [
        pytest.param(names.TOPOLOGY, '{"v":1,"gpus":[[', "expected JSON", id="mangled topology"),
        pytest.param(names.TOPOLOGY, '{"v":2}', "version 2", id="topology of a newer version"),
        pytest.param(names.IN_USE, '{"v":2}', "version 2", id="in-use of a newer version"),
    ],
)
def test_a_node_that_cannot_be_read_costs_its_own_gpus_only(
    deployed: DeployedLinkwise, key: str, mangled: str, said: str
) -> None:
    deployed.apply(workloads.pod("before", 2, node="node-1"))
    running_pod(deployed, "before")
    with annotated(deployed, "node-1", key, mangled):
        wait_for(lambda: said in reason(deployed, "node-1"), "the extender has heard of it")
        assert key in reason(deployed, "node-1")
        deployed.apply(
            workloads.pod("here", 2, node="node-1"), workloads.pod("there", 2, node="node-2")
        )
        running_pod(deployed, "there")
        wait_described(deployed, "here", "linkwise: topology or in-use annotation cannot be read")
    # Once corrected, the node is as before, and its pods have run on.
    running_pod(deployed, "here")
    assert_sound(deployed)
    for name in ("before", "here", "there"):
        assert_agreed(deployed, deployed.pod(name))


def test_a_new_plugin_puts_its_node_right(deployed: DeployedLinkwise) -> None:
    for key in (names.TOPOLOGY, names.IN_USE):
        deployed.kubectl("annotate", "--overwrite", "node", "node-1", f"{key}=nonsense")
    wait_for(deployed.missing, "the extender takes the node for one that cannot be read")
    deployed.kubectl(
        *("delete", "pod", f"-n={SYSTEM}", f"--selector={PLUGIN_PODS}"),
        "--field-selector=spec.nodeName=node-1",
    )
    deployed.wait_ready()
    assert_sound(deployed)


def test_pods_that_are_annotated_wrongly_are_told_what_is_expected(
    deployed: DeployedLinkwise,
) -> None:
    gang = {names.GANG: "train"}
    wrong = {
        "size": ({**gang, names.GANG_SIZE: "many"}, "gang-size: 'many': expected a whole number"),
        "lone": ({names.GANG_SIZE: "2"}, "gang-size: '2': expected linkwise.dev/gang beside it"),
        "link": ({names.REQUIRE_LINK: "wire"}, "require-link: 'wire': expected one of nvlink,"),
        "memory": ({names.GPU_MEMORY: "lots"}, "gpu-memory: 'lots': expected a quantity like 40Gi"),
        "key": (
            {names.PREFIX + "gnag": "x"},
            "gnag: no such annotation: expected linkwise.dev/gang",
        ),
    }
    deployed.apply(
        *(workloads.pod(name, 1, annotations=said) for name, (said, _) in wrong.items()),
        workloads.pod("right", 1),
    )
    assert_agreed(deployed, running_pod(deployed, "right"))
    for name, (_, expected) in wrong.items():
        wait_described(deployed, name, f"linkwise: linkwise.dev/{expected}")
        assert f"The pod cannot be placed: linkwise.dev/{expected}" in deployed.explain(name)
    assert_sound(deployed)


@pytest.mark.parametrize("key", names.BY_EXTENDER)
def test_what_the_extender_decides_is_nobody_elses_to_write(
    deployed: DeployedLinkwise, key: str
) -> None:
    deployed.apply(workloads.pod("mine", 1))
    with pytest.raises(KubectlError, match=f"{key}: only Linkwise's extender decides this"):
        deployed.kubectl("annotate", "--overwrite", "pod", "mine", f"{key}={{}}")


def test_a_pod_made_from_a_copied_manifest_gets_a_plan_of_its_own(
    deployed: DeployedLinkwise,
) -> None:
    deployed.apply(workloads.pod("first", 4))
    said = running_pod(deployed, "first")["metadata"]["annotations"]
    copied = {key: said[key] for key in (names.GPUS, names.PLAN)}
    deployed.apply(workloads.pod("copy", 4, annotations=copied | {names.STARTED: "true"}))
    running_pod(deployed, "copy")
    for name in ("first", "copy"):
        pod = deployed.pod(name)
        assert plan(pod)["uid"] == pod["metadata"]["uid"]
        assert_agreed(deployed, pod)
    assert_sound(deployed)


def test_a_plan_of_a_newer_version_is_made_again(deployed: DeployedLinkwise) -> None:
    """As after a downgrade: a waiting pod may carry what this extender has never written."""
    gang = {names.GANG: "train", names.GANG_SIZE: "2"}
    deployed.apply(workloads.pod("first", 4, annotations=gang))
    deployed.kubectl(
        *(f"--as={EXTENDER}", "--as-group=system:masters", "annotate", "pod", "first"),
        f'{names.PLAN}={{"v":2,"where":"node-1"}}',
        f'{names.GPUS}={{"main":["GPU-unknown"]}}',
    )
    wait_described(deployed, "first", "linkwise: gang train waits for its members")
    deployed.apply(workloads.pod("second", 4, annotations=gang))
    for name in ("first", "second"):
        running_pod(deployed, name)
    assert_sound(deployed)
    for name in ("first", "second"):
        assert plan(deployed.pod(name))["v"] == 1
        assert_agreed(deployed, deployed.pod(name))


def test_a_node_deleted_under_a_gang_costs_that_member_only(
    deployed: DeployedLinkwise, request: pytest.FixtureRequest
) -> None:
    (gone,) = deployed.nodes().keys() - {deployed.extender()["spec"]["nodeName"]}
    deployed.apply(workloads.job("train", 8, pods=2, gang=True))
    members = {pod["spec"]["nodeName"]: pod for pod in running(deployed, "job-name=train", 2)}
    lost = members.pop(gone)["metadata"]["name"]
    (kept,) = members.values()

    request.addfinalizer(lambda: bring_back(deployed, gone))
    deployed.kubectl("delete", "node", gone)
    # Kubernetes would do this itself, a minute later.
    on_it = ("--all-namespaces", f"--field-selector=spec.nodeName={gone}")
    deployed.kubectl("delete", "pods", *on_it, "--force", "--grace-period=0")
    names_of_others = (lost, kept["metadata"]["name"])
    wait_for(lambda: others(deployed, names_of_others), "the Job has replaced the lost member")
    (waiting,) = others(deployed, names_of_others)
    wait_described(deployed, waiting, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu")
    wait_for(lambda: "room for 0 of 1 members" in deployed.explain(waiting), "explained as well")
    assert not planned(deployed.pod(waiting))

    # A member that has started stays although another has lost its node.
    kept_now = running_pod(deployed, kept["metadata"]["name"])
    assert kept_now["metadata"]["uid"] == kept["metadata"]["uid"]
    assert_agreed(deployed, kept_now)
    bring_back(deployed, gone)
    assert_agreed(deployed, running_pod(deployed, waiting))
    assert_sound(deployed)


def bring_back(deployed: DeployedLinkwise, name: str) -> None:
    """Restart the kubelet, which creates its Node at its start. The administrator sets labels
    again."""
    if name in deployed.nodes():
        return
    node = deployed.cluster.nodes[name]
    node.kubelet.restart()
    node.wait_ready()
    deployed.install()
    deployed.wait_ready()


@contextmanager
def annotated(deployed: DeployedLinkwise, node: str, key: str, value: str) -> Iterator[None]:
    """Annotate a Node, and restore the annotation afterwards."""
    path = f"/api/v1/nodes/{node}"
    was = deployed.get(path)["metadata"]["annotations"][key]
    deployed.client.patch(path, {"metadata": {"annotations": {key: value}}})
    try:
        yield
    finally:
        deployed.client.patch(path, {"metadata": {"annotations": {key: was}}})


def reason(deployed: DeployedLinkwise, node: str) -> str:
    """Return why the extender does not use the node; "" if it does."""
    views = deployed.ask_extender("/nodes")
    return "".join(view["reason"] for view in views if view["name"] == node)


def others(deployed: DeployedLinkwise, not_these: Collection[str]) -> list[str]:
    found = (pod["metadata"]["name"] for pod in deployed.pods("job-name=train"))
    return [name for name in found if name not in not_these]
