"""What a pod requests and what a node offers, as values of the cache."""

from collections.abc import Mapping
from functools import lru_cache

from linkwise.extender.api.records import ResourceList
from linkwise.kube.filters.requests import lenient_amount, pod_requests
from linkwise.kube.objects import LARGEST, Node, Pod
from linkwise.topology.demand import PodDemand

_resources = lru_cache(maxsize=1024)(ResourceList)  # one for equal ones, which are compared
_CPU, _MEMORY, _PODS = "cpu", "memory", "pods"
# No machine has as much. A kubelet may say anything up to LARGEST, to which the cache's arrays
# could add nothing: GPUs that come from claims, or what other nodes offer.
_MOST_OFFERED = 2**53


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
    return _resource_list({name: _offered(node, name) for name in allocatable}, managed)


def most_pods(node: Node) -> int:
    """How many pods the node takes. Every kubelet reports it; if one does not, kube-scheduler
    decides."""
    return _offered(node, _PODS) if _PODS in node.status.allocatable else 2**31


def _offered(node: Node, name: str) -> int:
    return min(lenient_amount(name, node.status.allocatable[name]), _MOST_OFFERED)


def _resource_list(counted: Mapping[str, int], managed: str) -> ResourceList:
    named = {_CPU, _MEMORY, _PODS, managed}
    return _resources(
        milli_cpu=counted.get(_CPU, 0),
        memory=counted.get(_MEMORY, 0),
        gpus=counted.get(managed, 0),
        others=tuple(sorted(item for item in counted.items() if item[0] not in named)),
    )
