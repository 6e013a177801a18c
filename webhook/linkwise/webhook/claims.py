"""PURE. The patch with which a pod waits for GPUs from a claim that the extender creates later.

Linkwise takes over pods of two forms (docs/decisions/devices.md#46-late-claims):

1. Containers take the extended resource. They refer to requests of the claim instead, one for each
   container. The kubelet hands the GPUs of an ended init container on to later containers. So an
   init container refers to the request of the first container after it, in the kubelet's order,
   that has as many GPUs or more and is no init container itself. If there is none, it has a
   request of its own.
2. The pod's one claim comes of a ResourceClaimTemplate whose requests are all for a fixed number of
   whole GPUs. The claim that the extender creates takes its place.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from linkwise.kube.objects import Container, Pod
from linkwise.pods.annotations import demand_of
from linkwise.pods.claims import (
    MOST_COUNT,
    MOST_REQUESTS,
    OBJECT_NAME,
    ClaimAsk,
    write_claims,
)
from linkwise.topology import names
from linkwise.topology.demand import PodDemand, Role

ENTRY = "linkwise-gpus"  # of `spec.resourceClaims`, where the pod has none for its GPUs
_EXACT_COUNT = "ExactCount"
Step = Mapping[str, object]


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    """Subclasses repeat `frozen` for the type checker."""


class _Exactly(_Struct, frozen=True):
    device_class_name: str = ""
    allocation_mode: str = _EXACT_COUNT
    count: int = 1
    admin_access: bool = False
    capacity: dict[str, object] | None = None  # a part of a device


class _Request(_Struct, frozen=True):
    name: str = ""
    exactly: _Exactly | None = None  # None: a list of alternatives


class _Devices(_Struct, frozen=True):
    requests: tuple[_Request, ...] = ()


class _ClaimSpec(_Struct, frozen=True):
    devices: _Devices = _Devices()


class _TemplateSpec(_Struct, frozen=True):
    spec: _ClaimSpec = _ClaimSpec()


class ClaimTemplate(_Struct, frozen=True):
    """A ResourceClaimTemplate of resource.k8s.io/v1."""

    spec: _TemplateSpec = _TemplateSpec()


ReadTemplate = Callable[[str, str], ClaimTemplate | None]
"""By namespace and name; None: it cannot be read."""


@dataclass(frozen=True, slots=True)
class NewClaim:
    """What is known of a claim before its pod is judged."""

    name: str
    template: ClaimTemplate | None = None  # the one that `template_of` names; None: not read


def template_of(pod: Pod, resource: str) -> str:
    """The ResourceClaimTemplate that has to be read before the pod can be judged; empty: none."""
    entries = pod.spec.resource_claims
    if len(entries) != 1 or entries[0].resource_claim_name or _takes(pod, resource).containers:
        return ""
    name = entries[0].resource_claim_template_name
    return name if OBJECT_NAME.fullmatch(name) else ""


def claim_steps(pod: Pod, resource: str, device_class: str, new: NewClaim) -> tuple[Step, ...]:
    """The steps that give the pod the *new* claim; empty: its GPUs come from no such claim."""
    demand = _takes(pod, resource)
    if demand.containers:
        return tuple(_instead_of_resource(pod, demand, resource, new.name))
    requests = _whole_devices(new.template, device_class) if new.template else {}
    template = template_of(pod, resource)
    if not (template and _is_in_bounds(requests)):
        return ()
    entry = pod.spec.resource_claims[0].name
    named = {"name": entry, "resourceClaimName": new.name}
    return (
        {"op": "replace", "path": "/spec/resourceClaims/0", "value": named},
        _annotation(pod, ClaimAsk(entry, new.name, requests, template)),
    )


def _takes(pod: Pod, resource: str) -> PodDemand:
    try:
        return demand_of(pod, resource)
    except ValueError:  # the API server refuses such a pod
        return PodDemand(())


def _is_in_bounds(requests: Mapping[str, int]) -> bool:
    few = 1 <= len(requests) <= MOST_REQUESTS
    return few and all(1 <= count <= MOST_COUNT for count in requests.values())


def _whole_devices(template: ClaimTemplate, device_class: str) -> dict[str, int]:
    """GPUs by request; none if a request is for anything but a number of whole ones."""
    found = {}
    for request in template.spec.spec.devices.requests:
        asked = request.exactly
        if (
            asked is None
            or asked.device_class_name != device_class
            or asked.allocation_mode != _EXACT_COUNT
            or asked.admin_access
            or asked.capacity
        ):
            return {}
        found[request.name] = asked.count
    return found


def _instead_of_resource(pod: Pod, demand: PodDemand, resource: str, claim: str) -> Iterator[Step]:
    spec = pod.spec
    used = _used(demand)
    requests = {c.name: c.gpus for c in demand.containers if used[c.name] == c.name}
    if not _is_in_bounds(requests) or any(each.name == ENTRY for each in spec.resource_claims):
        return
    for path, containers in (
        ("/spec/initContainers", spec.init_containers),
        ("/spec/containers", spec.containers),
    ):
        for place, container in enumerate(containers):
            yield from _of_container(f"{path}/{place}", container, resource, used)
    entry = {"name": ENTRY, "resourceClaimName": claim}
    yield _append("/spec/resourceClaims", spec.resource_claims, entry)
    yield _annotation(pod, ClaimAsk(ENTRY, claim, requests))


def _used(demand: PodDemand) -> dict[str, str]:
    """The request that each container refers to; those of its own have its name."""
    used = {}
    for place, container in enumerate(demand.containers):
        later = demand.containers[place + 1 :] if container.role is Role.INIT else ()
        reused = (c for c in later if c.role is not Role.INIT and c.gpus >= container.gpus)
        used[container.name] = next(reused, container).name
    return used


def _of_container(
    path: str, container: Container, resource: str, used: Mapping[str, str]
) -> Iterator[Step]:
    resources = container.resources
    for part, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        if resource in amounts:
            yield {"op": "remove", "path": f"{path}/resources/{part}/{_escaped(resource)}"}
    if container.name in used:
        use = {"name": ENTRY, "request": used[container.name]}
        yield _append(f"{path}/resources/claims", resources.claims, use)


def _annotation(pod: Pod, ask: ClaimAsk) -> Step:
    said, path = write_claims(ask), "/metadata/annotations"
    if pod.metadata.annotations:
        return {"op": "add", "path": f"{path}/{_escaped(names.CLAIMS)}", "value": said}
    return {"op": "add", "path": path, "value": {names.CLAIMS: said}}


def _append(path: str, present: Sequence[object], item: object) -> Step:
    if present:
        return {"op": "add", "path": f"{path}/-", "value": item}
    return {"op": "add", "path": path, "value": [item]}


def _escaped(key: str) -> str:
    """*key* as a part of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
