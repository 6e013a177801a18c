"""JobSets and LeaderWorkerSets as people write them. Their pods have their name as label `app`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld
from tests.cluster.support.scheduling.workload_pods import pod_template

GPUS = 8  # a whole node
JOB_SETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
LEADER_WORKER_SETS = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{NAMESPACE}/leaderworkersets"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
BATCH = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


def job_template(app: str, pods: int = 1, gpus: int = GPUS, **spec: Any) -> dict[str, Any]:
    """Return an Indexed Job's spec. Without GPUs, its pods ask for none."""
    template = pod_template(app, gpus)
    template["spec"]["restartPolicy"] = "Never"
    if not gpus:
        template["spec"]["containers"][0].pop("resources")
    return {
        "completions": pods,
        "parallelism": pods,
        "completionMode": "Indexed",
        "template": template,
        **spec,
    }


def replicated(
    name: str, job: Mapping[str, Any], *, replicas: int = 1, **more: Any
) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "template": {"spec": dict(job)}, **more}


def create_job_set(
    world: SchedulingWorld,
    name: str,
    jobs: Sequence[Mapping[str, Any]],
    *,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> None:
    world.client.post(
        JOB_SETS,
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "spec": {"replicatedJobs": [*jobs], **spec},
        },
    )


def create_in_order(world: SchedulingWorld, name: str) -> None:
    """One control pod, and one worker that the operator creates when that is ready."""
    jobs = [replicated(role, job_template(name)) for role in ("control", "worker")]
    create_job_set(world, name, jobs, startupPolicy={"startupPolicyOrder": "InOrder"})


def create_leader_worker_set(
    world: SchedulingWorld,
    name: str,
    *,
    size: int = 2,
    replicas: int = 1,
    startup: str = "LeaderCreated",
    restart: str = "RecreateGroupOnPodRestart",
    annotations: Mapping[str, str] | None = None,
) -> None:
    template = {
        "size": size,
        "restartPolicy": restart,
        "workerTemplate": pod_template(name, GPUS),
    }
    spec = {"replicas": replicas, "startupPolicy": startup, "leaderWorkerTemplate": template}
    world.client.post(
        LEADER_WORKER_SETS,
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": name, "annotations": dict(annotations or {})},
            "spec": spec,
        },
    )


def delete(world: SchedulingWorld, path: str, name: str) -> None:
    """As `kubectl delete` does: what it owns is collected afterwards."""
    world.client.delete(f"{path}/{name}")
