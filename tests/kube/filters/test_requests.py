"""What a pod requests while it is resized in place. The simulator's tests have the rest."""

from typing import Any

import msgspec
import pytest

from linkwise.kube.filters.requests import pod_requests
from linkwise.kube.objects import Pod

Json = dict[str, Any]


def resizing(asked: str, allocated: str, in_effect: str, reason: str = "") -> Pod:
    """A pod with a container, and a sidecar of one CPU; the kubelet has given *reason*."""
    container: Json = {"name": "main", "resources": {"requests": {"cpu": asked, "memory": "1Gi"}}}
    sidecar: Json = {
        "name": "side",
        "restartPolicy": "Always",
        "resources": {"requests": {"cpu": "1"}},
    }
    status = {
        "name": "main",
        "allocatedResources": {"cpu": allocated, "memory": "1Gi"},
        "resources": {"requests": {"cpu": in_effect, "memory": "1Gi"}},
    }
    pending = {"type": "PodResizePending", "status": "True", "reason": reason}
    return msgspec.convert(
        {
            "spec": {"containers": [container], "initContainers": [sidecar]},
            "status": {"containerStatuses": [status], "conditions": [pending] if reason else []},
        },
        Pod,
    )


@pytest.mark.parametrize(
    ("pod", "cpu"),
    [
        (resizing("2", "2", "2"), 3000),
        (resizing("2000m", "2", "2"), 3000),
        (resizing("4", "2", "2"), 5000),
        (resizing("2", "4", "2"), 5000),
        (resizing("2", "2", "4"), 5000),
        (resizing("4", "2", "2", "Deferred"), 5000),
        (resizing("400", "2", "2", "Infeasible"), 3000),
        (resizing("400", "2", "4", "Infeasible"), 5000),
    ],
    ids=str,
)
def test_a_pod_that_is_resized_counts_with_the_most_it_may_have(pod: Pod, cpu: int) -> None:
    assert pod_requests(pod) == {"cpu": cpu, "memory": 2**30}


def test_a_kubelet_that_cannot_resize_does_not_count() -> None:
    """It says what is allocated, and nothing of what is in effect."""
    pod = resizing("2", "4", "4")
    (status,) = pod.status.container_statuses
    silent = msgspec.structs.replace(status, resources=None)
    pod = msgspec.structs.replace(
        pod, status=msgspec.structs.replace(pod.status, container_statuses=(silent,))
    )
    assert pod_requests(pod)["cpu"] == 3000
