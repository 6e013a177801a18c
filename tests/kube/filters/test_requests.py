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


class Counted(int):
    """It counts how often any of them is compared."""

    compared = 0

    def __add__(self, other: int) -> "Counted":
        return Counted(int(self) + int(other))

    __radd__ = __add__

    def __gt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) > int(other)


@pytest.mark.parametrize("restart_policy", ["Always", ""])
def test_containers_with_resources_of_their_own_are_not_looked_at_for_each_other(
    restart_policy: str,
) -> None:
    """A tenant may write thousands."""

    def some(where: str, **more: str) -> list[Json]:
        asked = [{"requests": {f"x.com/{where}{number}": "1"}} for number in range(200)]
        return [{"name": f"{where}{n}", "resources": r, **more} for n, r in enumerate(asked)]

    spec = {
        "initContainers": some("i", restartPolicy=restart_policy),
        "containers": some("c"),
    }
    pod = msgspec.convert({"spec": spec}, Pod)
    Counted.compared = 0
    total = pod_requests(pod, lambda _, quantity: Counted(quantity))
    assert total == {f"x.com/{where}{number}": 1 for where in "ic" for number in range(200)}
    assert Counted.compared < 4_000


def test_an_init_container_counts_with_the_sidecars_before_it() -> None:
    def container(cpu: str, **more: str) -> Json:
        return {"name": f"c{cpu}", "resources": {"requests": {"cpu": cpu}}, **more}

    begins = [
        container("8"),
        container("1", restartPolicy="Always"),
        container("5"),
        container("2", restartPolicy="Always"),
    ]
    for main, cpu in (("1", 8000), ("6", 9000)):
        spec = {"initContainers": begins, "containers": [container(main)]}
        assert pod_requests(msgspec.convert({"spec": spec}, Pod)) == {"cpu": cpu}
