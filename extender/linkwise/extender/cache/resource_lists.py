"""What a pod requests and what a node offers, as values of the cache."""

from collections.abc import Mapping
from functools import lru_cache

from linkwise.extender.api.records import ResourceList
from linkwise.kube.filters.requests import lenient_amount, pod_requests
from linkwise.kube.objects import LARGEST, Node, Pod
from linkwise.topology.demand import PodDemand

_resources = lru_cache(maxsize=1024)(ResourceList)  # one for equal ones, which are compared
_CPU, _MEMORY, _PODS = "cpu", "memory", "pods"


def pod_needs(pod: Pod, demand: PodDemand, managed: str) -> ResourceList:
    """What kube-scheduler counts; of the *managed* resource, *demand*."""
    # Capped, since a sum of capped quantities may exceed what the cache's arrays can store.
    capped = {
        name: min(needed, LARGEST) for name, needed in pod_requests(pod, lenient_amount).items()
    }
    return _resource_list({**capped, managed: min(demand.gpus, LARGEST)}, managed)


def node_offers(node: Node, managed: str) -> ResourceList:
    """What pods may request of the node in all."""
    allocatable = node.status.allocatable
    return _resource_list(
        {name: lenient_amount(name, allocatable[name]) for name in allocatable}, managed
    )


def most_pods(node: Node) -> int:
    """How many pods the node takes. Every kubelet reports it; if one does not, kube-scheduler
    decides."""
    allocatable = node.status.allocatable
    return lenient_amount(_PODS, allocatable[_PODS]) if _PODS in allocatable else 2**31


def _resource_list(counted: Mapping[str, int], managed: str) -> ResourceList:
    named = {_CPU, _MEMORY, _PODS, managed}
    return _resources(
        milli_cpu=counted.get(_CPU, 0),
        memory=counted.get(_MEMORY, 0),
        gpus=counted.get(managed, 0),
        others=tuple(sorted(item for item in counted.items() if item[0] not in named)),
    )
