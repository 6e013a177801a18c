"""Pods that Kubernetes' own controllers create, without a kubelet."""

from typing import Any

from linkwise.topology import names
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
