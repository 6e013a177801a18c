"""What is missing on each node."""

from collections.abc import Collection, Iterator
from dataclasses import replace

from linkwise.cli.doctor.claims import GpuDriver, drivers_on, of_claims
from linkwise.cli.doctor.facts import (
    ALONE,
    IN_FRONT,
    PLUGIN,
    DaemonSet,
    Facts,
    SeenPod,
    amount_of,
    machine_on,
)
from linkwise.cli.doctor.finding import Finding, Level, note, problem
from linkwise.cli.doctor.lost_gpus import LostGpus
from linkwise.cli.doctor.pcie_lanes import of_pcie_lanes
from linkwise.extender.state.cache.node_info import ClosedBy
from linkwise.extender.state.views import NodeView
from linkwise.kube.objects import Node
from linkwise.topology import names
from linkwise.topology.annotations.plan import InUse, read_in_use
from linkwise.topology.errors import LinkwiseError

GPU_NODE = "linkwise.dev/gpu-node"  # the label for people to set
# A container starts seconds after its pod; the plugin reports its GPUs within a second.
STARTED_SECONDS = 120.0


def of_nodes(facts: Facts) -> Iterator[Finding]:
    if not (facts.could_read("nodes") and facts.could_read("pods")):
        return
    if not (facts.daemonsets or facts.plugins) and facts.could_read("daemonsets"):
        todo = "install it, with Helm or an overlay, first with `observe`"
        what = "Linkwise's plugin is not installed"
        yield Finding(Level.PROBLEM, ("cluster",), what, todo, "install.md")
        return
    on: dict[str, list[SeenPod]] = {}
    for pod in facts.pods:
        if pod.spec.node_name:
            on.setdefault(pod.spec.node_name, []).append(pod)
    offered: set[str] = set()
    views = {view.name: view for view in facts.views}
    drivers_of = drivers_on(facts)
    lost = LostGpus(facts)
    for node in facts.nodes:
        name = node.metadata.name
        bound = on.get(name, [])
        here = [pod for pod in bound if pod.live]
        resource = facts.resource_on(node)
        ours = (pod for pod in here if pod.is_of(PLUGIN))
        plugin = min(ours, key=lambda pod: pod.resource != resource, default=None)
        has_topology = names.TOPOLOGY in node.metadata.annotations
        drivers = drivers_of.get(name, [])
        offers = amount_of(node.status.capacity, resource)
        if not (plugin or has_topology or offers or drivers):
            continue
        offered.add(resource)
        found = (
            *_of_plugin(facts, node, plugin, views.get(name), drivers),
            *of_claims(facts, node, drivers),
            *lost.of(node, plugin, drivers),
            *of_pcie_lanes(node),
            *_of_vendor(resource, plugin, [p for p in here if p.is_vendor_of(resource)]),
            *(_of_in_use(facts, node, bound) if plugin is not None else ()),
        )
        yield from (replace(each, where=(name,)) for each in found)
    for each in facts.daemonsets:
        yield from _of_daemonset(facts, each, offered)


def _of_daemonset(
    facts: Facts, daemonset: DaemonSet, offered: Collection[str]
) -> Iterator[Finding]:
    """*offered* are the resources that nodes have. A machine without any plugin does not show that
    it has GPUs."""
    if any(pod.resource == daemonset.resource for pod in facts.plugins):
        return
    labels = daemonset.labels
    if facts.nodes and not any(map(daemonset.is_for, facts.nodes)):
        what = f"no node has a label by which {daemonset.name} selects it: {' or '.join(labels)}"
        todo = "give each GPU node one"
        if GPU_NODE in labels:
            todo = f"label each GPU node: `kubectl label node NODE {GPU_NODE}={labels[GPU_NODE]}`"
    elif daemonset.resource not in offered:
        what = f"{daemonset.name} runs on no node"
        todo = _without_pods(facts, daemonset, "nodes")
    else:
        return
    page = "install.md#before-you-begin"
    yield Finding(Level.PROBLEM, ("cluster",), what, todo, page)


def _without_pods(facts: Facts, daemonset: DaemonSet | None, whom: str) -> str:
    """What to do where a pod of the plugin should be. A label helps only if its DaemonSet can
    create pods."""
    name = daemonset.name if daemonset else PLUGIN
    described = f"see `kubectl -n {facts.system} describe daemonset {name}`"
    return described if name in facts.refused else f"{described}, and label the {whom}"


def _of_plugin(
    facts: Facts,
    node: Node,
    plugin: SeenPod | None,
    view: NodeView | None,
    drivers: list[GpuDriver],
) -> Iterator[Finding]:
    has_topology = names.TOPOLOGY in node.metadata.annotations
    if plugin is None:
        yield from _without_plugin(facts, node, drivers, has_topology=has_topology)
        return
    logs = "read the log of its plugin pod, and its /readyz"
    if not plugin.ready:
        if plugin.mode == IN_FRONT and has_topology:
            yield problem(
                "the vendor's plugin is not registered with Linkwise, or is not well",
                "tell it the socket, and read /readyz of Linkwise's plugin pod",
                "docs/in-front.md#install",
            )
        else:
            yield problem("Linkwise's plugin is not ready", logs, "plugin.md")
    elif not has_topology:
        yield problem("the plugin is ready, and no topology is published", logs, "plugin.md")
    if view is not None and view.closed == ClosedBy.REFUSES:
        todo = "see why no plugin is registered there: its pods, and the kubelet's log"
        page = "troubleshoot.md#when-the-kubelet-refuses-a-pod"
        yield problem("the kubelet refuses pods with GPUs", todo, page)
    elif view is not None and view.closed == ClosedBy.UNREADABLE:
        todo = "run plugin and extender of one version; do not edit the annotation"
        yield problem(
            f"its annotation cannot be read: {view.reason}",
            todo,
            "upgrade-and-uninstall.md#upgrade-linkwise",
        )


def _without_plugin(
    facts: Facts, node: Node, drivers: list[GpuDriver], *, has_topology: bool
) -> Iterator[Finding]:
    daemonset = facts.daemonset_for(node)
    by_count = "adopt-step-by-step.md#nodes-without-topology"
    offers = amount_of(node.status.allocatable, facts.resource_on(node))
    so = "pods are placed by count" if offers else "its kubelet offers no GPUs"
    if drivers and not offers:
        so = "who has its GPUs is not seen"
    if has_topology:
        what = "no plugin of Linkwise runs, and its annotations are left"
        yield problem(
            what,
            "start the plugin there, or clean the node",
            "upgrade-and-uninstall.md#clean-a-node-by-hand",
        )
    elif daemonset and not daemonset.is_for(node):
        what = f"outside the nodeSelector and affinity of {daemonset.name}: {so}"
        yield note(what, "nothing, if that is meant", by_count)
    else:
        what = f"no plugin of Linkwise runs: {so}"
        todo = _without_pods(facts, daemonset, "node")
        yield problem(what, todo, "install.md#before-you-begin")


def _of_vendor(resource: str, plugin: SeenPod | None, vendors: list[SeenPod]) -> Iterator[Finding]:
    mode = None if plugin is None else plugin.mode
    for vendor in vendors:
        if vendor.registers_with_us:
            if mode != IN_FRONT:
                yield problem(
                    f"{vendor.key} registers with Linkwise, and no plugin in front listens",
                    "take KUBELET_SOCKET from it, or put Linkwise's plugin in front",
                    "docs/in-front.md#install",
                )
        elif mode == ALONE:
            yield problem(
                f"two plugins for {resource}: Linkwise's and {vendor.key}",
                "put Linkwise's in front, have it observe, or remove the other",
                "adopt-step-by-step.md",
            )
        elif mode == IN_FRONT:
            yield problem(
                f"{vendor.key} registers with the kubelet, past Linkwise",
                "set KUBELET_SOCKET in it",
                "docs/in-front.md#install",
            )


def _of_in_use(facts: Facts, node: Node, bound: list[SeenPod]) -> Iterator[Finding]:
    """Names in the list that no pod has, and pods that run with GPUs and are not in the list.
    *bound* are all pods of the node, those that have ended too."""
    text = node.metadata.annotations.get(names.IN_USE)
    machine = machine_on(node)
    if machine is None:
        return
    try:
        in_use = InUse() if text is None else read_in_use(text)
    except LinkwiseError:
        return  # the extender's reason says so
    listed = {*in_use.pods, *in_use.shares}
    gone = sorted(listed - {pod.key for pod in bound})
    todo = "restart the plugin's pod there; if it stays, the kubelet's podresources are stuck"
    if gone:
        what = f"GPUs in use are out of date: {gone[0]} is not there any more"
        yield problem(what, todo, "troubleshoot.md", passing=True)
    resource = facts.resource_on(node)
    if amount_of(node.status.allocatable, resource) > len(machine.gpus):
        return  # shared GPUs: replicas are in no list
    missing = sorted(
        pod.key
        for pod in bound
        if pod.live
        and pod.keeps(resource)
        and pod.key not in listed
        and pod.status.phase == "Running"
        and pod.status.start_time is not None
        and facts.at - pod.status.start_time.timestamp() > STARTED_SECONDS
    )
    if missing:
        what = f"GPUs in use are out of date: {missing[0]} runs and is not listed"
        yield problem(what, todo, "troubleshoot.md", passing=True)
