"""What a pod requests of a node, as kube-scheduler's NodeResourcesFit sums it."""

from collections import Counter
from collections.abc import Callable, Mapping

from linkwise.kube.objects import (
    Container,
    ContainerStatus,
    Pod,
    Quantity,
    Resources,
    milli,
    whole,
)

_CPU, _MEMORY, _HUGEPAGES = "cpu", "memory", "hugepages-"

Amount = Callable[[str, Quantity], int]


def amount(resource: str, quantity: Quantity) -> int:
    """Thousandths of a CPU, whole units of all else. Raises ValueError if it is no quantity."""
    return milli(quantity) if resource == _CPU else whole(quantity)


def lenient_amount(resource: str, quantity: Quantity) -> int:
    """0 if it is no quantity: the API server refuses such objects, and a fake's mistake must not
    stop the extender."""
    try:
        return amount(resource, quantity)
    except ValueError:
        return 0


def pod_requests(pod: Pod, read: Amount = amount) -> Counter[str]:
    """Resource -> what *read* makes of its quantities.

    Containers and sidecars add up. Ordinary init containers count by their largest moment together
    with the sidecars before them (KEP-753). What the pod requests as a whole takes precedence. The
    overhead is added. A container that is being resized in place (KEP-1287) counts as the largest
    of its `Resized` lists.
    """
    lists = resized(pod)

    def request(container: Container) -> Counter[str]:
        found = Counter[str]()
        for each in lists.get(container.name) or (_requested(container.resources),):
            found |= _counted(each, read)
        return found

    # Only what the container itself requests is looked at: each may request resources of its own.
    # All else is in `together` at the end.
    spec = pod.spec
    together, peak = Counter[str](), Counter[str]()
    for container in spec.init_containers:
        wanted = request(container)
        if container.restart_policy == "Always":
            together.update(wanted)
        else:
            for name, needed in wanted.items():
                peak[name] = max(peak[name], together[name] + needed)
    for container in spec.containers:
        together.update(request(container))
    total = together | peak
    for name, needed in _counted(_requested(spec.resources), read).items():
        if name in (_CPU, _MEMORY) or name.startswith(_HUGEPAGES):
            total[name] = needed
    return total + _counted(spec.overhead, read)


Resized = dict[str, tuple[Mapping[str, Quantity], ...]]
"""Container -> what it asks for, has been allocated, and has in effect."""


def resized(pod: Pod) -> Resized:
    """The containers and sidecars whose status says something else than their spec. What is asked
    for is left out if the kubelet says that it never fits the node."""
    status = pod.status
    statuses = {
        each.name: each for each in (*status.container_statuses, *status.init_container_statuses)
    }
    if not statuses:
        return {}
    never = any(
        each.type == "PodResizePending" and each.reason == "Infeasible"
        for each in status.conditions
    )
    sidecars = (c for c in pod.spec.init_containers if c.restart_policy == "Always")
    found: Resized = {}
    for container in (*pod.spec.containers, *sidecars):
        said = statuses.get(container.name)
        if said is None:
            continue
        has = _said(said)
        # As they are written: another spelling of the same only costs time.
        if any(each != container.resources.requests for each in has):
            found[container.name] = has if never else (_requested(container.resources), *has)
    return found


def _said(status: ContainerStatus) -> tuple[Mapping[str, Quantity], ...]:
    """A kubelet that cannot resize says nothing of what is in effect."""
    if status.resources is None:
        return ()
    lists = status.allocated_resources, status.resources.requests
    return tuple(each for each in lists if each)


def _requested(resources: Resources) -> Mapping[str, Quantity]:
    """A limit without a request is one, as the API server has it."""
    return {**resources.limits, **resources.requests}


def _counted(quantities: Mapping[str, Quantity], read: Amount) -> Counter[str]:
    return Counter({name: read(name, quantity) for name, quantity in quantities.items()})
