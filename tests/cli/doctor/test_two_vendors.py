"""What the doctor finds in a cluster of two vendors, which has two DaemonSets of the plugin."""

from dataclasses import replace
from typing import Any

import msgspec

from linkwise.cli.doctor.diagnosis import findings
from linkwise.cli.doctor.facts import DaemonSet, SeenPod
from linkwise.kube.objects import Node
from linkwise.topology.annotations.node_annotation import write_topology
from tests.cli.doctor.cluster_facts import (
    GPU,
    MACHINE,
    WELL,
    node,
    only,
    plugin,
    pod,
    problems,
    program,
    refusal,
    with_pods,
)

AMD = "amd.com/gpu"
OF_AMD, MARK = "linkwise-plugin-amd", "linkwise.dev/gpu-node"
BOTH_FLAGS = (f"--resource-name={GPU}", f"--resource-name={AMD}")
change = msgspec.structs.replace


def daemonset(name: str, resource: str, mark: str) -> DaemonSet:
    """As the chart writes it, with fewer labels."""
    terms = [{"matchExpressions": [{"key": MARK, "operator": "In", "values": [mark]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec: dict[str, Any] = {
        "affinity": {"nodeAffinity": required},
        "containers": [{"name": "plugin", "args": [f"--resource-name={resource}"]}],
    }
    template = {"metadata": {"labels": {"app.kubernetes.io/name": "linkwise-plugin"}}, "spec": spec}
    made = {"metadata": {"name": name}, "spec": {"template": template}}
    return msgspec.convert(made, DaemonSet)


def amd_node(name: str, *, mark: str = "amd", published: bool = False) -> Node:
    in_use = {"ml/runs": {"main": tuple(gpu.uuid for gpu in MACHINE.gpus)}} if published else {}
    topology = write_topology(MACHINE) if published else None
    made = node(name, topology=topology, in_use=in_use, labels={MARK: mark})
    amounts = {AMD: "8"}
    return change(made, status=change(made.status, capacity=amounts, allocatable=amounts))


def amd_plugin(on: str, *, ready: bool = True) -> SeenPod:
    made = plugin(on, ready=ready)
    (container,) = made.spec.containers
    container = change(container, args=(BOTH_FLAGS[1], "--in-front"))
    metadata = change(made.metadata, name=f"{OF_AMD}-{on}")
    return change(made, metadata=metadata, spec=change(made.spec, containers=(container,)))


NVIDIA_NODE = node("n1", labels={MARK: "nvidia"})
NO_AMD_PLUGIN = replace(
    WELL,
    resources=(GPU, AMD),
    nodes=(NVIDIA_NODE, amd_node("a1")),
    pods=(*WELL.pods[:2], program("linkwise-extender", *BOTH_FLAGS), pod("runs", "a1")),
    daemonsets=(daemonset("linkwise-plugin", GPU, "nvidia"), daemonset(OF_AMD, AMD, "amd")),
)
BOTH = with_pods(
    amd_plugin("a1"),
    facts=replace(NO_AMD_PLUGIN, nodes=(NVIDIA_NODE, amd_node("a1", published=True))),
)


def test_a_cluster_that_is_well() -> None:
    """The AMD node offers none of the other resource, and its pods request none of it."""
    assert findings(BOTH) == ()
    as_one = replace(BOTH, resources=WELL.resources)
    assert any("a1" in found.where for found in findings(as_one))


def test_a_node_without_a_plugin_names_the_daemonset_that_is_meant() -> None:
    found = only(NO_AMD_PLUGIN)
    assert (found.where, found.what) == (
        ("a1",),
        "no plugin of Linkwise runs: pods are placed by count",
    )
    assert found.todo.startswith(f"see `kubectl -n kube-system describe daemonset {OF_AMD}`, and")
    outside = only(replace(BOTH, nodes=(*BOTH.nodes, amd_node("a2", mark="true"))))
    assert (outside.where, outside.what) == (
        ("a2",),
        f"outside the nodeSelector and affinity of {OF_AMD}: pods are placed by count",
    )


def test_each_daemonset_selects_a_node_and_runs_on_one() -> None:
    elsewhere = replace(NO_AMD_PLUGIN, nodes=(NVIDIA_NODE,))
    found = only(elsewhere)
    assert found.what == f"no node has a label by which {OF_AMD} selects it: {MARK}"
    assert found.todo == f"label each GPU node: `kubectl label node NODE {MARK}=amd`"
    bare = node("a1", topology=None, gpus=0, labels={MARK: "amd"})
    assert problems(replace(elsewhere, nodes=(NVIDIA_NODE, bare))) == [
        (("cluster",), f"{OF_AMD} runs on no node")
    ]


def test_pods_of_the_other_daemonset_do_not_hide_what_refuses_its_own() -> None:
    since = pod(
        "linkwise-plugin-n2", "n2", ago=1, labels={"app.kubernetes.io/name": "linkwise-plugin"}
    )
    facts = replace(with_pods(since, facts=NO_AMD_PLUGIN), events=(refusal(OF_AMD, "quota"),))
    assert problems(facts) == [
        ((OF_AMD,), "its pods are not created: quota"),
        (("a1",), "no plugin of Linkwise runs: pods are placed by count"),
    ]
    assert "label" not in findings(facts)[1].todo
    assert findings(replace(BOTH, events=(refusal(OF_AMD, "quota", ago=7200),))) == ()


def test_a_daemonset_without_pods_has_its_resource_too() -> None:
    """Else the plugin would seem to lack what extender and webhook know."""
    assert all("differ" not in what for _, what in problems(NO_AMD_PLUGIN))
    one = replace(NO_AMD_PLUGIN, pods=(*WELL.pods[:2], program("linkwise-extender")))
    what = f"they differ in the resource that is a GPU: linkwise-plugin has {AMD} and {GPU}; "
    assert problems(one)[0][1].startswith(what)


def test_of_two_plugins_on_a_node_the_one_of_its_gpus_counts() -> None:
    """A card for a display selects the other one."""
    assert findings(with_pods(amd_plugin("n1", ready=False), facts=BOTH)) == ()
    first = replace(BOTH, pods=(plugin("a1", ready=False), *BOTH.pods))
    assert findings(first) == ()
