"""Minimal Pods, Bindings and patches that an API server accepts."""

from typing import Any

from linkwise.topology import names
from tests.cluster.support.api.accounts import NAMESPACE


def noted(**annotations: str | None) -> dict[str, Any]:
    """Return a patch of annotations below `linkwise.dev/`."""
    notes = {names.PREFIX + key.replace("_", "-"): text for key, text in annotations.items()}
    return {"metadata": {"annotations": notes}}


def labelled(key: str, text: str | None) -> dict[str, Any]:
    return {"metadata": {"labels": {key: text}}}


def pod(
    name: str,
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    gates: tuple[str, ...] = (),
) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "annotations": annotations or {},
            "labels": labels or {},
        },
        "spec": {
            "containers": [{"name": "main", "image": "none"}],
            "schedulingGates": [{"name": gate} for gate in gates],
        },
    }


def binding(
    name: str, annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "annotations": annotations or {},
            "labels": labels or {},
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
    }


def role_binding(name: str, account: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "cluster-admin",
        },
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
    }


def event(name: str) -> dict[str, Any]:
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": "ml", "name": "waiting"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "ml"},
        "involvedObject": involved,
        "reason": "GangWaits",
        "type": "Normal",
    }


def eviction(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ml"}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
