"""The holders of each GPU, from each source: container, kubelet, plan, Node, extender.

`assert_sound` checks that they agree in the whole cluster. It runs after every action on a cluster,
so no test has to name what it checks.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from linkwise.plugin.kubelet import podresources_pb2 as wire
from linkwise.plugin.kubelet.podresources_pb2_grpc import PodResourcesListerStub
from linkwise.topology import names
from linkwise.topology.sets.choose import choose
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.nodes.deployment import (
    EXTENDER_PODS,
    GPU,
    PLUGIN_PODS,
    SYSTEM,
    DeployedLinkwise,
    wait_until_none,
)
from tests.cluster.support.nodes.node import RealNode
from tests.cluster.support.nodes.workloads import GIVEN

Shares = dict[str, frozenset[str]]  # container -> GPU uuids
Holders = dict[str, Shares]  # namespace/pod -> its shares
_POD_RESOURCES = "var/lib/kubelet/pod-resources/kubelet.sock"
_PLUGIN_PORT = 9401
_DEVICE_PLUGINS = "var/lib/kubelet/device-plugins"
# Metrics of the extender that count its own defects; 0 whatever a test does to the cluster.
_DEFECTS = ("linkwise_extender_broken_invariants", "linkwise_extender_errors_total")


def assert_sound(deployed: DeployedLinkwise, seconds: float = 60.0) -> None:
    """Wait until nothing is in progress and all sources agree. Check that no defect was counted.

    A GPU that two pods hold fails at once: that must never happen, even briefly.
    """
    wait_until_none(lambda: unsound(deployed), seconds)


def unsound(deployed: DeployedLinkwise) -> list[str]:
    """Return what does not agree, or is still in progress."""
    held = {name: podresources(node) for name, node in deployed.cluster.nodes.items()}
    for node, holders in held.items():
        twice = list(held_twice(holders))
        assert not twice, f"{node}: {twice}"
    pods = [pod for pod in deployed.items("/api/v1/pods") if takes_gpus(pod)]
    return [
        *_on_their_way(pods),
        *_not_as_planned(pods, held),
        *_nodes_differ(deployed, held),
        *_books_differ(deployed, held),
        *_defects(deployed),
    ]


def left_behind(deployed: DeployedLinkwise) -> list[str]:
    """Return what is left although every pod with GPUs was deleted."""
    found = [f"pod {key_of(pod)}" for pod in deployed.items("/api/v1/pods") if takes_gpus(pod)]
    for name, node in deployed.cluster.nodes.items():
        found += [f"{name}: the kubelet says that {key} has GPUs" for key in podresources(node)]
        found += [f"{name}: {file}" for file in stray_sockets(node)]
    found += [
        f"gang {gang['namespace']}/{gang['name']}" for gang in deployed.ask_extender("/gangs")
    ]
    return [*found, *unsound(deployed)]


# Sources


def podresources(node: RealNode, resource: str = GPU) -> Holders:
    """Return the kubelet's view. It has one entry per device, so a container's are added up."""
    holders: Holders = {}
    with grpc.insecure_channel(
        f"unix:{node.root / _POD_RESOURCES}",
        options=[("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)],
    ) as channel:
        answer = PodResourcesListerStub(channel).List(wire.ListPodResourcesRequest(), timeout=5)
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                if devices.resource_name == resource:
                    shares = holders.setdefault(f"{pod.namespace}/{pod.name}", {})
                    had = shares.get(container.name, frozenset())
                    shares[container.name] = had | frozenset(devices.device_ids)
    return holders


def planned(pod: Mapping[str, Any]) -> Shares:
    """Return what the extender wrote on the pod."""
    text = pod["metadata"].get("annotations", {}).get(names.GPUS, "{}")
    return {name: frozenset(gpus) for name, gpus in json.loads(text).items()}


def plan(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the id of the plan; "" without one."""
    text = pod["metadata"].get("annotations", {}).get(names.PLAN, "{}")
    found: dict[str, Any] = json.loads(text)
    return found


def given(deployed: DeployedLinkwise, pod: str, container: str) -> frozenset[str]:
    """Return what the container found in its environment when it started. A pod counts as running
    before its containers have printed that."""
    found: list[str] = []

    def said() -> bool:
        log = deployed.kubectl("logs", pod, f"--container={container}")
        found[:] = [line for line in log.splitlines() if line.startswith(f"{GIVEN}=")]
        return bool(found)

    wait_for(said, f"{container} of {pod} says which GPUs it was given")
    (line,) = found
    return frozenset(filter(None, line.removeprefix(f"{GIVEN}=").split(",")))


def told_by_node(node: Mapping[str, Any]) -> Holders:
    """Return what the plugin wrote on its Node."""
    text = node["metadata"].get("annotations", {}).get(names.IN_USE, '{"pods":{}}')
    return {
        key: {container: frozenset(gpus) for container, gpus in shares.items()}
        for key, shares in json.loads(text)["pods"].items()
    }


def described(deployed: DeployedLinkwise, pod: str) -> str:
    """Return what a user sees who asks why a pod waits."""
    return deployed.kubectl("describe", "pod", pod)


def wait_described(deployed: DeployedLinkwise, pod: str, text: str) -> None:
    """Wait until *text* is in what a user sees first."""
    wait_for(lambda: text in described(deployed, pod), f"`kubectl describe pod {pod}`: {text}")


def running(deployed: DeployedLinkwise, selector: str, count: int = 1) -> list[dict[str, Any]]:
    """Return the pods with these labels once there are *count* and all of them run."""

    def so() -> bool:
        return [pod["status"]["phase"] for pod in staying(deployed, selector)] == [
            "Running"
        ] * count

    wait_for(so, f"{count} pods with {selector} run")
    return staying(deployed, selector)


def staying(deployed: DeployedLinkwise, selector: str) -> list[dict[str, Any]]:
    """Return the pods that are not ending."""
    found = deployed.pods(selector)
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def running_pod(deployed: DeployedLinkwise, name: str) -> dict[str, Any]:
    def so() -> bool:
        return bool(deployed.pod(name)["status"]["phase"] == "Running")

    wait_for(so, f"pod {name} runs")
    return deployed.pod(name)


# What must hold of pods


def assert_agreed(deployed: DeployedLinkwise, pod: Mapping[str, Any]) -> None:
    """Check that each container of *pod* found the plan's GPUs in its environment, and that the
    kubelet agrees for those that still run."""
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    shares = planned(deployed.pod(name))
    assert plan(pod)["node"] == node
    assert shares.keys() == wanted(pod).keys()
    assert {container: given(deployed, name, container) for container in shares} == shares
    assert {container: len(gpus) for container, gpus in shares.items()} == wanted(pod)
    held = podresources(deployed.cluster.nodes[node])[key_of(pod)]
    assert held == {container: shares[container] for container in shares if container in held}
    assert held.keys() >= {c["name"] for c in pod["spec"]["containers"] if _gpus(c)}


def assert_best(deployed: DeployedLinkwise, pods: Iterable[Mapping[str, Any]]) -> None:
    """Check that each pod has the best set for its turn, on a node that was idle. The order of the
    turns is unknown, but at each turn only one of the pods can be the next."""
    by_node: dict[str, list[frozenset[str]]] = {}
    for pod in pods:
        gpus = frozenset[str]().union(*planned(pod).values())
        by_node.setdefault(pod["spec"]["nodeName"], []).append(gpus)
    for node, sets in by_node.items():
        machine, waiting = deployed.machine(node), list(sets)
        free = machine.all_gpus
        while waiting:
            best = [choose(machine, free, size) for size in {len(gpus) for gpus in waiting}]
            masks = {choice.gpus for choice in best if choice is not None}
            found = [gpus for gpus in waiting if machine.mask_of(gpus) in masks]
            shown = [machine.indices_of(machine.mask_of(gpus)) for gpus in sets]
            assert found, f"{node}: {shown}: one of them is not the best that was free"
            waiting.remove(found[0])
            free &= ~machine.mask_of(found[0])


def held_twice(holders: Holders) -> Iterator[str]:
    seen: dict[str, str] = {}
    for key, shares in holders.items():
        for gpu in frozenset[str]().union(*shares.values()):
            if gpu in seen:
                yield f"{gpu} is held by {seen[gpu]} and by {key}"
            seen[gpu] = key


def key_of(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def takes_gpus(pod: Mapping[str, Any]) -> bool:
    return bool(wanted(pod))


def wanted(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return container -> GPUs, for containers that request some."""
    spec = pod["spec"]
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    return {c["name"]: _gpus(c) for c in containers if _gpus(c)}


def stray_sockets(node: RealNode) -> list[str]:
    """Return sockets beside the kubelet's other than that of the running plugin."""
    directory = node.root / _DEVICE_PLUGINS
    found = sorted(path.name for path in directory.iterdir() if path.is_socket())
    return [name for name in found if name != "kubelet.sock"][1:]


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a Linkwise program uses on its node, and the size of its metrics."""

    descriptors: int
    threads: int
    mib: float  # resident
    files: int  # in directories where it may write
    series: int  # of its metrics; grows if the program keeps one for every pod


def usage(deployed: DeployedLinkwise) -> dict[str, Usage]:
    """Return the usage of each running program, by kind and place."""
    found = {}
    for selector in (PLUGIN_PODS, EXTENDER_PODS):
        for pod in deployed.pods(selector, namespace=SYSTEM):
            (container,) = pod["spec"]["containers"]
            (port,) = (p["containerPort"] for p in container["ports"] if p["name"] == "http")
            name = f"{pod['metadata']['name']} on {pod['spec']['nodeName']}"
            (process,) = processes_of(pod, f"linkwise-{container['name']}")
            status = (process / "status").read_text()
            found[name] = Usage(
                descriptors=len(list((process / "fd").iterdir())),
                threads=_number(r"Threads:\s+(\d+)", status),
                mib=_number(r"VmRSS:\s+(\d+)", status) / 1024,
                files=len(list(_written(deployed.cluster.nodes[pod["spec"]["nodeName"]], pod))),
                series=len(_metrics_text(f"http://{pod['status']['podIP']}:{port}/metrics")),
            )
    return found


def _written(node: RealNode, pod: Mapping[str, Any]) -> Iterator[Path]:
    volumes = node.root / f"var/lib/kubelet/pods/{pod['metadata']['uid']}/volumes"
    for directory in (node.root / _DEVICE_PLUGINS, *volumes.glob("kubernetes.io~empty-dir/*")):
        yield from directory.rglob("*")


def processes_of(pod: Mapping[str, Any], program: str) -> Iterator[Path]:
    """Return the processes in the pod's cgroup, of those that this sandbox sees."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended since the listing
            in_pod = pod["metadata"]["uid"] in (process / "cgroup").read_text()
            if in_pod and program in (process / "cmdline").read_text():
                yield process


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1])


def _metrics_text(url: str) -> list[str]:
    return urllib3.request("GET", url, timeout=5).data.decode().splitlines()


def metric(url: str, name: str, label: str = "") -> dict[str, float]:
    """Return the samples of *name* at *url* by the value of *label*, summed over other labels."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families("\n".join(_metrics_text(url))):
        for sample in family.samples:
            if sample.name == name:
                value = sample.labels.get(label, "")
                sums[value] = sums.get(value, 0.0) + sample.value
    return sums


def advice(deployed: DeployedLinkwise, node: str) -> dict[str, float]:
    """Return how often the plugin advised the kubelet, by the source of the advice."""
    for pod in deployed.pods(PLUGIN_PODS, namespace=SYSTEM):
        if pod["spec"]["nodeName"] == node:
            url = f"http://{pod['status']['podIP']}:{_PLUGIN_PORT}/metrics"
            return metric(url, "linkwise_plugin_preferred_total", "source")
    raise AssertionError(f"no plugin on {node}")


def _gpus(container: Mapping[str, Any]) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(GPU, 0))


def _on_their_way(pods: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for pod in pods:
        bound, phase = pod["spec"].get("nodeName"), pod["status"]["phase"]
        if pod["metadata"].get("deletionTimestamp"):
            yield f"pod {key_of(pod)} is still ending"
        elif bound and phase == "Pending":
            yield f"pod {key_of(pod)} is on {bound} and does not run"
        elif not bound and planned(pod):
            yield f"pod {key_of(pod)} is planned and not bound"


def _not_as_planned(
    pods: Iterable[Mapping[str, Any]], held: Mapping[str, Holders]
) -> Iterator[str]:
    for pod in pods:
        if pod["status"]["phase"] != "Running":
            continue
        shares, node = planned(pod), pod["spec"]["nodeName"]
        has = held.get(node, {}).get(key_of(pod), {})
        for container in pod["spec"]["containers"]:
            if _gpus(container) != len(has.get(container["name"], ())):
                yield f"{node}: {key_of(pod)}: {container['name']} has {has}"
        for container, gpus in has.items():
            if shares.get(container) != gpus:
                yield f"{node}: {key_of(pod)}: {container} has {gpus}, the plan: {shares}"


def _nodes_differ(deployed: DeployedLinkwise, held: Mapping[str, Holders]) -> Iterator[str]:
    for name, node in deployed.nodes().items():
        if told_by_node(node) != held.get(name):
            yield f"{name}: its annotation: {told_by_node(node)}, the kubelet: {held.get(name)}"


def _books_differ(deployed: DeployedLinkwise, held: Mapping[str, Holders]) -> Iterator[str]:
    views = {view["name"]: view for view in deployed.ask_extender("/nodes")}
    for name in deployed.nodes():
        if name not in views:
            yield f"{name}: the extender does not know it"
            continue
        kubelet = {
            gpu: (key, "used")
            for key, shares in held[name].items()
            for gpus in shares.values()
            for gpu in gpus
        }
        # The kubelet keeps them for their pod, and does not list them.
        kept = {
            gpu: (key_of(pod), "held")
            for pod in deployed.items("/api/v1/pods")
            if pod["spec"].get("nodeName") == name and pod["status"]["phase"] == "Running"
            for gpus in planned(pod).values()
            for gpu in gpus
        }
        kubelet = kept | kubelet
        books = {
            gpu["uuid"]: (gpu["holder"], gpu["state"])
            for gpu in views[name]["gpus"]
            # A reserved GPU waits for its gang: no pod holds it.
            if gpu["state"] not in ("free", "reserved", "unhealthy", "divided")
        }
        if books != kubelet:
            yield f"{name}: the extender's books: {books}, the kubelet: {kubelet}"


def _defects(deployed: DeployedLinkwise) -> Iterator[str]:
    for name in _DEFECTS:
        counted = sum(metric(f"{deployed.extender_url}/metrics", name).values())
        if counted:
            yield f"the extender: {name} is {counted:g}"
