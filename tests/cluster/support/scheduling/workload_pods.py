"""Pods that Kubernetes' own controllers create, without a kubelet, and the kinds of operators."""

import json
from collections.abc import Iterable
from typing import Any

from linkwise.pods.podgrouper.workloads.kinds import OwnerKind
from linkwise.topology import names
from tests.cluster.support.api.control_plane import ControlPlane
from tests.cluster.support.scheduling.extender_process import GPU
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld

# No controller that judges nodes, as these have no kubelets, and no garbage collector, as some
# owners do not exist.
CONTROLLERS = "job-controller,statefulset-controller,replicaset-controller,deployment-controller"


def free(world: SchedulingWorld, name: str) -> None:
    """Delete the pod. Finalizers of a Job's pods wait for a Job that is gone."""
    world.client.patch(
        f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", {"metadata": {"finalizers": None}}
    )
    world.delete(name)


def pod_template(name: str, gpus: int, **said: str) -> dict[str, Any]:
    resources = {"limits": {GPU: str(gpus)}}
    annotations = {names.PREFIX + key.replace("_", "-"): text for key, text in said.items()}
    return {
        "metadata": {"labels": {"app": name}, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": resources}]},
    }


def pods_of(world: SchedulingWorld, app: str) -> list[str]:
    return sorted(
        pod.metadata.name for pod in world.pods() if pod.metadata.labels.get("app") == app
    )


def define(control: ControlPlane, kinds: Iterable[OwnerKind]) -> None:
    """Create a custom resource for each kind; `wait_defined` says when they can be used."""
    items = [_definition(kind) for kind in kinds]
    bodies = json.dumps({"kind": "List", "apiVersion": "v1", "items": items})
    control.kubectl("create", "-f=-", stdin=bodies)


def wait_defined(control: ControlPlane) -> None:
    control.kubectl("wait", "crd", "--all", "--for=condition=Established", "--timeout=60s")


def _definition(kind: OwnerKind) -> dict[str, Any]:
    """Return a custom resource of this kind without a schema."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    versions = [
        {
            "name": name,
            "served": True,
            "storage": name == kind.versions[0],
            "schema": {"openAPIV3Schema": anything},
        }
        for name in kind.versions
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            # Required for groups that end in k8s.io.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": kind.group,
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "scope": "Namespaced",
            "versions": versions,
        },
    }
