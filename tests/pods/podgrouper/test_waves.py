"""How many pods a gang has and needs, where a controller creates them in waves, or some may be
absent.

A gang that counted pods which run at another time would wait forever; one that left out pods which
come later would start incomplete. `test_to_come.py` has those that come later.
"""

from typing import Any

import pytest

from linkwise.pods.podgrouper.workloads.answer import IndexedJobs, NoGang, Recognised
from tests.pods.podgrouper.pods import Object, gang, owner, pod, template, told

TRAINING = "training.kubeflow.org/"
JOB_SET = "jobset.sigs.k8s.io/"
INDEX = "batch.kubernetes.io/job-completion-index"


def counts(made: Object, *objects: Object) -> tuple[int, int, int, int]:
    """Size, minimum, and how many of both take GPUs."""
    answer = gang(made, *objects)
    return answer.size, answer.minimum, answer.gpu_size, answer.gpu_minimum


def replicated(name: str, pods: int, gpus: int = 1, **more: Any) -> Object:
    job = {"spec": {"parallelism": pods, "completions": pods, "template": template(gpus)}}
    return {"name": name, "replicas": 1, "template": job, **more}


def job_set(*jobs: Object, **spec: Any) -> Object:
    return owner("jobset.x-k8s.io/v1alpha2 JobSet", "run", {"replicatedJobs": list(jobs), **spec})


def of_job_set(role: str, index: int = 0) -> Object:
    labels = {
        JOB_SET + "jobset-name": "run",
        JOB_SET + "replicatedjob-name": role,
        JOB_SET + "job-index": "0",
        INDEX: str(index),
    }
    return pod(f"run-{role}-0-{index}-a1b2c", owner("batch/v1 Job", f"run-{role}-0"), labels)


def test_jobs_of_a_jobset_in_order_are_one_gang() -> None:
    in_order = job_set(
        replicated("driver", 1),
        replicated("workers", 4),
        replicated("report", 1),
        startupPolicy={"startupPolicyOrder": "InOrder"},
    )
    minimum = {role: counts(of_job_set(role), in_order)[1] for role in ("driver", "workers")}
    assert minimum == {"driver": 6, "workers": 6}
    assert gang(of_job_set("report"), in_order).waves == (1, 4, 1)


def test_an_initializer_that_has_ended_by_then_is_not_waited_for() -> None:
    trained = job_set(
        replicated("dataset-initializer", 1, gpus=0),
        replicated("node", 4, dependsOn=[{"name": "dataset-initializer", "status": "Complete"}]),
        replicated("launcher", 1, gpus=0, dependsOn=[{"name": "node", "status": "Ready"}]),
    )
    assert isinstance(told(of_job_set("dataset-initializer"), [trained]).answer, NoGang)
    assert counts(of_job_set("node"), trained) == (5, 5, 4, 4)
    assert counts(of_job_set("launcher"), trained) == (5, 5, 4, 4)


def test_a_group_that_counts_initializers_too_is_held_to_those_that_run_together() -> None:
    """The TrainJob's own PodGroup does; taken at its word, the nodes would wait forever."""
    by = owner("trainer.kubeflow.org/v1alpha1 TrainJob", "run")
    trained = owner(
        "jobset.x-k8s.io/v1alpha2 JobSet",
        "run",
        {
            "replicatedJobs": [
                replicated("init", 1, gpus=0),
                replicated("node", 4, dependsOn=[{"name": "init", "status": "Complete"}]),
            ]
        },
        by=by,
    )
    group = owner("scheduling.x-k8s.io/v1alpha1 PodGroup", "run", {"minMember": 5}, by=by)
    node = of_job_set("node")
    node["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] = "run"
    answer = gang(node, trained, group)
    assert (answer.minimum, answer.rule) == (4, "coscheduling")
    assert str(answer.gang) == "ml/JobSet.jobset.x-k8s.io/run"


def mpi_job(**spec: Any) -> Object:
    replicas = {
        "Launcher": {"replicas": 1, "template": template(gpus=0)},
        "Worker": {"replicas": 4, "template": template(gpus=8)},
    }
    return owner("kubeflow.org/v2beta1 MPIJob", "hvd", {"mpiReplicaSpecs": replicas, **spec})


def of_mpi_job(job: Object, role: str, index: int | None = None) -> Object:
    labels = {
        TRAINING + "operator-name": "mpi-operator",
        TRAINING + "job-name": "hvd",
        TRAINING + "job-role": role,
    }
    if index is not None:
        labels[TRAINING + "replica-index"] = str(index)
    if role == "worker":
        return pod(f"hvd-worker-{index}", job, labels, gpus=8)
    return pod("hvd-launcher-7hx2m", owner("batch/v1 Job", "hvd-launcher"), labels, gpus=0)


def test_a_launcher_that_waits_for_the_workers_of_an_mpi_job_is_a_member_to_come() -> None:
    waits = mpi_job(launcherCreationPolicy="WaitForWorkersReady")
    assert counts(of_mpi_job(waits, "worker", 2), waits) == (5, 5, 4, 4)
    assert counts(of_mpi_job(waits, "launcher"), waits) == (5, 5, 4, 4)
    assert gang(of_mpi_job(waits, "worker", 2), waits).waves == (4, 1)
    at_once = mpi_job()
    assert counts(of_mpi_job(at_once, "worker", 2), at_once) == (5, 5, 4, 4)


def test_a_launcher_that_works_too_has_the_first_rank() -> None:
    job = mpi_job(runLauncherAsWorker=True)
    assert gang(of_mpi_job(job, "launcher", 0), job).member.rank == 0
    first_worker = gang(of_mpi_job(job, "worker", 1), job).member
    assert (first_worker.index, first_worker.rank) == (0, 1)


def test_launcher_and_workers_of_an_mpi_job_are_one_gang_by_different_ways() -> None:
    job = mpi_job()
    launcher = gang(of_mpi_job(job, "launcher"), job)
    assert launcher.gang == gang(of_mpi_job(job, "worker", 0), job).gang
    assert launcher.member.rank is None


def test_a_leader_and_the_workers_that_come_once_it_is_ready_are_one_gang() -> None:
    set_ = owner(
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
        "vllm",
        {"startupPolicy": "LeaderReady", "leaderWorkerTemplate": {"workerTemplate": template()}},
    )
    minimum = []
    for place in range(2):
        labels = {
            "leaderworkerset.sigs.k8s.io/name": "vllm",
            "leaderworkerset.sigs.k8s.io/group-index": "0",
            "leaderworkerset.sigs.k8s.io/worker-index": str(place),
        }
        size = {"leaderworkerset.sigs.k8s.io/size": "4"}
        made = pod(f"vllm-0-{place}", owner("apps/v1 StatefulSet", "vllm-0"), labels, size)
        minimum.append(counts(made, set_)[1])
    assert minimum == [4, 4]


def test_tasks_of_a_volcano_job_and_those_they_depend_on_are_one_gang() -> None:
    tasks = [
        {"name": "master", "replicas": 1, "template": template()},
        {
            "name": "worker",
            "replicas": 3,
            "template": template(),
            "dependsOn": {"name": ["master"]},
        },
    ]
    job = owner("batch.volcano.sh/v1alpha1 Job", "tf", {"minAvailable": 4, "tasks": tasks})
    minimum = {
        task: counts(pod(f"tf-{task}-0", job, {"volcano.sh/task-spec": task}), job)[1]
        for task in ("master", "worker")
    }
    assert minimum == {"master": 4, "worker": 4}


def pytorch_job(**spec: Any) -> tuple[Object, Object]:
    replicas = {
        "Master": {"replicas": 1, "template": template()},
        "Worker": {"replicas": 3, "template": template()},
    }
    job = owner("kubeflow.org/v1 PyTorchJob", "bert", {"pytorchReplicaSpecs": replicas, **spec})
    labels = {TRAINING + "replica-type": "worker", TRAINING + "replica-index": "2"}
    return pod("bert-worker-2", job, labels), job


@pytest.mark.parametrize(
    ("spec", "minimum"),
    [
        ({}, 4),
        ({"elasticPolicy": {"minReplicas": 1, "maxReplicas": 3}}, 2),
        ({"elasticPolicy": {"maxReplicas": 2}}, 3),
        ({"elasticPolicy": {}}, 4),
        ({"elasticPolicy": {"minReplicas": 9}}, 4),
        ({"runPolicy": {"schedulingPolicy": {"minAvailable": 3}}}, 3),
        (
            {
                "elasticPolicy": {"minReplicas": 1},
                "runPolicy": {"schedulingPolicy": {"minAvailable": 3}},
            },
            3,
        ),
    ],
)
def test_an_elastic_job_begins_with_what_torchrun_needs(spec: Object, minimum: int) -> None:
    made, job = pytorch_job(**spec)
    assert counts(made, job)[:2] == (4, minimum)


def indexed(parallelism: int, completions: int, succeeded: int = 0, **pod_spec: Any) -> Object:
    pods = template()
    pods["spec"].update(pod_spec)
    spec = {
        "parallelism": parallelism,
        "completions": completions,
        "completionMode": "Indexed",
        "template": pods,
    }
    return {**owner("batch/v1 Job", "lm", spec), "status": {"succeeded": succeeded}}


def test_an_indexed_job_that_cannot_run_all_its_pods_at_once_is_a_pool_of_shards() -> None:
    job = indexed(parallelism=2, completions=10)
    answer = told(pod("lm-3-x7k2p", job, {INDEX: "3"}), [job]).answer
    assert isinstance(answer, NoGang)
    assert "2 of its 10 pods at a time" in answer.because


def test_members_that_ended_well_leave_the_size_and_are_counted_apart() -> None:
    job = indexed(parallelism=4, completions=4, succeeded=3)
    answer = gang(pod("lm-3-x7k2p", job, {INDEX: "3"}), job)
    assert (answer.size, answer.done, answer.minimum) == (1, 3, 1)


@pytest.mark.parametrize(
    ("mode", "pod_spec", "is_gang"),
    [
        (IndexedJobs.ALL, {}, True),
        (IndexedJobs.WITH_SUBDOMAIN, {}, False),
        (IndexedJobs.WITH_SUBDOMAIN, {"subdomain": "lm"}, True),
        (IndexedJobs.NONE, {"subdomain": "lm"}, False),
    ],
)
def test_whether_indexed_jobs_are_gangs_can_be_chosen(
    mode: IndexedJobs, pod_spec: Object, is_gang: bool
) -> None:
    job = indexed(4, 4, **pod_spec)
    answer = told(pod("lm-3-x7k2p", job, {INDEX: "3"}), [job], indexed_jobs=mode).answer
    assert isinstance(answer, NoGang) is not is_gang


def ray_cluster(**group: Any) -> Object:
    spec = {"groupName": "h100", "template": template(gpus=8), **group}
    return owner(
        "ray.io/v1 RayCluster",
        "rl",
        {
            "enableInTreeAutoscaling": True,
            "headGroupSpec": {"template": template(gpus=0)},
            "workerGroupSpecs": [spec],
        },
    )


def ray_worker(cluster: Object, replica: int, host: int = 0) -> Object:
    labels = {
        "ray.io/node-type": "worker",
        "ray.io/group": "h100",
        "ray.io/worker-group-replica-index": str(replica),
        "ray.io/worker-group-replica-name": f"h100-{replica}",
        "ray.io/replica-host-index": str(host),
    }
    return pod(f"rl-h100-worker-{replica}{host}", cluster, labels, gpus=8)


def test_a_worker_that_the_autoscaler_adds_waits_for_nobody() -> None:
    cluster = ray_cluster(replicas=4, minReplicas=2)
    assert counts(ray_worker(cluster, 1), cluster) == (3, 3, 2, 2)
    assert isinstance(told(ray_worker(cluster, 2), [cluster]).answer, NoGang)


def test_hosts_of_one_added_replica_wait_for_each_other_alone() -> None:
    cluster = ray_cluster(replicas=3, minReplicas=1, numOfHosts=4)
    promised = gang(ray_worker(cluster, 0, host=3), cluster)
    assert (promised.size, promised.member.rank, promised.member.subgroup) == (5, 3, "h100-0")
    added = gang(ray_worker(cluster, 2, host=3), cluster)
    assert (added.size, added.minimum, added.gang.part, added.member.rank) == (4, 4, "h100-2", 3)
    assert promised.gang != added.gang


def test_a_suspended_group_of_workers_is_not_waited_for() -> None:
    cluster = ray_cluster(replicas=3, minReplicas=3, suspend=True)
    head = pod("rl-head", cluster, {"ray.io/node-type": "head", "ray.io/group": "headgroup"})
    assert counts(head, cluster)[:2] == (1, 1)


def test_a_job_of_one_pod_is_no_gang() -> None:
    job = owner(
        "kubeflow.org/v1 PyTorchJob", "one", {"pytorchReplicaSpecs": {"Master": {"template": {}}}}
    )
    answer = told(pod("one-master-0", job), [job]).answer
    assert isinstance(answer, NoGang)
    assert (answer.rule, answer.member.role) == ("pytorchjob", "master")


def volcano(*tasks: Object) -> Object:
    return owner("batch.volcano.sh/v1alpha1 Job", "run", {"tasks": list(tasks)})


def task(name: str, replicas: int, gpus: int = 1, *depends_on: str) -> Object:
    made = {"name": name, "replicas": replicas, "template": template(gpus)}
    return made | ({"dependsOn": {"name": list(depends_on)}} if depends_on else {})


def of_volcano(job: Object, name: str) -> Object:
    return pod(f"run-{name}-0", job, {"volcano.sh/task-spec": name, "volcano.sh/task-index": "0"})


def test_a_task_that_is_listed_first_may_depend_on_those_listed_later() -> None:
    job = volcano(task("master", 1, 1, "worker"), task("worker", 4))
    assert counts(of_volcano(job, "worker"), job) == (5, 5, 5, 5)
    assert gang(of_volcano(job, "master"), job).waves == (4, 1)


def test_a_task_depends_on_what_those_before_it_depend_on_in_whatever_order_they_stand() -> None:
    job = volcano(task("c", 1, 1, "b"), task("b", 2, 1, "a"), task("a", 4))
    assert {gang(of_volcano(job, name), job).waves for name in "abc"} == {(4, 2, 1)}


def test_tasks_that_depend_on_each_other_in_a_circle_end_no_search() -> None:
    job = volcano(task("a", 1, 1, "b"), task("b", 1, 1, "a"))
    assert counts(of_volcano(job, "a"), job)[0] == 2


@pytest.mark.parametrize("named", ["no-role", 7, None])
def test_a_task_that_depends_on_nothing_there_is_waits_for_nobody(named: object) -> None:
    job = volcano({**task("a", 2), "dependsOn": {"name": [named]}})
    assert counts(of_volcano(job, "a"), job) == (2, 2, 2, 2)


# YuniKorn's groups say what a member takes.

HEAD = '{"name":"head","minMember":1,"minResource":{"cpu":"4"}}'
WORKERS = '{"name":"workers","minMember":3,"minResource":{"nvidia.com/gpu":8}}'


def of_yunikorn(groups: str, gpus: int = 8, name: str = "workers") -> Object:
    return pod(
        "w",
        labels={"applicationId": "app"},
        annotations={
            "yunikorn.apache.org/task-group-name": name,
            "yunikorn.apache.org/task-groups": groups,
        },
        gpus=gpus,
    )


def test_a_task_group_whose_members_take_no_gpus_is_not_waited_for() -> None:
    """Found waiting forever for a fourth member with GPUs."""
    assert counts(of_yunikorn(f"[{HEAD},{WORKERS}]")) == (4, 4, 3, 3)


def test_a_pod_that_takes_gpus_counts_whatever_its_group_says() -> None:
    assert counts(of_yunikorn(f"[{HEAD}]".replace("1,", "2,", 1), name="head")) == (2, 2, 2, 2)


def test_of_several_groups_with_gpus_all_are_waited_for() -> None:
    others = WORKERS.replace("workers", "others")
    assert counts(of_yunikorn(f"[{HEAD},{WORKERS},{others}]")) == (7, 7, 6, 6)


@pytest.mark.parametrize(("policy", "to_come"), [("LeaderReady", 2), ("LeaderCreated", 0)])
def test_workers_that_come_once_the_leader_is_ready_are_to_come_in_a_group_of_kueue_too(
    policy: str, to_come: int
) -> None:
    """Found: Kueue's own example of a LeaderWorkerSet waited forever."""
    spec = {
        "startupPolicy": policy,
        "leaderWorkerTemplate": {"size": 3, "workerTemplate": template(8)},
    }
    lws = owner("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", "vllm", spec)

    def recognised(name: str, worker: int) -> Recognised:
        labels = {
            "leaderworkerset.sigs.k8s.io/name": "vllm",
            "leaderworkerset.sigs.k8s.io/group-index": "0",
            "leaderworkerset.sigs.k8s.io/worker-index": str(worker),
            "kueue.x-k8s.io/pod-group-name": "leaderworkerset-vllm-0-1",
        }
        said = {
            "leaderworkerset.sigs.k8s.io/size": "3",
            "kueue.x-k8s.io/pod-group-total-count": "3",
        }
        answer = gang(pod(name, owner("apps/v1 StatefulSet", "vllm"), labels, said, gpus=8), lws)
        assert (answer.rule, answer.size, answer.minimum) == ("kueue", 3, 3)
        return answer

    leader, worker = recognised("vllm-0", 0), recognised("vllm-0-1", 1)
    assert leader.to_come == worker.to_come
    members = [member for role in leader.to_come for member in role.members]
    assert len(members) == to_come
    assert not members or members[0] == worker.member


@pytest.mark.parametrize(("worker", "least"), [("0", 1), ("1", 3)])
def test_a_leader_whose_set_is_not_known_waits_for_no_worker(worker: str, least: int) -> None:
    labels = {
        "leaderworkerset.sigs.k8s.io/worker-index": worker,
        "kueue.x-k8s.io/pod-group-name": "leaderworkerset-vllm-0-1",
    }
    said = {"kueue.x-k8s.io/pod-group-total-count": "3"}
    assert gang(pod("vllm-0", None, labels, said, gpus=8)).minimum == least
