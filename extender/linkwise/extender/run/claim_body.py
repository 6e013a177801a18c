"""The ResourceClaim that names the planned GPUs, so that kube-scheduler gives exactly these.

docs/decisions/devices.md#46-late-claims has the reasons.
"""

from collections.abc import Mapping, Sequence

from linkwise.extender.state.actions import CreateClaim
from linkwise.kube.device_claims import VERSION, ResourceClaim
from linkwise.kube.fields import Fields, mapping
from linkwise.topology import names
from linkwise.topology.vendors.known import id_attribute

# Of the taint that keeps claims of others from GPUs that Linkwise plans.
_CLOSED = {"key": names.CLOSED, "operator": "Exists"}


def claim_body(action: CreateClaim, device_class: str, template: Fields | None) -> Fields:
    """*template*: the ResourceClaimTemplate of `action.template`, whose selectors, configuration
    and constraints hold too. Raises ValueError if its requests are not those of the plan."""
    if template is None:
        spec: Fields = {"devices": {"requests": [*_requests(action, device_class)]}}
        given: Fields = {}
    else:
        wrapped = mapping(template, "spec")
        spec, given = _pinned(action, mapping(wrapped, "spec")), mapping(wrapped, "metadata")
    labels, annotations = mapping(given, "labels"), mapping(given, "annotations")
    pod = action.pod
    return {
        "apiVersion": VERSION,
        "kind": "ResourceClaim",
        "metadata": {
            "name": action.name,
            "namespace": pod.namespace,
            "labels": labels,
            "annotations": {**annotations, names.EDITION: action.edition},
            # As its controller: kube-controller-manager deletes the claims of pods that have ended
            # by that alone. Else they would count in quotas until the pods are deleted.
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.name,
                    "uid": pod.uid,
                    "controller": True,
                }
            ],
        },
        "spec": spec,
    }


def is_claim_for(action: CreateClaim, claim: ResourceClaim) -> bool:
    """Whether it is the one that *action* creates."""
    owners = [owner.uid for owner in claim.metadata.owner_references]
    edition = claim.metadata.annotations.get(names.EDITION)
    return owners == [action.pod.uid] and edition == action.edition


def _requests(action: CreateClaim, device_class: str) -> Sequence[Fields]:
    return [
        {
            "name": name,
            "exactly": _exactly({"deviceClassName": device_class}, action.driver, uuids),
        }
        for name, uuids in action.gpus.items()
    ]


def _pinned(action: CreateClaim, spec: Fields) -> Fields:
    devices = mapping(spec, "devices")
    listed = devices.get("requests")
    requests = (
        [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    )
    if [each.get("name") for each in requests] != [*action.gpus]:
        raise ValueError(f"{action.template}: expected the requests {', '.join(action.gpus)}")
    pinned = [
        {**each, "exactly": _exactly(mapping(each, "exactly"), action.driver, uuids)}
        for each, uuids in zip(requests, action.gpus.values(), strict=True)
    ]
    return {**spec, "devices": {**devices, "requests": pinned}}


def _exactly(asked: Fields, driver: str, uuids: Sequence[str]) -> Fields:
    """*asked*, for these GPUs alone."""
    return {
        **asked,
        "allocationMode": "ExactCount",
        "count": len(uuids),
        "selectors": [*_list(asked, "selectors"), {"cel": {"expression": _names(driver, uuids)}}],
        "tolerations": [*_list(asked, "tolerations"), _CLOSED],
    }


def _list(fields: Fields, key: str) -> list[object]:
    found = fields.get(key)
    return found if isinstance(found, list) else []


def _names(driver: str, uuids: Sequence[str]) -> str:
    """A device without the attribute would end the whole search with an error."""
    quoted = ", ".join(f'"{uuid}"' for uuid in uuids)
    domain, name = id_attribute(driver)
    attribute = f'device.attributes["{domain}"].{name}'
    return f'device.driver == "{driver}" && has({attribute}) && {attribute} in [{quoted}]'
