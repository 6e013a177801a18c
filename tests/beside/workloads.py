"""Workloads of operators as people write them. Their pods have their name as label `app`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.support.scheduling.extender_process import GPU
from tests.cluster.support.scheduling.scheduling_world import NAMESPACE, SchedulingWorld
from tests.cluster.support.scheduling.workload_pods import pod_template

GPUS = 8  # a whole node
JOB_SETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{NAMESPACE}/jobsets"
LEADER_WORKER_SETS = f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{NAMESPACE}/leaderworkersets"
PYTORCH_JOBS = f"/apis/kubeflow.org/v1/namespaces/{NAMESPACE}/pytorchjobs"
RAY_CLUSTERS = f"/apis/ray.io/v1/namespaces/{NAMESPACE}/rayclusters"
MPI_JOBS = f"/apis/kubeflow.org/v2beta1/namespaces/{NAMESPACE}/mpijobs"
TRAIN_JOBS = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
BATCH = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


def create_job(world: SchedulingWorld, name: str, pods: int = 2, **metadata: Any) -> None:
    made = {"metadata": {"name": name, **metadata}, "spec": job_template(name, pods)}
    world.client.post(BATCH, made)


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
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> None:
    world.client.post(
        JOB_SETS,
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {
                "name": name,
                "annotations": dict(annotations or {}),
                "labels": dict(labels or {}),
            },
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
    labels: Mapping[str, str] | None = None,
) -> None:
    metadata = {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})}
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
            "metadata": metadata,
            "spec": spec,
        },
    )


def create_pytorch_job(
    world: SchedulingWorld, name: str, workers: int = 1, **run_policy: Any
) -> None:
    """The shape of the operator's `examples/pytorch/simple.yaml`."""

    def role(replicas: int) -> dict[str, Any]:
        template = pod_template(name, GPUS)
        template["spec"]["containers"][0]["name"] = "pytorch"
        return {"replicas": replicas, "restartPolicy": "OnFailure", "template": template}

    world.client.post(
        PYTORCH_JOBS,
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name},
            "spec": {
                "runPolicy": run_policy,
                "pytorchReplicaSpecs": {"Master": role(1), "Worker": role(workers)},
            },
        },
    )


def create_mpi_job(
    world: SchedulingWorld, name: str, workers: int = 2, *, launcher_gpus: int = 0, **spec: Any
) -> None:
    """The shape of the operator's `examples/v2beta1/pi/pi.yaml`. Pods without GPUs have no label:
    they take no node."""

    def role(gpus: int, replicas: int, container: str) -> dict[str, Any]:
        template = pod_template(name, gpus)
        template["spec"]["containers"][0]["name"] = container
        if not gpus:
            template["metadata"].pop("labels")
            template["spec"]["containers"][0].pop("resources")
        return {"replicas": replicas, "template": template}

    roles = {
        "Launcher": role(launcher_gpus, 1, "mpi-launcher"),
        "Worker": role(GPUS, workers, "mpi-worker"),
    }
    world.client.post(
        MPI_JOBS,
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": {"name": name},
            "spec": {"slotsPerWorker": GPUS, "mpiReplicaSpecs": roles, **spec},
        },
    )


def ray_worker_group(name: str, workers: int) -> dict[str, Any]:
    return {
        "groupName": "workergroup",
        "replicas": workers,
        "minReplicas": 1,
        "maxReplicas": 5,
        "rayStartParams": {},
        "template": pod_template(name, GPUS),
    }


def create_ray_cluster(world: SchedulingWorld, name: str, workers: int = 1) -> None:
    """The shape of the operator's `config/samples/ray-cluster.sample.yaml`."""
    group = ray_worker_group(name, workers)
    head = {"rayStartParams": {}, "template": pod_template(name, GPUS)}
    world.client.post(
        RAY_CLUSTERS,
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": name},
            "spec": {"rayVersion": "2.46.0", "headGroupSpec": head, "workerGroupSpecs": [group]},
        },
    )


def create_train_job(
    world: SchedulingWorld, name: str, nodes: int, *, runtime: str, roles: Sequence[str]
) -> None:
    """The shape of Trainer's `examples/yaml/02-runtime-patches.yaml`. A patch gives the pods of
    these *roles* of the runtime their label."""
    labelled = {"metadata": {"labels": {"app": name}}}
    jobs = [{"name": role, "template": {"spec": {"template": labelled}}} for role in roles]
    patch = {"template": {"spec": {"replicatedJobs": jobs}}}
    spec = {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
            "name": runtime,
        },
        "trainer": {"numNodes": nodes, "resourcesPerNode": {"limits": {GPU: str(GPUS)}}},
        "runtimePatches": [{"manager": "example.com/tests", "trainingRuntimeSpec": patch}],
    }
    world.client.post(
        TRAIN_JOBS,
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": name},
            "spec": spec,
        },
    )


def delete(world: SchedulingWorld, path: str, name: str) -> None:
    """What it owns is collected afterwards; of a Job before, as its pods would be orphaned."""
    world.client.delete(f"{path}/{name}", foreground=path == BATCH)
