"""Listings of clusters with a past: pods that have ended, run, or wait."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from tests.cli.what_if.asking import NOW, a_list, cluster, nodes_of
from tests.extender.cluster import Cluster
from tests.pods.podgrouper.pods import Object, owner, reference, template

BEGIN = NOW - 7 * 86400


def time(hours: float) -> str:
    """Return a time, in hours after the beginning, as Kubernetes writes it."""
    return datetime.fromtimestamp(BEGIN + hours * 3600, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def past_pod(
    name: str,
    gpus: int,
    created: float,
    bound: float | None = None,
    ended: float | None = None,
    *,
    node: str = "n1",
    by: Object | None = None,
    index: int | None = None,
    said: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """Return a pod. Times are hours after the beginning; *by* is its controller, *index* its place
    in an Indexed Job."""
    annotations = {f"linkwise.dev/{key}": text for key, text in (said or {}).items()}
    if index is not None:
        annotations["batch.kubernetes.io/job-completion-index"] = str(index)
    conditions, statuses = [], []
    if bound is not None:
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": time(bound)}
        conditions.append(scheduled)
        state: Object = {"running": {"startedAt": time(bound)}}
        if ended is not None:
            finished = {"startedAt": time(bound), "finishedAt": time(ended), "exitCode": 0}
            state = {"terminated": finished}
        statuses.append({"name": "main", "state": state})
    phase = "Pending" if bound is None else "Running" if ended is None else "Succeeded"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "ml",
            "uid": f"uid-{name}-{created}",
            "creationTimestamp": time(created),
            "annotations": annotations,
            "ownerReferences": [] if by is None else [reference(by)],
        },
        "spec": {
            **template(gpus)["spec"],
            "restartPolicy": "Never",
            **({"nodeName": node} if bound is not None else {}),
            **spec,
        },
        "status": {"phase": phase, "conditions": conditions, "containerStatuses": statuses},
    }


def a_job(name: str, pods: int) -> Object:
    """Return an Indexed Job whose pods all run at once, and that has ended."""
    counts = {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
    made = owner("batch/v1 Job", name, {**counts, "template": template(1)})
    return {**made, "status": {"succeeded": pods}}


def past(pods: Sequence[Object], *machines: str, objects: Sequence[Object] = ()) -> Object:
    """Return a listing of nodes n1, n2, … and these pods."""
    return a_list([*nodes_of(cluster(*(machines or ("dgx1-v100",)))), *pods, *objects])


def a_week() -> Object:
    """Return a week on two DGX-1V and two HGX H100: jobs of one to sixteen GPUs as kube-scheduler
    placed them, without Linkwise."""
    it = Cluster(now=NOW)
    for name, machine in (
        ("old-1", "dgx1-v100"),
        ("old-2", "dgx1-v100"),
        ("gpu-1", "hgx-h100"),
        ("gpu-2", "hgx-h100"),
    ):
        it.add_node(name, machine)
    made: list[Object] = []
    pods = [
        past_pod("notebook", 1, 0, 0.01, node="old-1"),
        past_pod("embed", 2, 2, 2.01, 30, node="old-2"),
        past_pod("label", 4, 3, 3.01, 70, node="gpu-1"),
        past_pod("eval-1", 1, 4, 4.01, 60, node="gpu-2"),
        past_pod("eval-2", 1, 5, 5.01, 90, node="old-2"),
        past_pod("large", 8, 40, 70.2, 110, node="gpu-1"),
        past_pod("tune", 8, 60, 71, 100, node="gpu-2"),
        past_pod("pair", 2, 80, 80.01, 120, node="old-1"),
        past_pod("huge", 8, 150, node="gpu-1"),
        past_pod("serve", 8, 112, 112.01, node="gpu-1"),
    ]
    for name, nodes, created, ended in (
        ("train", ("old-1", "old-2", "gpu-2", "gpu-1"), 10, 50),
        ("sweep", ("old-1", "old-1", "old-2", "old-2"), 20, 65),
        ("train-2", ("gpu-2", "gpu-2", "old-1", "old-2"), 120, 160),
    ):
        job = a_job(name, 4)
        made.append(job)
        pods += [
            past_pod(f"{name}-{n}", 1, created, created + 0.02, ended, by=job, index=n, node=node)
            for n, node in enumerate(nodes)
        ]
    return a_list([*nodes_of(it), *pods, *made])
