"""What the doctor finds on nodes: each fault alone, in a cluster that is well otherwise."""

from dataclasses import replace

import msgspec
import pytest

from linkwise.cli.doctor.diagnosis import all_is_well, findings
from linkwise.cli.doctor.facts import DaemonSet, EnvVar, SeenPod
from linkwise.cli.doctor.finding import Level
from linkwise.extender.state.cache.node_info import ClosedBy
from linkwise.extender.state.views import NodeView
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.annotations.plan import InUse, write_in_use
from tests.cli.doctor.cluster_facts import (
    MACHINE,
    OURS,
    SOCKETS,
    STATE,
    WELL,
    node,
    only,
    plugin,
    pod,
    problems,
    vendor,
    with_pods,
)
from tests.divided import replicas

CANARY = msgspec.convert(
    {"spec": {"template": {"spec": {"nodeSelector": {"canary": "yes"}}}}}, DaemonSet
)


def seen(name: str, closed: str, reason: str) -> NodeView:
    return NodeView(name, not reason, reason, "", (), "", None, 0, 0, 0.0, closed=closed)


def test_a_cluster_that_is_well() -> None:
    assert findings(WELL) == ()
    told = "Nothing is missing. Linkwise's plugin runs on 1 node: 1 in front of a vendor's plugin."
    assert all_is_well(WELL) == told


def test_without_a_daemonset_the_plugin_is_not_installed() -> None:
    found = only(replace(WELL, daemonsets=(), pods=WELL.pods[2:], nodes=(node("n1"),)))
    assert found.what == "Linkwise's plugin is not installed"
    assert found.where == ("cluster",)


def test_a_gpu_node_without_a_plugin_pod() -> None:
    facts = replace(WELL, nodes=(*WELL.nodes, node("n2", topology=None)))
    assert problems(facts) == [(("n2",), "no plugin of Linkwise runs: pods are placed by count")]
    outside = only(replace(facts, daemonsets=(CANARY,), nodes=(node("n2", topology=None),)))
    assert outside.level is Level.NOTE
    assert (
        outside.what
        == "outside the nodeSelector and affinity of linkwise-plugin: pods are placed by count"
    )


def test_a_node_that_the_plugin_s_affinity_excludes() -> None:
    """As the nodes of a DRA driver are: the kubelet still knows a resource that nothing offers."""
    term = {"matchExpressions": [{"key": "dra", "operator": "DoesNotExist"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    template = {"spec": {"affinity": {"nodeAffinity": required}}}
    daemonset = msgspec.convert({"spec": {"template": template}}, DaemonSet)
    excluded = node("n2", topology=None, labels={"dra": "yes"}, offered=0)
    found = only(replace(WELL, daemonsets=(daemonset,), nodes=(*WELL.nodes, excluded)))
    assert found.level is Level.NOTE
    told = "outside the nodeSelector and affinity of linkwise-plugin: its kubelet offers no GPUs"
    assert found.what == told
    stopped = replace(WELL, nodes=(*WELL.nodes, node("n2", topology=None, offered=0)))
    assert problems(stopped) == [
        (("n2",), "no plugin of Linkwise runs: its kubelet offers no GPUs")
    ]


def test_annotations_that_no_plugin_updates() -> None:
    facts = replace(WELL, nodes=(*WELL.nodes, node("n2")))
    found = only(facts)
    assert found.where == ("n2",)
    assert "its annotations are left" in found.what
    assert found.page == "upgrade-and-uninstall.md#clean-a-node-by-hand"


def test_a_plugin_that_is_ready_and_publishes_nothing() -> None:
    facts = replace(WELL, nodes=(node("n1", topology=None),))
    assert only(facts).what == "the plugin is ready, and no topology is published"


def test_a_plugin_in_front_without_its_vendor() -> None:
    facts = replace(WELL, pods=(plugin("n1", ready=False), *WELL.pods[2:]))
    assert "vendor's plugin is not registered with Linkwise" in only(facts).what
    facts = replace(facts, nodes=(node("n1", topology=None),))
    assert only(facts).what == "Linkwise's plugin is not ready"
    facts = replace(WELL, pods=(plugin("n1", "", ready=False), *WELL.pods[2:]))
    assert only(facts).what == "Linkwise's plugin is not ready"


def test_what_the_extender_says_of_a_node() -> None:
    facts = replace(WELL, views=(seen("n1", ClosedBy.REFUSES, "kubelet refuses pods with GPUs"),))
    assert only(facts).what == "the kubelet refuses pods with GPUs"
    facts = replace(
        WELL, views=(seen("n1", ClosedBy.UNREADABLE, "linkwise.dev/topology: 'x': expected JSON"),)
    )
    assert "annotation cannot be read: linkwise.dev/topology" in only(facts).what
    for passing in ("cordoned", "node is not ready"):
        facts = replace(WELL, views=(seen("n1", "", passing),))
        assert problems(facts) == []


@pytest.mark.parametrize(
    ("mode", "told", "what"),
    [
        ("--in-front", True, ""),
        ("--in-front", False, "registers with the kubelet, past Linkwise"),
        ("", False, "two plugins for nvidia.com/gpu"),
        ("", True, "no plugin in front listens"),
        ("--observe", False, ""),
        ("--observe", True, "no plugin in front listens"),
    ],
)
def test_a_vendors_plugin_beside_ours(mode: str, told: bool, what: str) -> None:
    facts = replace(WELL, pods=(plugin("n1", mode), vendor("n1", told=told), *WELL.pods[2:]))
    found = problems(facts)
    assert [where for where, _ in found] == ([("n1",)] if what else [])
    assert all(what in text for _, text in found)


def test_a_vendors_plugin_that_waits_where_nothing_listens() -> None:
    """As after Linkwise was removed from the node, and the variable was left."""
    bare = node("n2", topology=None, labels={"canary": "no"})
    facts = with_pods(vendor("n2"), facts=replace(WELL, nodes=(bare,), daemonsets=(CANARY,)))
    assert [text for _, text in problems(facts)] == [
        "gpu-operator/nvidia-device-plugin-daemonset-n2 registers with Linkwise, and no plugin in "
        "front listens"
    ]


def test_a_plugin_with_the_path_compiled_in_registers_where_its_mount_leads() -> None:
    hosts = {f"{SOCKETS}/linkwise": SOCKETS}
    moved = pod("nvidia-device-plugin-x", "n1", image="nvidia/k8s-device-plugin", hosts=hosts)
    assert problems(replace(WELL, pods=(plugin("n1"), moved, *WELL.pods[2:]))) == []
    assert moved.is_vendor_of("nvidia.com/gpu")
    assert moved.registers_with_us


@pytest.mark.parametrize(
    "other",
    [
        pod("rdma-shared-dp-1", "n1", image="mellanox/rdma-dp", hosts={SOCKETS: SOCKETS}),
        pod("nvidia-device-plugin-notes", "n1", image="web"),
        pod("amdgpu-device-plugin", "n1", image="rocm/k8s-device-plugin", hosts={SOCKETS: SOCKETS}),
    ],
    ids=["another-resource", "no-sockets", "another-vendor"],
)
def test_other_pods_are_no_vendors_plugin(other: SeenPod) -> None:
    assert findings(with_pods(other)) == ()


def test_amds_plugin_is_known_by_its_images_name() -> None:
    image = "rocm/k8s-device-plugin"
    amd = pod(
        "device-plugin", "n1", image=image, env={"KUBELET_SOCKET": OURS}, hosts={SOCKETS: "/"}
    )
    assert amd.is_vendor_of("amd.com/gpu")
    assert not amd.is_vendor_of("nvidia.com/gpu")


def test_a_list_of_gpus_in_use_that_is_out_of_date() -> None:
    uuids = tuple(gpu.uuid for gpu in MACHINE.gpus[:1])
    facts = replace(WELL, nodes=(node("n1", in_use={"ml/gone": {"main": uuids}}),))
    found = only(facts)
    assert "ml/gone is not there any more" in found.what
    assert found.passing
    assert findings(with_pods(pod("gone", "n1", gpus=1), facts=facts)) == ()
    runs = with_pods(pod("runs", "n1", gpus=1))
    assert "ml/runs runs and is not listed" in only(runs).what
    assert findings(with_pods(pod("starts", "n1", gpus=1, ago=60))) == ()
    assert findings(with_pods(pod("ended", "n1", gpus=1, phase="Succeeded"))) == ()


def test_shared_gpus_are_in_no_list() -> None:
    text = write_topology(replicas(MACHINE, dict.fromkeys(range(8), 4)))
    facts = replace(WELL, nodes=(node("n1", gpus=32, topology=text),))
    assert findings(with_pods(pod("replica", "n1", gpus=1), facts=facts)) == ()


def test_equal_findings_are_one_line() -> None:
    more = tuple(node(f"m{number}", topology=None) for number in range(5))
    found = only(replace(WELL, nodes=more))
    assert found.where == ("m0", "m1", "m2", "m3", "m4")


def test_a_mangled_annotation_is_the_extenders_to_report() -> None:
    bare = node("n1", topology="mangled")
    mangled = msgspec.structs.replace(
        bare,
        metadata=msgspec.structs.replace(
            bare.metadata, annotations={names.IN_USE: "{", names.TOPOLOGY: "mangled"}
        ),
    )
    assert findings(replace(WELL, nodes=(mangled,))) == ()
    assert STATE.namespaces == ()


def test_a_plugin_that_runs_on_no_node() -> None:
    """A machine without any device plugin does not show that it has GPUs."""
    facts = replace(WELL, nodes=(node("n1", topology=None, gpus=0),), pods=WELL.pods[2:])
    assert problems(facts) == [(("cluster",), "linkwise-plugin runs on no node")]


def selecting(*labels: str) -> DaemonSet:
    terms = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in labels]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    template = {"spec": {"affinity": {"nodeAffinity": required}}}
    return msgspec.convert({"spec": {"template": template}}, DaemonSet)


@pytest.mark.parametrize("gpus", [0, 8])
def test_a_daemonset_that_selects_no_node_is_told_of_and_names_the_labels(gpus: int) -> None:
    """As after an installation with Helm where no node has a label, with a vendor's plugin too."""
    by = selecting("nvidia.com/gpu.present", "linkwise.dev/gpu-node")
    bare = node("n1", topology=None, gpus=gpus)
    facts = replace(WELL, nodes=(bare,), pods=WELL.pods[2:], daemonsets=(by,))
    what = "no node has a label by which linkwise-plugin selects it: "
    assert problems(facts) == [
        (("cluster",), f"{what}nvidia.com/gpu.present or linkwise.dev/gpu-node")
    ]
    todo = "label each GPU node: `kubectl label node NODE linkwise.dev/gpu-node=true`"
    assert findings(facts)[0].todo == todo
    own = replace(facts, daemonsets=(selecting("team"),))
    assert findings(own)[0].todo == "give each GPU node one"


def test_a_plugin_in_another_namespace_is_installed() -> None:
    assert findings(replace(WELL, daemonsets=())) == ()


def changed(seen_pod: SeenPod, **container: object) -> SeenPod:
    """The pod with these fields of its container changed."""
    (first,) = seen_pod.spec.containers
    first = msgspec.structs.replace(first, **container)
    return msgspec.structs.replace(
        seen_pod, spec=msgspec.structs.replace(seen_pod.spec, containers=(first,))
    )


def test_flags_may_be_variables_and_the_vendors_socket_a_flag() -> None:
    told = changed(vendor("n1", told=False), args=(f"--kubelet-socket={OURS}",))
    assert findings(replace(WELL, pods=(plugin("n1"), told, *WELL.pods[2:]))) == ()
    in_front = changed(
        plugin("n1", ""), env=(EnvVar(name="LINKWISE_PLUGIN_IN_FRONT", value="true"),)
    )
    assert findings(replace(WELL, pods=(in_front, *WELL.pods[1:]))) == ()
    off = changed(in_front, env=(EnvVar(name="LINKWISE_PLUGIN_IN_FRONT", value="false"),))
    assert off.mode == "alone"


def test_gpus_of_an_init_container_that_has_ended_are_in_no_list() -> None:
    warm = pod("warm", "n1", gpus=1)
    init = msgspec.structs.replace(
        warm.spec, init_containers=warm.spec.containers, containers=WELL.pods[0].spec.containers
    )
    assert findings(with_pods(msgspec.structs.replace(warm, spec=init))) == ()
    (container,) = warm.spec.containers
    sidecar = msgspec.structs.replace(container, restart_policy="Always")
    spec = msgspec.structs.replace(init, init_containers=(sidecar,))
    found = only(with_pods(msgspec.structs.replace(warm, spec=spec)))
    assert "ml/warm runs and is not listed" in found.what


def test_replicas_in_use_are_listed_like_whole_gpus() -> None:
    ids: tuple[str, ...] = (f"{MACHINE.gpus[0].uuid}::0",)
    text = write_in_use(InUse(pods={}, shares={"ml/shares": {"main": {"nvidia.com/gpu": ids}}}))
    known = node("n1")
    said = {**known.metadata.annotations, names.IN_USE: text}
    known = msgspec.structs.replace(
        known, metadata=msgspec.structs.replace(known.metadata, annotations=said)
    )
    facts = replace(WELL, nodes=(known,))
    assert findings(with_pods(pod("shares", "n1", gpus=1), facts=facts)) == ()
    assert "ml/shares is not there any more" in only(facts).what
