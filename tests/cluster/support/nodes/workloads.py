"""Jobs as users write them. Each container prints the GPUs that it got, and runs until it is
stopped."""

from collections.abc import Mapping
from typing import Any

from linkwise.topology import names
from tests.cluster.support.programs.busybox import WORKLOAD

GPU = names.DEFAULT_RESOURCE
GIVEN = "NVIDIA_VISIBLE_DEVICES"
_SAY = f'echo "{GIVEN}=${GIVEN}"'
# Process 1 ignores signals by default, so every end would take the grace period. SIGTERM is a
# failure; SIGUSR1 says that the work is done. A container that has printed its GPUs handles both.
RUN = f"trap 'exit 143' TERM; trap 'exit 0' USR1; {_SAY}; sleep 2147483647 & wait"
_STUBBORN = f"{_SAY}; exec sleep 2147483647"
Manifest = dict[str, Any]


def pod(
    name: str,
    gpus: int | Mapping[str, int],
    *,
    init: Mapping[str, int] | None = None,
    sidecars: Mapping[str, int] | None = None,
    node: str = "",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    resource: str = GPU,
) -> Manifest:
    """Return a pod. *gpus*: of a container called main, or of each container by name. *sidecars*
    are restartable init containers, declared after those of *init*."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "annotations": dict(annotations or {}),
            "labels": dict(labels or {}),
        },
        "spec": _pod_spec(gpus, init=init, sidecars=sidecars, node=node, resource=resource),
    }


def job(name: str, gpus: int, *, pods: int = 1, gang: bool = False, node: str = "") -> Manifest:
    """Return an indexed Job; with *gang* its pods start together or not at all."""
    annotations = {names.GANG: name, names.GANG_SIZE: str(pods)} if gang else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "completionMode": "Indexed",
            "template": {
                "metadata": {"annotations": annotations},
                "spec": {**_pod_spec(gpus, node=node), "restartPolicy": "Never"},
            },
        },
    }


def deployment(
    name: str,
    gpus: int,
    *,
    replicas: int,
    node: str = "",
    gated: bool = False,
    stubborn: bool = False,
) -> Manifest:
    """Return a Deployment. *gated* pods are planned before the scheduler tries them; *stubborn*
    ones end only with their grace period."""
    labels = {"app": name}
    spec = _pod_spec(gpus, node=node, stubborn=stubborn)
    if gated:
        spec["schedulingGates"] = [{"name": names.GATE}]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def _pod_spec(
    gpus: int | Mapping[str, int],
    *,
    init: Mapping[str, int] | None = None,
    sidecars: Mapping[str, int] | None = None,
    node: str = "",
    stubborn: bool = False,
    resource: str = GPU,
) -> Manifest:
    run = _STUBBORN if stubborn else RUN
    main = {"main": gpus} if isinstance(gpus, int) else gpus
    return {
        "initContainers": [
            *(_container(name, count, _SAY, resource) for name, count in (init or {}).items()),
            *(
                {**_container(name, count, run, resource), "restartPolicy": "Always"}
                for name, count in (sidecars or {}).items()
            ),
        ],
        "containers": [_container(name, count, run, resource) for name, count in main.items()],
        "terminationGracePeriodSeconds": 3 if stubborn else 5,
        **({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}),
    }


def _container(name: str, gpus: int, script: str, resource: str) -> Manifest:
    return {
        "name": name,
        "image": WORKLOAD,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": {"limits": {resource: str(gpus)} if gpus else {}},
    }
