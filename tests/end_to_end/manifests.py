"""The pods and jobs of the tests' workloads, as a user writes them."""

from collections.abc import Mapping, Sequence
from typing import Any

from linkwise.topology import names
from linkwise.topology.names import DEFAULT_RESOURCE

RUN_SECONDS = "simulator.linkwise.dev/run-seconds"


def container(name: str, gpus: int, *, sidecar: bool = False) -> dict[str, Any]:
    amounts = {"cpu": "1", "memory": "1Gi"} | ({DEFAULT_RESOURCE: str(gpus)} if gpus else {})
    body = {"name": name, "image": "registry.example/train:1", "resources": {"limits": amounts}}
    return body | ({"restartPolicy": "Always"} if sidecar else {})


def pod(
    name: str,
    gpus: int = 0,
    *,
    containers: Sequence[dict[str, Any]] = (),
    init: Sequence[dict[str, Any]] = (),
    said: Mapping[str, str] | None = None,
    run_seconds: float | None = None,
    priority: int = 0,
    node: str = "",
    gated: bool = False,
) -> dict[str, Any]:
    """*said*: annotations without their prefix. *node*: put there past every scheduler. *gated*:
    behind the extender's gate."""
    annotations = {names.PREFIX + key: text for key, text in (said or {}).items()}
    if run_seconds is not None:
        annotations[RUN_SECONDS] = str(run_seconds)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ml", "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "priority": priority,
            "terminationGracePeriodSeconds": 1,
            "containers": list(containers) or [container("main", gpus)],
            "initContainers": list(init),
            **({"nodeName": node} if node else {}),
            **({"schedulingGates": [{"name": names.GATE}]} if gated else {}),
        },
    }


def gang(
    name: str,
    size: int,
    gpus: int,
    *,
    least: int | None = None,
    timeout: str = "",
    members: int | None = None,
    gated: bool = False,
) -> list[dict[str, Any]]:
    """*members*: how many of its *size* come; *least*: how many are enough to start."""
    said = {"gang": name, "gang-size": str(size)}
    if least is not None:
        said["gang-min"] = str(least)
    if timeout:
        said["gang-timeout"] = timeout
    return [
        pod(f"{name}-{rank}", gpus, said={**said, "rank": str(rank)}, gated=gated)
        for rank in range(size if members is None else members)
    ]


def in_order(
    name: str, drivers: int, workers: int, gpus: int, *, gated: bool = False
) -> dict[str, Any]:
    """The workers are created when the drivers are ready."""
    template = _labelled(name, gpus, gated=gated)

    def replicated(role: str, size: int) -> dict[str, Any]:
        spec = {"completions": size, "parallelism": size, "completionMode": "Indexed"}
        job = {**spec, "backoffLimit": 100, "template": template}
        return {"name": role, "replicas": 1, "template": {"spec": job}}

    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
            "replicatedJobs": [replicated("driver", drivers), replicated("worker", workers)],
        },
    }


def leader_ready(name: str, size: int, gpus: int, *, gated: bool = False) -> dict[str, Any]:
    """The workers are created when the leader is ready."""
    within = {"size": size, "workerTemplate": _labelled(name, gpus, gated=gated)}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": within},
    }


def _labelled(name: str, gpus: int, *, gated: bool) -> dict[str, Any]:
    return {"metadata": {"labels": {"app": name}}, "spec": pod(name, gpus, gated=gated)["spec"]}


def gang_job(
    name: str,
    size: int,
    gpus: int,
    *,
    timeout: str = "",
    run_seconds: float | None = None,
    gated: bool = False,
) -> dict[str, Any]:
    template = gang(name, size, gpus, timeout=timeout, members=1, gated=gated)[0]
    annotations = template["metadata"]["annotations"]
    del annotations[names.RANK]  # the index that the Job writes is the rank
    if run_seconds is not None:
        annotations[RUN_SECONDS] = str(run_seconds)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {
            "completions": size,
            "parallelism": size,
            "completionMode": "Indexed",
            "backoffLimit": 100,
            "template": {"metadata": {"annotations": annotations}, "spec": template["spec"]},
        },
    }
