"""The kinds of workloads whose lives are all alike, in two pods with a node each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.beside.workloads import (
    BATCH,
    JOB_SETS,
    LEADER_WORKER_SETS,
    PYTORCH_JOBS,
    RAY_CLUSTERS,
    TRAIN_JOBS,
    create_job,
    create_job_set,
    create_leader_worker_set,
    create_pytorch_job,
    create_ray_cluster,
    create_train_job,
    job_template,
    ray_worker_group,
    replicated,
)
from tests.cluster.support.programs.operators import (
    JOB_SET,
    KUBERAY,
    LEADER_WORKER_SET,
    TRAINER,
    TRAINING_OPERATOR,
    Operator,
    selected,
)
from tests.cluster.support.scheduling.scheduling_world import SchedulingWorld

_RUNTIME = Path("manifests/base/runtimes/torch_distributed.yaml")
Patch = Mapping[str, Any]
Create = Callable[[SchedulingWorld, str, int], None]


@dataclass(frozen=True)
class Kind:
    """*create* takes world, name and number of pods. *suspend* and *grow* return a patch that
    suspends or resumes, and one for another number of pods; None: the operator cannot do that."""

    name: str
    path: str
    create: Create
    operators: tuple[Operator, ...] = ()
    suspend: Callable[[bool], Patch] | None = None
    grow: Callable[[int], Patch] | None = None
    grown: int = 3  # pods
    ttl: Patch | None = None
    create_that_one_pod_ends: Create | None = None  # once the first pod has succeeded
    recreates: bool = True  # the pod that failed alone


def _job_set(world: SchedulingWorld, name: str, pods: int) -> None:
    create_job_set(world, name, [replicated("worker", job_template(name), replicas=pods)])


def _job_that_one_pod_ends(world: SchedulingWorld, name: str, pods: int) -> None:
    spec = job_template(name, pods, successPolicy={"rules": [{"succeededIndexes": "0"}]})
    world.client.post(BATCH, {"metadata": {"name": name}, "spec": spec})


def _job_set_that_one_pod_ends(world: SchedulingWorld, name: str, pods: int) -> None:
    jobs = [replicated("worker", job_template(name), replicas=pods)]
    create_job_set(world, name, jobs, successPolicy={"operator": "Any"})


def _pytorch_job_that_its_master_ends(world: SchedulingWorld, name: str, pods: int) -> None:
    create_pytorch_job(world, name, pods - 1, cleanPodPolicy="Running")


def _leader_worker_set(world: SchedulingWorld, name: str, pods: int) -> None:
    create_leader_worker_set(world, name, size=pods)


def _train_job(world: SchedulingWorld, name: str, pods: int) -> None:
    create_train_job(world, name, pods, runtime="torch-distributed", roles=["node"])


def _of_spec(**spec: Any) -> Patch:
    return {"spec": spec}


KINDS = (
    Kind(
        "job",
        BATCH,
        create_job,
        suspend=lambda on: _of_spec(suspend=on),
        grow=lambda pods: _of_spec(parallelism=pods, completions=pods),
        ttl=_of_spec(ttlSecondsAfterFinished=1),
        create_that_one_pod_ends=_job_that_one_pod_ends,
    ),
    Kind(
        "job-set",
        JOB_SETS,
        _job_set,
        (JOB_SET,),
        suspend=lambda on: _of_spec(suspend=on),
        ttl=_of_spec(ttlSecondsAfterFinished=1),
        create_that_one_pod_ends=_job_set_that_one_pod_ends,
    ),
    Kind(
        "leader-worker-set",
        LEADER_WORKER_SETS,
        _leader_worker_set,
        (LEADER_WORKER_SET,),
        grow=lambda pods: _of_spec(replicas=pods // 2),
        grown=4,
        recreates=False,  # it recreates the group
    ),
    Kind(
        "pytorch-job",
        PYTORCH_JOBS,
        lambda world, name, pods: create_pytorch_job(world, name, pods - 1),
        (TRAINING_OPERATOR,),
        suspend=lambda on: _of_spec(runPolicy={"suspend": on}),
        grow=lambda pods: _of_spec(pytorchReplicaSpecs={"Worker": {"replicas": pods - 1}}),
        ttl=_of_spec(runPolicy={"ttlSecondsAfterFinished": 1}),
        create_that_one_pod_ends=_pytorch_job_that_its_master_ends,
    ),
    Kind(
        "ray-cluster",
        RAY_CLUSTERS,
        lambda world, name, pods: create_ray_cluster(world, name, pods - 1),
        (KUBERAY,),
        suspend=lambda on: _of_spec(suspend=on),
        grow=lambda pods: _of_spec(workerGroupSpecs=[ray_worker_group("one", pods - 1)]),
    ),
    Kind(
        "train-job",
        TRAIN_JOBS,
        _train_job,
        (JOB_SET, TRAINER),
        suspend=lambda on: _of_spec(suspend=on),
    ),
)


def kinds(can: Callable[[Kind], object] = lambda _: True) -> list[Kind]:
    """Return those of this run's operators that *can*."""
    here = selected()
    return [kind for kind in KINDS if {*kind.operators} <= {*here} and can(kind)]


def add_runtimes(world: SchedulingWorld) -> None:
    """Create what TrainJobs refer to."""
    if TRAINER in selected():
        world.control.kubectl("apply", "--server-side", f"-f={TRAINER.build() / _RUNTIME}")
