"""What the API server does to Pods, Nodes and Jobs besides storing them. Pure.

Defaults at creation, fields that an update or a status update may not change, bindings, and how
long a deleted pod stays. As in Kubernetes v1.35: pkg/registry/core/{pod,node},
pkg/registry/batch/job and staging/src/k8s.io/apiserver.
"""

from datetime import datetime, timedelta
from typing import Any

from linkwise.simulator.api_server.kinds import BUDGET, EVENT, JOB, LEASE, NODE, POD, ResourceKind
from linkwise.simulator.api_server.metadata import (
    SUBDOMAIN_RULE,
    check_preconditions,
    is_subdomain,
)
from linkwise.simulator.api_server.refusals import (
    Object,
    bad_request,
    conflict,
    internal_error,
    invalid,
)

_FINAL_PHASES = ("Succeeded", "Failed")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_MAY_CHANGE = {"activeDeadlineSeconds", "schedulingGates", "terminationGracePeriodSeconds"}


def timestamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def set_condition(status: Object, condition: Object) -> Object:
    """Return *status* with this condition instead of the one of its type."""
    others = [c for c in status.get("conditions") or () if c.get("type") != condition["type"]]
    return status | {"conditions": [*others, condition]}


# Creation


def prepare_new(kind: ResourceKind, obj: Object, now: datetime) -> Object:
    """Return the object with defaults and an initial status. Raises RequestRefusedError 422."""
    if kind is POD:
        return _new_pod(obj, now)
    if kind is JOB:
        return obj | {"status": {}}
    if kind is NODE:
        return obj | {"spec": obj.get("spec") or {}, "status": _node_status(obj)}
    if kind is BUDGET:
        none = ("currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods")
        return obj | {"spec": obj.get("spec") or {}, "status": dict.fromkeys(none, 0)}
    if kind is EVENT:
        _check_event(obj)
    return _without_nulls(obj) if kind is LEASE else obj


def _without_nulls(lease: Object) -> Object:
    """Remove nulls: a Lease's holder is a field that is present or absent."""
    spec = lease.get("spec") or {}
    return lease | {"spec": {field: value for field, value in spec.items() if value is not None}}


def _check_event(event: Object) -> None:
    """An Event lives in its object's namespace; for an object without one, in `default`."""
    metadata, about = event["metadata"], event.get("involvedObject") or {}
    if metadata["namespace"] != (about.get("namespace") or "default"):
        why = f'Invalid value: "{about.get("namespace", "")}": does not match event.namespace'
        raise invalid("Event", metadata["name"], "involvedObject.namespace", why)


def _new_pod(pod: Object, now: datetime) -> Object:
    name, spec = pod["metadata"]["name"], pod.get("spec") or {}
    if not spec.get("containers"):
        raise invalid("Pod", name, "spec.containers", "Required value")
    defaults = {
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "priority": 0,
    }
    spec = _with_host_ports(defaults | spec)
    if "affinity" in spec:
        labels = pod["metadata"].get("labels") or {}
        spec["affinity"] = _with_merged_keys(spec["affinity"] or {}, labels)
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [
                _container(name, f"spec.{field}[{position}]", container)
                for position, container in enumerate(spec[field] or ())
            ]
    status: Object = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        if spec.get("nodeName"):
            why = "Forbidden: cannot be set until all schedulingGates have been cleared"
            raise invalid("Pod", name, "spec.nodeName", why)
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        message = "Scheduling is blocked due to non-empty scheduling gates"
        status = set_condition(
            status, gated | {"message": message, "lastTransitionTime": timestamp(now)}
        )
    return pod | {"spec": spec, "status": status}


def _with_host_ports(spec: Object) -> Object:
    """In the node's network, a container's port is the node's."""
    if not spec.get("hostNetwork"):
        return spec
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = [
                each | {"ports": [{"hostPort": p["containerPort"]} | p for p in each["ports"]]}
                if each.get("ports")
                else each
                for each in spec[field] or ()
            ]
    return spec


def _with_merged_keys(affinity: Object, labels: Object) -> Object:
    """Merge `matchLabelKeys` and `mismatchLabelKeys` of pod affinity terms into their selectors:
    only the API server reads these fields."""
    for field in ("podAffinity", "podAntiAffinity"):
        terms = (affinity.get(field) or {}).get(_REQUIRED)
        if terms:
            merged = [_with_keys(term, labels) for term in terms]
            affinity = affinity | {field: affinity[field] | {_REQUIRED: merged}}
    return affinity


def _with_keys(term: Object, labels: Object) -> Object:
    selector = term.get("labelSelector")
    more = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in term.get(field) or ()
        if key in labels
    ]
    if selector is None or not more:
        return term
    expressions = [*(selector.get("matchExpressions") or ()), *more]
    return term | {"labelSelector": selector | {"matchExpressions": expressions}}


def _container(pod: str, field: str, container: Any) -> Object:
    if not isinstance(container, dict) or not container.get("name"):
        raise invalid("Pod", pod, f"{field}.name", "Required value")
    resources = container.get("resources") or {}
    limits = _quantities(resources.get("limits"))
    # A limit without a request sets the request too.
    requests = limits | _quantities(resources.get("requests"))
    shown = {"limits": limits, "requests": requests}
    return container | {"resources": resources | {k: v for k, v in shown.items() if v}}


def _node_status(node: Object) -> Object:
    status = node.get("status") or {}
    for field in ("capacity", "allocatable"):
        if field in status:
            status = status | {field: _quantities(status[field])}
    if "capacity" in status and "allocatable" not in status:
        status = status | {"allocatable": status["capacity"]}
    return status


def _quantities(amounts: Any) -> dict[str, str]:
    """The API server returns quantities as text, whatever type a manifest has."""
    return {name: str(amount) for name, amount in (amounts or {}).items()}


# Updates


def prepare_update(kind: ResourceKind, old: Object, new: Object) -> Object:
    """Return *new* as an update of the object; its status stays. Raises RequestRefusedError 422."""
    if kind.has_status:
        new = {field: value for field, value in new.items() if field != "status"}
        if "status" in old:
            new["status"] = old["status"]
    if kind is POD:
        _check_pod_spec(old, new)
    return _without_nulls(new) if kind is LEASE else new


def _check_pod_spec(old: Object, new: Object) -> None:
    name, before, after = old["metadata"]["name"], old["spec"], new.get("spec") or {}
    gates = {gate["name"] for gate in before.get("schedulingGates") or ()}
    added = [g["name"] for g in after.get("schedulingGates") or () if g["name"] not in gates]
    if added:
        why = f"Forbidden: only deletion is allowed, but found new scheduling gate {added[0]!r}"
        raise invalid("Pod", name, "spec.schedulingGates", why)
    free = set(_MAY_CHANGE)
    if gates:
        _check_narrowed(name, before, after)
        free |= {"nodeSelector", "affinity"}
    if _fixed(before, free) != _fixed(after, free):
        why = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
            "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` "
            "(only additions to existing tolerations), `spec.terminationGracePeriodSeconds` "
            "(allow it to be set to 1 if it was previously negative)"
        )
        raise invalid("Pod", name, "spec", why)
    tolerations = after.get("tolerations") or []
    if any(toleration not in tolerations for toleration in before.get("tolerations") or ()):
        why = "Forbidden: existing toleration can not be modified except its tolerationSeconds"
        raise invalid("Pod", name, "spec.tolerations", why)


def _check_narrowed(name: str, before: Object, after: Object) -> None:
    """A gated pod's node selection may become narrower, never wider."""
    old, new = before.get("nodeSelector") or {}, after.get("nodeSelector") or {}
    if any(new.get(key) != value for key, value in old.items()):
        why = f"Invalid value: {new!r}: only additions to spec.nodeSelector are allowed"
        raise invalid("Pod", name, "spec.nodeSelector", why)
    if before.get("affinity") and after.get("affinity") != before["affinity"]:
        why = (
            "Invalid value: no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        )
        raise invalid("Pod", name, "spec.affinity.nodeAffinity", why)


def _fixed(spec: Object, free: set[str]) -> Object:
    fixed = {k: v for k, v in spec.items() if k not in free | {"tolerations"} and v is not None}
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [
                {k: v for k, v in container.items() if k != "image"} for container in fixed[field]
            ]
    return fixed


def prepare_status_update(kind: ResourceKind, old: Object, new: Object) -> Object:
    """Return *new* as an update of the status; it may also change labels and annotations."""
    metadata = new["metadata"]
    if "ownerReferences" in old["metadata"]:
        metadata = metadata | {"ownerReferences": old["metadata"]["ownerReferences"]}
    status = _node_status(new) if kind is NODE else new.get("status") or {}
    if kind is POD:
        _check_nomination(old, status)
    return old | {"metadata": metadata, "status": status}


def _check_nomination(old: Object, status: Object) -> None:
    nominated = status.get("nominatedNodeName")
    if not nominated or nominated == old["status"].get("nominatedNodeName"):
        return
    name, field = old["metadata"]["name"], "status.nominatedNodeName"
    if not is_subdomain(nominated):
        raise invalid("Pod", name, field, f'Invalid value: "{nominated}": {SUBDOMAIN_RULE}')
    if old["spec"].get("nodeName"):
        why = "Forbidden: may not be set on pods that are already bound to a node"
        raise invalid("Pod", name, field, why)


# Binding


def bind(pod: Object, binding: Object, now: datetime) -> Object:
    """Return the pod on its node, with the Binding's labels and annotations.

    Raises RequestRefusedError.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    name, told = metadata["name"], binding["metadata"]
    target = binding.get("target") or {}
    if told.get("name") != name:
        raise bad_request("name in URL does not match name in Binding object")
    if target.get("kind", "Node") not in ("Node", ""):
        # Validation does not catch this, and the real API server answers 500 too.
        raise internal_error(
            f'target.kind: Unsupported value: "{target["kind"]}": "Node", "<empty>"'
        )
    if not target.get("name"):
        raise internal_error("target.name: Required value")
    check_preconditions(POD, pod, told)
    if "deletionTimestamp" in metadata:
        raise _unbindable(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise _unbindable(name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise _unbindable(name, f"pod {name} has non-empty .spec.schedulingGates")
    for field in ("labels", "annotations"):
        if told.get(field):
            metadata = metadata | {field: (metadata.get(field) or {}) | told[field]}
    # A bound pod has no nomination (KEP-5278).
    status = {k: v for k, v in pod["status"].items() if k != "nominatedNodeName"}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": timestamp(now)}
    return pod | {
        "metadata": metadata,
        "spec": spec | {"nodeName": target["name"]},
        "status": set_condition(status, scheduled),
    }


def _unbindable(name: str, why: str) -> Exception:
    return conflict("pods/binding", name, why)


# Deletion


def disrupted(pod: Object, now: datetime) -> Object:
    """Return the pod with the condition that an eviction sets."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": timestamp(now),
    }
    return pod | {"status": set_condition(pod["status"], condition)}


def grace_seconds(kind: ResourceKind, obj: Object, asked: int | None) -> int:
    """Return how long a deleted object stays, in seconds.

    A pod on a node stays until its kubelet confirms, at most this long. A pod without a node or at
    its end goes at once, and so does every other object.
    """
    if kind is not POD or not obj["spec"].get("nodeName"):
        return 0
    if obj["status"].get("phase") in _FINAL_PHASES:
        return 0
    seconds = obj["spec"]["terminationGracePeriodSeconds"] if asked is None else asked
    return int(seconds) if seconds >= 0 else 1


def mark_deleted(kind: ResourceKind, obj: Object, asked: int | None, now: datetime) -> Object:
    """Mark the object as deleted. A second deletion can only shorten the grace period."""
    metadata = obj["metadata"]
    before = metadata.get("deletionGracePeriodSeconds")
    if before is None:
        grace, begun = grace_seconds(kind, obj, asked), now
    elif asked is None or asked >= before:
        return obj
    else:
        grace = asked if asked >= 0 else 1
        begun = datetime.fromisoformat(metadata["deletionTimestamp"]) - timedelta(seconds=before)
    end = timestamp(begun + timedelta(seconds=grace))
    marks = {"deletionTimestamp": end, "deletionGracePeriodSeconds": grace}
    return obj | {"metadata": metadata | marks}


def is_gone(obj: Object) -> bool:
    """True if the object is marked as deleted and nothing delays its removal."""
    metadata = obj["metadata"]
    return metadata.get("deletionGracePeriodSeconds") == 0 and not metadata.get("finalizers")
