"""The filters' answer to a case of Kubernetes objects, to be compared with kube-scheduler's own."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from linkwise.kube.filters.nodes import domains_of
from linkwise.kube.filters.placed_pods import PlacedPods
from linkwise.kube.filters.plugins import PodFilters, World, candidate
from linkwise.kube.filters.pod_facts import pod_facts
from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.filters.requests import amount
from linkwise.kube.filters.volumes.storage import Storage, StorageObject
from linkwise.kube.objects import (
    CSINode,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
)
from linkwise.simulator.scheduler.feasible import node_facts, requests_of, resources_fit

Case = Mapping[str, Any]
_STORAGE: Mapping[str, type[StorageObject]] = {
    "persistentVolumes": PersistentVolume,
    "persistentVolumeClaims": PersistentVolumeClaim,
    "storageClasses": StorageClass,
    "csiNodes": CSINode,
}


def verdicts(case: Case) -> dict[str, str]:
    """Node -> the plugin that refuses it, or an empty text."""
    found = rejections(case)
    return {name: rejection.plugin if rejection else "" for name, rejection in found.items()}


def rejections(case: Case) -> dict[str, Rejection | None]:
    """*case* has `nodes`, the `pods` that run there, the `pod` that waits, and optionally
    `namespaces`, `persistentVolumes`, `persistentVolumeClaims`, `storageClasses`, `csiNodes`."""
    nodes = [msgspec.convert(each, Node) for each in case["nodes"]]
    pods = _pods(case)
    pod = msgspec.convert(case["pod"], Pod)
    filters = PodFilters(candidate(pod), world_of(case))

    def fit(row: int) -> Rejection | None:
        node = nodes[row]
        allocatable = {r: amount(r, q) for r, q in node.status.allocatable.items()}
        used: dict[str, int] = {}
        for other in pods:
            if other.spec.node_name == node.metadata.name:
                for resource, needed in requests_of(other).items():
                    used[resource] = used.get(resource, 0) + needed
        return resources_fit(requests_of(pod), allocatable, used)

    return {
        node.metadata.name: filters.rejection(row, partial(fit, row))
        for row, node in enumerate(nodes)
    }


def _pods(case: Case) -> list[Pod]:
    """kube-scheduler's watch leaves out pods that have ended."""
    pods = (msgspec.convert(each, Pod) for each in case.get("pods") or ())
    return [pod for pod in pods if not pod.has_ended]


def world_of(case: Case) -> World:
    facts = [node_facts(msgspec.convert(each, Node)) for each in case["nodes"]]
    row_of = {node.name: row for row, node in enumerate(facts)}
    placed, storage = PlacedPods(), Storage()
    for number, pod in enumerate(_pods(case)):
        row = row_of.get(pod.spec.node_name)
        if row is not None:
            leaving = pod.is_leaving
            placed.put(str(number), pod_facts(pod), row, leaving=leaving)
    for field, kind in _STORAGE.items():
        storage.replace(kind, [msgspec.convert(each, kind) for each in case.get(field) or ()])
    namespaces = [msgspec.convert(each, Namespace) for each in case.get("namespaces") or ()]
    return World(
        facts,
        lambda key: domains_of(key, [node.labels for node in facts]),
        placed,
        storage,
        {each.metadata.name: each.metadata.labels for each in namespaces},
    )
