"""Workloads become the pods that their controllers create; the recorded pods are of real ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from linkwise.kube.controllers.child import UnknownControllerError
from linkwise.kube.controllers.order import After, Reached, SeenPods
from linkwise.kube.controllers.workload import MOST_PODS, Made, pods_of
from linkwise.kube.fields import UnreadableError, mapping
from linkwise.kube.objects import Condition, ObjectMeta, OwnerReference, Pod, PodSpec, PodStatus

Object = dict[str, Any]
RECORDED = Path(__file__).parents[1] / "pods" / "podgrouper" / "workload_pods.json"
CASES: dict[str, Object] = {case["id"]: case for case in json.loads(RECORDED.read_text())["cases"]}
WITH_PODS = (
    "job-indexed-4x2",
    "job-plain-pool",
    "tfjob-chief-ps-worker",
    "pytorchjob-1-3",
    "xgboostjob",
    "mpijob-v1-training-operator",
    "mpijob-v2-horovod",
    "trainjob-torch",
    "raycluster-fixed",
    "jobset-leader-workers",
    "lws-size4",
    "volcano-job",
)
# Hashes and uids, and what docs/workloads.md says is left out.
LEFT_OUT = re.compile(
    r"uid$|job-key$|group-key$|revision-hash$|job-version$|retry-count$|group-name$"
)
RANDOM = re.compile(r"-[a-z0-9]{5}$")
GPUS = {"spec": {"containers": [{"name": "main", "image": "x"}]}}


def workload(kind: str, spec: Object) -> Object:
    api_version, _, word = kind.rpartition(" ")
    metadata = {"name": "lm", "namespace": "ml", "uid": "u"}
    return {"apiVersion": api_version, "kind": word, "metadata": metadata, "spec": spec}


def names(made: Made) -> list[str]:
    return [each.body["metadata"]["name"] for each in made.pods]


def told(metadata: Object) -> Object:
    """What of a pod's metadata has to be equal."""
    (owner,) = metadata["ownerReferences"]
    return {
        "name": metadata["name"],
        "owner": (owner["apiVersion"], owner["kind"], owner["name"], owner["controller"]),
        "labels": known(metadata["labels"]),
        "annotations": known(metadata["annotations"]),
    }


def known(said: Object) -> Object:
    return {key: value for key, value in said.items() if not LEFT_OUT.search(key)}


@pytest.mark.parametrize("name", WITH_PODS)
def test_the_pods_are_those_that_the_controller_made(name: str) -> None:
    case = CASES[name]
    given = {(each["kind"], each["metadata"]["name"]): each for each in case["objects"]}
    made = [each.body["metadata"] for each in pods_of(case["objects"][0], given).pods]
    for recorded in (row["pod"]["metadata"] for row in case["pods"]):
        wanted = told(recorded)
        stem = RANDOM.sub("", wanted.pop("name"))
        found = [told(each) for each in made if RANDOM.sub("", each["name"]) == stem]
        assert any(includes(each, wanted) for each in found), (wanted, found)


def includes(found: Object, wanted: Object) -> bool:
    """Newer releases add labels, so more labels than the recorded ones are right."""
    return found["owner"] == wanted["owner"] and all(
        wanted[field].items() <= found[field].items() for field in ("labels", "annotations")
    )


def test_equal_manifests_get_equal_names_and_each_pod_its_own() -> None:
    made = workload("apps/v1 Deployment", {"replicas": 50, "template": GPUS})
    assert names(pods_of(made, {})) == names(pods_of(made, {}))
    assert len(set(names(pods_of(made, {})))) == 50


def test_a_path_names_the_template_in_the_given_object() -> None:
    job: Object = {"spec": {"parallelism": 1, "template": GPUS}}
    made = workload(
        "jobset.x-k8s.io/v1alpha2 JobSet", {"replicatedJobs": [{"name": "n", "template": job}]}
    )
    (pod,) = pods_of(made, {}).pods
    assert pod.path == "spec.replicatedJobs[0].template.spec.template"
    launcher = {"mpiReplicaSpecs": {"Launcher": {"template": GPUS}}}
    (pod,) = pods_of(workload("kubeflow.org/v2beta1 MPIJob", launcher), {}).pods
    assert pod.path == "spec.mpiReplicaSpecs.Launcher.template"


def test_the_owner_of_a_pod_is_what_created_it() -> None:
    made = pods_of(workload("apps/v1 Deployment", {"template": GPUS}), {})
    (between,) = made.between
    (owner,) = made.pods[0].body["metadata"]["ownerReferences"]
    assert mapping(between, "metadata")["uid"] == owner["uid"] == f"u/{owner['name']}"
    assert owner["kind"] == "ReplicaSet"


STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
TRAIN_JOB = "trainer.kubeflow.org/v1alpha1 TrainJob"


def replicated(
    name: str, resources: object = None, *, trains: bool = True, **said: object
) -> Object:
    containers = [{"name": "node", "image": "x", **({"resources": resources} if resources else {})}]
    labels = {"labels": {STEP: "trainer"}} if trains else {}
    pods = {"template": {"spec": {"containers": containers}}}
    return {"name": name, "template": {"metadata": labels, "spec": pods}, **said}


def of_runtime(spec: Object, *jobs: Object, **policy: object) -> Made:
    runtime: Object = {
        "spec": {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": list(jobs)}}}
    }
    made = workload(TRAIN_JOB, {"runtimeRef": {"name": "torch"}, **spec})
    return pods_of(made, {("ClusterTrainingRuntime", "torch"): runtime})


def test_a_train_job_has_the_pods_of_its_runtime() -> None:
    made = of_runtime({}, replicated("node"), numNodes=3)
    assert [name[:-6] for name in names(made)] == [f"lm-node-0-{n}" for n in range(3)]
    initializer = replicated("data", trains=False)
    made = of_runtime({"trainer": {"numNodes": 2}}, initializer, replicated("node"), numNodes=3)
    assert [name[:-6] for name in names(made)] == ["lm-data-0-0", "lm-node-0-0", "lm-node-0-1"]


@pytest.mark.parametrize(("launcher_works", "nodes", "pods"), [(True, 4, 4), (False, 4, 5)])
def test_the_launcher_of_an_mpi_runtime_is_one_of_its_nodes(
    launcher_works: bool, nodes: int, pods: int
) -> None:
    """Found: six pods for four nodes, because both replicated Jobs counted as the trainer's."""
    trainer = {"numNodes": nodes, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    node, launcher = replicated("node", trains=False), replicated("launcher")
    mpi = {"runLauncherAsNode": launcher_works}
    made = of_runtime({"trainer": trainer}, node, launcher, numNodes=1, mpi=mpi)
    assert len(made.pods) == pods
    assert names(made)[-1].startswith("lm-launcher-0-0")
    with_gpus = [pod for pod in made.pods if "resources" in pod.body["spec"]["containers"][0]]
    assert len(with_gpus) == (pods if launcher_works else 1)


def test_what_each_node_takes_is_merged_with_what_its_runtime_says() -> None:
    """Trainer 2.3; before, the runtime's CPUs were gone."""
    said = {"requests": {"cpu": 8}, "limits": {"nvidia.com/gpu": 1}}
    trainer = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    made = of_runtime({"trainer": trainer}, replicated("node", said))
    (container,) = made.pods[0].body["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": 8}, "limits": {"nvidia.com/gpu": 8}}


def test_patches_of_the_runtime_reach_the_pods() -> None:
    """There users write Linkwise's annotations. Found: they were ignored."""
    containers = [{"name": "node", "image": "mine"}, {"name": "logs", "image": "z"}]
    pods = {
        "metadata": {"annotations": {"linkwise.dev/gpu-model": "A100"}},
        "spec": {"nodeSelector": {"zone": "b"}, "containers": containers},
    }
    job = {"name": "node", "template": {"spec": {"template": pods}}}
    template = {"metadata": {"labels": {"team": "a"}}, "spec": {"replicatedJobs": [job]}}
    other = {"spec": {"replicatedJobs": [{**job, "name": "other"}]}}
    patches = [{"trainingRuntimeSpec": {"template": each}} for each in (template, other)]
    resources = {"limits": {"nvidia.com/gpu": 8}}
    made = of_runtime({"runtimePatches": patches}, replicated("node", resources))
    body = made.pods[0].body
    assert body["metadata"]["annotations"]["linkwise.dev/gpu-model"] == "A100"
    assert body["spec"]["nodeSelector"] == {"zone": "b"}
    assert body["spec"]["containers"] == [
        {"name": "node", "image": "mine", "resources": resources},
        {"name": "logs", "image": "z"},
    ]
    (job_set, _) = made.between
    assert mapping(job_set, "metadata.labels")["team"] == "a"


def test_overrides_of_older_trainers_reach_the_pods() -> None:
    override = {
        "targetJobs": [{"name": "node"}],
        "metadata": {"annotations": {"linkwise.dev/gang": "g"}},
        "spec": {"nodeSelector": {"zone": "b"}},
    }
    body = of_runtime({"podTemplateOverrides": [override]}, replicated("node")).pods[0].body
    assert body["metadata"]["annotations"]["linkwise.dev/gang"] == "g"
    assert body["spec"]["nodeSelector"] == {"zone": "b"}


def test_a_null_in_a_patch_takes_a_field_away() -> None:
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "node", "resources": None}]}}}}
    job = {"name": "node", "template": patch}
    patches = [{"trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}]
    made = of_runtime({"runtimePatches": patches}, replicated("node", {"limits": {"cpu": 1}}))
    assert made.pods[0].body["spec"]["containers"] == [{"name": "node", "image": "x"}]


def test_the_pods_of_a_job_set_restart_on_failure_unless_it_says_otherwise() -> None:
    """As its webhook writes. Found: the simulator refused JobSets that leave it to the webhook."""
    job = {"name": "node", "template": {"spec": {"template": GPUS}}}
    made = pods_of(workload("jobset.x-k8s.io/v1alpha2 JobSet", {"replicatedJobs": [job]}), {})
    assert made.pods[0].body["spec"]["restartPolicy"] == "OnFailure"


def test_a_train_job_without_its_runtime_says_what_each_node_takes() -> None:
    trainer = {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}
    spec = {"runtimeRef": {"name": "torch"}, "trainer": trainer}
    made = pods_of(workload("trainer.kubeflow.org/v1alpha1 TrainJob", spec), {})
    resources = [pod.body["spec"]["containers"][0]["resources"] for pod in made.pods]
    assert resources == [{"limits": {"nvidia.com/gpu": 8}}] * 2


def test_subgroups_of_a_leader_worker_set_are_those_of_its_webhook() -> None:
    """Size 5 in twos: four workers divide, so the leader is an extra one of the first subgroup."""
    policy = {"subGroupSize": 2}
    template = {"size": 5, "workerTemplate": GPUS, "subGroupPolicy": policy}
    spec = {"leaderWorkerTemplate": template}
    made = pods_of(workload("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", spec), {})
    key = "leaderworkerset.sigs.k8s.io/subgroup-index"
    assert [pod.body["metadata"]["labels"][key] for pod in made.pods] == ["0", "0", "0", "1", "1"]


COUNTS: dict[str, tuple[Object, str]] = {
    "batch/v1 Job": ({"parallelism": -1, "template": GPUS}, "spec.parallelism: -1: expected"),
    "apps/v1 Deployment": ({"replicas": "2", "template": GPUS}, "spec.replicas: '2': expected"),
    "kubeflow.org/v1 PyTorchJob": (
        {"pytorchReplicaSpecs": {"Worker": {"replicas": -1, "template": GPUS}}},
        "spec.pytorchReplicaSpecs.Worker.replicas: -1: expected",
    ),
    "jobset.x-k8s.io/v1alpha2 JobSet": (
        {"replicatedJobs": [{"name": "n", "template": {"spec": {"parallelism": 1.5}}}]},
        "spec.replicatedJobs[0].template.spec.parallelism: 1.5: expected",
    ),
    "batch.volcano.sh/v1alpha1 Job": (
        {"tasks": [{"name": "w", "replicas": True}]},
        "spec.tasks[0].replicas: True: expected",
    ),
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": (
        {"leaderWorkerTemplate": {"size": -2}},
        "spec.leaderWorkerTemplate.size: -2: expected",
    ),
    "ray.io/v1 RayJob": (
        {"rayClusterSpec": {"workerGroupSpecs": [{"groupName": "a", "replicas": -1}]}},
        "spec.rayClusterSpec.workerGroupSpecs[0].replicas: -1: expected",
    ),
    "trainer.kubeflow.org/v1alpha1 TrainJob": (
        {"runtimeRef": {"name": "torch"}},
        "spec.trainer.resourcesPerNode: missing, and the runtime 'torch' was not given",
    ),
    "apps/v1 ReplicaSet": ({"replicas": MOST_PODS + 1, "template": GPUS}, "more than 4096 pods"),
}


@pytest.mark.parametrize("kind", COUNTS)
def test_a_wrong_count_is_refused_by_the_path_in_the_given_object(kind: str) -> None:
    spec, refusal = COUNTS[kind]
    with pytest.raises(UnreadableError) as caught:
        pods_of(workload(kind, spec), {})
    assert str(caught.value).startswith(refusal)


def test_what_has_no_pods_makes_none_and_what_has_unknown_ones_is_not_guessed() -> None:
    assert pods_of(workload("v1 Service", {"ports": []}), {}) == Made((), ())
    for kind in ("apps/v1 DaemonSet", "kubeflow.org/v1 Notebook"):
        with pytest.raises(UnknownControllerError):
            pods_of(workload(kind, {"template": GPUS}), {})


A_CONTAINER: Object = {"image": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("argoproj.io/v1alpha1 Workflow", {"spec": {"templates": [{"container": A_CONTAINER}]}}),
        ("kaito.sh/v1beta1 Workspace", {"inference": {"template": GPUS}}),
        ("kubeflow.org/v1alpha2 MPIJob", {"spec": {"replicas": 2}}),
        ("nvidia.com/v1alpha1 DynamoGraphDeployment", {"spec": {"services": {"w": A_CONTAINER}}}),
        ("serving.kserve.io/v1beta1 InferenceService", {"spec": {"predictor": A_CONTAINER}}),
    ],
)
def test_an_unknown_kind_whose_containers_are_seen_is_not_left_out(
    kind: str, fields: Object
) -> None:
    with pytest.raises(UnknownControllerError):
        pods_of({**workload(kind, {}), **fields}, {})


@pytest.mark.parametrize(
    "kind",
    [
        "autoscaling.x-k8s.io/v1 ProvisioningRequest",
        "inference.networking.x-k8s.io/v1alpha2 InferencePool",
        "resource.nvidia.com/v1beta1 ComputeDomain",
        "sparkoperator.k8s.io/v1beta2 SparkApplication",
    ],
)
def test_an_unknown_kind_without_a_pod_template_is_left_out_by_name(kind: str) -> None:
    made = pods_of(workload(kind, {"podSets": [{"count": 4}], "executor": {"instances": 4}}), {})
    version, word = kind.split()
    name = f"{word}.{version.partition('/')[0]}"
    assert made == Made((), (), f"{name} ml/lm: unknown kind without a pod template: left out")


@pytest.mark.parametrize(
    "kind",
    [
        "kueue.x-k8s.io/v1beta1 LocalQueue",
        "monitoring.coreos.com/v1 ServiceMonitor",
        "scheduling.x-k8s.io/v1alpha1 PodGroup",
        "networking.k8s.io/v1 Ingress",
    ],
)
def test_what_stands_beside_workloads_makes_no_pods(kind: str) -> None:
    assert pods_of(workload(kind, {}), {}) == Made((), ())


def test_a_template_for_others_makes_no_pods() -> None:
    """It stands beside a ProvisioningRequest."""
    assert pods_of({**workload("v1 PodTemplate", {}), "template": GPUS}, {}) == Made((), ())


def test_a_ray_job_on_a_cluster_that_is_there_creates_its_submitter_alone() -> None:
    spec: Object = {"clusterSelector": {"ray.io/cluster": "there"}, "entrypoint": "python -c 1"}
    (made,) = pods_of(workload("ray.io/v1 RayJob", spec), {}).pods
    assert made.body["metadata"]["labels"]["ray.io/originated-from-crd"] == "RayJob"
    by_users = {**spec, "submitterPodTemplate": GPUS}
    (made,) = pods_of(workload("ray.io/v1 RayJob", by_users), {}).pods
    assert made.body["spec"]["containers"] == GPUS["spec"]["containers"]
    by_http = {**spec, "submissionMode": "HTTPMode"}
    assert pods_of(workload("ray.io/v1 RayJob", by_http), {}).pods == ()


def order(made: Made) -> dict[str, tuple[str, ...]]:
    """Pod, without random letters -> what it comes after, in words."""
    return {
        RANDOM.sub("", each.body["metadata"]["name"]): tuple(map(str, each.after))
        for each in made.pods
    }


def jobs(*items: Object) -> list[Object]:
    job = {"spec": {"parallelism": 2, "completions": 2, "template": GPUS}}
    return [{"template": job, **item} for item in items]


ORDERS: dict[str, tuple[str, Object, dict[str, tuple[str, ...]]]] = {
    "a JobSet at once": (
        "jobset.x-k8s.io/v1alpha2 JobSet",
        {"replicatedJobs": jobs({"name": "a"}, {"name": "b"})},
        {"lm-a-0-0": (), "lm-a-0-1": (), "lm-b-0-0": (), "lm-b-0-1": ()},
    ),
    "a JobSet in order": (
        "jobset.x-k8s.io/v1alpha2 JobSet",
        {
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
            "replicatedJobs": jobs({"name": "a", "replicas": 2}, {"name": "b"}),
        },
        {
            **{f"lm-a-{job}-{index}": () for job in (0, 1) for index in (0, 1)},
            **{
                f"lm-b-0-{index}": ("the pods of 2 Jobs lm-a-0 to lm-a-1 are ready",)
                for index in (0, 1)
            },
        },
    ),
    "a JobSet with dependencies": (
        "jobset.x-k8s.io/v1alpha2 JobSet",
        {
            "replicatedJobs": jobs(
                {"name": "data"},
                {"name": "head", "dependsOn": [{"name": "data", "status": "Complete"}]},
                {"name": "w", "dependsOn": [{"name": "head", "status": "Ready"}]},
            )
        },
        {
            "lm-data-0-0": (),
            "lm-data-0-1": (),
            "lm-head-0-0": ("the pods of Job lm-data-0 have ended",),
            "lm-head-0-1": ("the pods of Job lm-data-0 have ended",),
            "lm-w-0-0": ("the pods of Job lm-head-0 are ready",),
            "lm-w-0-1": ("the pods of Job lm-head-0 are ready",),
        },
    ),
    "a LeaderWorkerSet at once": (
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
        {"leaderWorkerTemplate": {"size": 2, "workerTemplate": GPUS}},
        {"lm-0": (), "lm-0-1": ()},
    ),
    "a LeaderWorkerSet whose leader is ready first": (
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
        {
            "startupPolicy": "LeaderReady",
            "leaderWorkerTemplate": {"size": 2, "workerTemplate": GPUS},
        },
        {"lm-0": (), "lm-0-1": ("pod lm-0 is ready",)},
    ),
    "a Volcano Job": (
        "batch.volcano.sh/v1alpha1 Job",
        {
            "tasks": [
                {"name": "w", "template": GPUS, "dependsOn": {"name": ["ps"]}},
                {"name": "ps", "replicas": 2, "template": GPUS},
            ]
        },
        {
            "lm-w-0": ("2 pods lm-ps-0 to lm-ps-1 are ready",),
            "lm-ps-0": (),
            "lm-ps-1": (),
        },
    ),
    "an MPIJob whose workers are ready first": (
        "kubeflow.org/v2beta1 MPIJob",
        {
            "launcherCreationPolicy": "WaitForWorkersReady",
            "mpiReplicaSpecs": {
                "Launcher": {"template": GPUS},
                "Worker": {"replicas": 2, "template": GPUS},
            },
        },
        {
            "lm-launcher": ("2 pods lm-worker-0 to lm-worker-1 are ready",),
            "lm-worker-0": (),
            "lm-worker-1": (),
        },
    ),
    "a StatefulSet": (
        "apps/v1 StatefulSet",
        {"replicas": 2, "template": GPUS},
        {"lm-0": (), "lm-1": ("pod lm-0 is ready",)},
    ),
    "a parallel StatefulSet": (
        "apps/v1 StatefulSet",
        {"replicas": 2, "podManagementPolicy": "Parallel", "template": GPUS},
        {"lm-0": (), "lm-1": ()},
    ),
}


@pytest.mark.parametrize("which", ORDERS)
def test_pods_come_after_others_as_their_controller_has_it(which: str) -> None:
    kind, spec, wanted = ORDERS[which]
    assert order(pods_of(workload(kind, spec), {})) == wanted


def test_the_workers_of_an_exclusive_topology_come_when_the_leader_has_a_node() -> None:
    spec = {"leaderWorkerTemplate": {"size": 2, "workerTemplate": GPUS}}
    made = workload("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", spec)
    key = "leaderworkerset.sigs.k8s.io/exclusive-topology"
    made["metadata"]["annotations"] = {key: "rack"}
    found = pods_of(made, {})
    assert order(found) == {"lm-0": (), "lm-0-1": ("pod lm-0 has a node",)}
    assert {each.body["metadata"]["annotations"][key] for each in found.pods} == {"rack"}


def test_a_volcano_task_needs_no_more_ready_pods_than_are_available_at_least() -> None:
    tasks = [
        {"name": "ps", "replicas": 3, "minAvailable": 1, "template": GPUS},
        {"name": "w", "template": GPUS, "dependsOn": {"name": ["ps"]}},
    ]
    made = pods_of(workload("batch.volcano.sh/v1alpha1 Job", {"tasks": tasks}), {})
    (after,) = made.pods[-1].after
    assert (after.pods, len(after.names)) == (1, 3)


def seen(*pods: Pod) -> SeenPods:
    found = SeenPods()
    for each in pods:
        found.put(each)
    return found


def a_pod(name: str, phase: str = "Pending", job: str = "", ready: str = "") -> Pod:
    owner = OwnerReference(kind="Job", name=job, uid="u", controller=True)
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ml", owner_references=(owner,) if job else ()),
        spec=PodSpec(node_name="" if phase == "Pending" else "n1"),
        status=PodStatus(phase=phase, conditions=(Condition("Ready", ready),) if ready else ()),
    )


def test_a_pod_is_ready_when_it_runs_and_no_condition_denies_it() -> None:
    after = After(Reached.READY, 1, frozenset(["a"]))
    assert not seen().meet(after, "ml")
    assert not seen(a_pod("a")).meet(after, "ml")
    assert not seen(a_pod("a", "Running", ready="False")).meet(after, "ml")
    assert seen(a_pod("a", "Running", ready="True")).meet(after, "ml")
    assert seen(a_pod("a", "Running")).meet(after, "ml")
    assert seen(a_pod("a", "Succeeded", ready="False")).meet(after, "ml")
    assert not seen(a_pod("a", "Running")).meet(after, "other")


def test_the_pods_of_a_job_count_by_its_name() -> None:
    after = After(Reached.COMPLETE, 2, jobs=frozenset(["j"]))
    pods = seen(a_pod("x", "Succeeded", "j"), a_pod("y", "Running", "j"), a_pod("z", "Succeeded"))
    assert not pods.meet(after, "ml")
    pods.put(a_pod("y", "Succeeded", "j"))
    assert pods.meet(after, "ml")
    pods.drop(a_pod("x", "Succeeded", "j"))
    assert not pods.meet(after, "ml")
