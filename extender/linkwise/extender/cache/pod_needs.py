"""CPU, memory and GPUs that a pod requests, as kube-scheduler sums them."""

from collections.abc import Callable
from functools import lru_cache

from linkwise.extender.api.records import ResourceList
from linkwise.kube.objects import LARGEST, Container, Pod, PodSpec, Quantity, milli, whole
from linkwise.topology.demand import PodDemand

_resources = lru_cache(maxsize=1024)(ResourceList)  # one for equal pods, which are compared


def pod_needs(pod: Pod, demand: PodDemand) -> ResourceList:
    """Kubernetes' sum: containers and sidecars together, or an init container while it runs."""
    spec = pod.spec
    together = [0, 0]
    peak = [0, 0]
    for container in spec.init_containers:
        need = _request(container)
        if container.restart_policy == "Always":
            together = [have + more for have, more in zip(together, need, strict=True)]
            peak = [max(pair) for pair in zip(peak, together, strict=True)]
        else:
            moment = [have + more for have, more in zip(together, need, strict=True)]
            peak = [max(pair) for pair in zip(peak, moment, strict=True)]
    for container in spec.containers:
        together = [have + more for have, more in zip(together, _request(container), strict=True)]
    cpu, memory = (max(pair) for pair in zip(peak, together, strict=True))
    cpu, memory = _of_whole_pod(spec, cpu, memory)
    # Capped, since a sum of capped quantities may exceed what the cache's arrays can store.
    return _resources(
        milli_cpu=min(cpu + quantity_of(spec.overhead.get("cpu"), milli), LARGEST),
        memory=min(memory + quantity_of(spec.overhead.get("memory"), whole), LARGEST),
        gpus=min(demand.gpus, LARGEST),
    )


def _of_whole_pod(spec: PodSpec, cpu: int, memory: int) -> tuple[int, int]:
    """If the pod as a whole declares requests, they replace the sum of its containers."""
    requests, limits = spec.resources.requests, spec.resources.limits
    if "cpu" in requests or "cpu" in limits:
        cpu = quantity_of(requests.get("cpu", limits.get("cpu")), milli)
    if "memory" in requests or "memory" in limits:
        memory = quantity_of(requests.get("memory", limits.get("memory")), whole)
    return cpu, memory


def _request(container: Container) -> tuple[int, int]:
    resources = container.resources
    return (
        quantity_of(resources.requests.get("cpu", resources.limits.get("cpu")), milli),
        quantity_of(resources.requests.get("memory", resources.limits.get("memory")), whole),
    )


def quantity_of(quantity: Quantity | None, read: Callable[[Quantity], int]) -> int:
    if quantity is None:
        return 0
    try:
        return read(quantity)
    except ValueError:
        return 0  # the API server refuses such objects; a fake's mistake must not stop the extender
