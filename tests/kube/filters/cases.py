"""Short ways to write the objects of a case."""

from typing import Any

from linkwise.kube.filters.rejection import Rejection
from tests.kube.filters.verdicts import rejections

Object = dict[str, Any]
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
WEB = {"app": "web"}
ROOM = {"cpu": "8", "memory": "64Gi", "pods": "10"}


def node(name: str, labels: Object | None = None, **spec: Any) -> Object:
    said = {HOST: name} | (labels or {})
    return {
        "metadata": {"name": name, "labels": said},
        "spec": spec,
        "status": {"allocatable": ROOM},
    }


def pod(
    name: str = "new",
    labels: Object | None = None,
    *,
    on: str = "",
    namespace: str = "default",
    leaving: bool = False,
    **spec: Any,
) -> Object:
    metadata = {"name": name, "uid": name, "namespace": namespace, "labels": labels or {}}
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "spec": {"nodeName": on, "containers": [{"name": "main"}], **spec},
    }


def term(labels: Object | None, key: str = HOST, **more: Any) -> Object:
    selector = {} if labels is None else {"labelSelector": {"matchLabels": labels}}
    return {"topologyKey": key, **selector, **more}


def near(*terms: Object) -> Object:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def apart(*terms: Object) -> Object:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


def case(new: Object, nodes: list[Object], pods: list[Object] | None = None, **more: Any) -> Object:
    return {"pod": new, "nodes": nodes, "pods": pods or [], **more}


def fits(
    new: Object, nodes: list[Object], pods: list[Object] | None = None, **more: Any
) -> list[str]:
    """The nodes that pass every filter."""
    found = rejections(case(new, nodes, pods, **more))
    return [name for name, rejection in found.items() if rejection is None]


def refused(
    new: Object, on: Object, pods: list[Object] | None = None, **more: Any
) -> Rejection | None:
    (found,) = rejections(case(new, [on], pods, **more)).values()
    return found


DELAYED = {
    "metadata": {"name": "delayed"},
    "provisioner": "ebs.csi.aws.com",
    "volumeBindingMode": "WaitForFirstConsumer",
}


def using(*claims: str, name: str = "new", on: str = "") -> Object:
    volumes = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
    return pod(name, on=on, volumes=volumes)


def claim(name: str = "data", volume: str = "", **more: Any) -> Object:
    bound = {"pv.kubernetes.io/bind-completed": "yes"} if volume else {}
    metadata = {"name": name, "namespace": "default", "annotations": bound}
    metadata |= more.pop("metadata", {})
    status = more.pop("status", {"phase": "Bound" if volume else "Pending"})
    spec = {"accessModes": ["ReadWriteOnce"], "volumeName": volume, **more}
    spec.setdefault("resources", {"requests": {"storage": "1Gi"}})
    return {"metadata": metadata, "spec": spec, "status": status}


def volume(name: str = "pv", zones: list[str] | None = None, **more: Any) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"}, **more}
    if zones:
        expression = {"key": ZONE, "operator": "In", "values": zones}
        required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        spec["nodeAffinity"] = {"required": required}
    labels = spec.pop("labels", {})
    phase = {"phase": spec.pop("phase", "Available")}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": phase}


def world(
    *claims: Object, volumes: tuple[Object, ...] = (), classes: tuple[Object, ...] = ()
) -> Object:
    return {
        "persistentVolumeClaims": claims,
        "persistentVolumes": volumes,
        "storageClasses": classes,
    }


def spread(skew: int = 1, labels: Object | None = WEB, key: str = ZONE, **more: Any) -> Object:
    selector = {} if labels is None else {"labelSelector": {"matchLabels": labels}}
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        **selector,
        **more,
    }
