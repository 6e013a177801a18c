"""What a pod requests and what a node offers, as kube-scheduler sums it."""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from linkwise.extender.api.records import ResourceList
from linkwise.kube.objects import LARGEST, Node, Pod, PodSpec, Quantity, Resources, milli, whole
from linkwise.topology.demand import PodDemand

_resources = lru_cache(maxsize=1024)(ResourceList)  # one for equal ones, which are compared
_CPU, _MEMORY, _PODS = "cpu", "memory", "pods"
_HUGEPAGES = "hugepages-"


def pod_needs(pod: Pod, demand: PodDemand, managed: str) -> ResourceList:
    """Kubernetes' sum: containers and sidecars together, or an init container while it runs.
    *demand* is that for the *managed* resource."""
    spec = pod.spec
    together, peak = Counter[str](), Counter[str]()
    for container in spec.init_containers:
        need = _requested(container.resources)
        if container.restart_policy == "Always":
            together += need
            peak |= together
        else:
            peak |= together + need
    for container in spec.containers:
        together += _requested(container.resources)
    found = _with_whole_pod(spec, together | peak) + Counter(_amounts(spec.overhead))
    # Capped, since a sum of capped quantities may exceed what the cache's arrays can store.
    capped = {name: min(amount, LARGEST) for name, amount in found.items()}
    return _resource_list({**capped, managed: min(demand.gpus, LARGEST)}, managed)


def node_offers(node: Node, managed: str) -> ResourceList:
    """What pods may request of the node in all."""
    return _resource_list(_amounts(node.status.allocatable), managed)


def most_pods(node: Node) -> int:
    """How many pods the node takes. Every kubelet reports it; if one does not, kube-scheduler
    decides."""
    allocatable = node.status.allocatable
    return _amount(_PODS, allocatable[_PODS]) if _PODS in allocatable else 2**31


def _resource_list(amounts: Mapping[str, int], managed: str) -> ResourceList:
    named = {_CPU, _MEMORY, _PODS, managed}
    return _resources(
        milli_cpu=amounts.get(_CPU, 0),
        memory=amounts.get(_MEMORY, 0),
        gpus=amounts.get(managed, 0),
        others=tuple(sorted(item for item in amounts.items() if item[0] not in named)),
    )


def _with_whole_pod(spec: PodSpec, found: Counter[str]) -> Counter[str]:
    """If the pod as a whole declares requests, they replace the sum of its containers."""
    for name, amount in _requested(spec.resources).items():
        if name in (_CPU, _MEMORY) or name.startswith(_HUGEPAGES):
            found[name] = amount
    return found


def _requested(resources: Resources) -> Counter[str]:
    """A limit without a request is one, as the API server has it."""
    return Counter(_amounts({**resources.limits, **resources.requests}))


def _amounts(quantities: Mapping[str, Quantity]) -> dict[str, int]:
    return {name: _amount(name, quantity) for name, quantity in quantities.items()}


def _amount(name: str, quantity: Quantity) -> int:
    try:
        return milli(quantity) if name == _CPU else whole(quantity)
    except ValueError:
        return 0  # the API server refuses such objects; a fake's mistake must not stop the extender
