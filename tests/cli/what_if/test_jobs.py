"""Manifests become the pods that their controllers would create, and form the same gangs."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from linkwise.kube.controllers.workload import pods_of
from linkwise.kube.objects import Pod
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import Answer, Recognised
from tests.cli.what_if.asking import (
    Template,
    a_list,
    answer,
    cluster,
    job,
    listed,
    manifest,
    pod,
    refusal,
    what_if,
)
from tests.extender.cluster import change
from tests.pods.podgrouper.pods import Object, ref_of, template
from tests.pods.podgrouper.workload_cases import CASES

GPUS = template(2)
CPU = template(0)


def replicas(field: str, **roles: tuple[int, Template]) -> Object:
    return {
        field: {
            role.capitalize(): {"replicas": count, "template": made}
            for role, (count, made) in roles.items()
        }
    }


def job_spec(pods: int, made: Template = GPUS) -> Object:
    return {"parallelism": pods, "completions": pods, "template": made}


def replicated(name: str, jobs: int, pods: int) -> Object:
    return {"name": name, "replicas": jobs, "template": {"spec": job_spec(pods)}}


def ray(**group: Any) -> Object:
    worker = {"groupName": "a100", "template": GPUS, **group}
    return {"headGroupSpec": {"template": CPU}, "workerGroupSpecs": [worker]}


INDEXED = {**job_spec(3), "completionMode": "Indexed"}
LWS = {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": GPUS}}
TASKS = {
    "minAvailable": 3,
    "tasks": [
        {"name": "ps", "replicas": 1, "template": CPU},
        {"name": "worker", "replicas": 3, "template": GPUS},
    ],
}
PYTORCH = replicas("pytorchReplicaSpecs", master=(1, GPUS), worker=(3, GPUS))
MPI = replicas("mpiReplicaSpecs", launcher=(1, CPU), worker=(2, GPUS))

# Kind and spec. Then for each gang its size and how many of its pods take GPUs; 0 and 1 for a
# single pod.
KINDS: dict[str, tuple[str, Object, list[tuple[int, int]]]] = {
    "job": ("batch/v1 Job", job_spec(3), [(0, 1)] * 3),
    "indexed-job": ("batch/v1 Job", INDEXED, [(3, 3)]),
    "cron-job": ("batch/v1 CronJob", {"jobTemplate": {"spec": INDEXED}}, [(3, 3)]),
    "deployment": ("apps/v1 Deployment", {"replicas": 2, "template": GPUS}, [(0, 1)] * 2),
    "replica-set": ("apps/v1 ReplicaSet", {"template": GPUS}, [(0, 1)]),
    "stateful-set": ("apps/v1 StatefulSet", {"replicas": 2, "template": GPUS}, [(0, 1)] * 2),
    "replication-controller": ("v1 ReplicationController", {"template": GPUS}, [(0, 1)]),
    "pytorch-job": ("kubeflow.org/v1 PyTorchJob", PYTORCH, [(4, 4)]),
    "mpi-job-v1": ("kubeflow.org/v1 MPIJob", MPI, [(2, 2)]),
    "mpi-job-v2": ("kubeflow.org/v2beta1 MPIJob", MPI, [(2, 2)]),
    "job-set": (
        "jobset.x-k8s.io/v1alpha2 JobSet",
        {"replicatedJobs": [replicated("node", 2, 2), replicated("driver", 1, 1)]},
        [(5, 5)],
    ),
    "volcano-job": ("batch.volcano.sh/v1alpha1 Job", TASKS, [(3, 3)]),
    "leader-worker-set": (
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
        LWS,
        [(3, 3), (3, 3)],
    ),
    "ray-cluster": ("ray.io/v1 RayCluster", ray(replicas=3), [(3, 3)]),
    "ray-cluster-of-hosts": ("ray.io/v1 RayCluster", ray(replicas=2, numOfHosts=2), [(4, 4)]),
    "ray-job": ("ray.io/v1 RayJob", {"rayClusterSpec": ray(replicas=2)}, [(2, 2)]),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_workload_becomes_the_pods_that_its_controller_would_make(
    name: str, tmp_path: Path
) -> None:
    kind, spec, expected = KINDS[name]
    it = cluster("dgx-a100", "dgx-a100")
    status, found = answer(tmp_path, listed(it), manifest(kind, "train", spec))
    told = [
        (part["size"] if part["is_gang"] else 0, len(part["places"])) for part in found["parts"]
    ]
    assert (status, told) == (0, expected)
    assert found["job"][0].endswith("ml/train")


RECORDED = (
    "job-indexed-4x2",
    "tfjob-chief-ps-worker",
    "pytorchjob-1-3",
    "xgboostjob",
    "mpijob-v1-training-operator",
    "mpijob-v2-horovod",
    "raycluster-fixed",
    "jobset-leader-workers",
    "lws-size4",
    "volcano-job",
)


@pytest.mark.parametrize("name", RECORDED)
def test_pods_are_known_as_those_that_their_controllers_make(name: str) -> None:
    case = next(case for case in CASES if case["id"] == name)
    known = {ref_of(made): made for made in case["objects"]}
    made = pods_of(case["objects"][0], {})
    told = {essence(recognise(msgspec.convert(each.body, Pod), known)) for each in made.pods}
    expected = {
        essence(recognise(msgspec.convert(row["pod"], Pod), known))
        for row in case["pods"]
        if row["expected"]["is_gang"]
    }
    assert expected <= told


def essence(answer: Answer) -> object:
    assert isinstance(answer, Recognised), answer
    return answer.gang, answer.size, answer.minimum, answer.rule, answer.member


def test_what_a_submitted_object_makes_is_counted_once(tmp_path: Path) -> None:
    made = manifest("batch/v1 Job", "train", INDEXED)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "controller": True}
    member = pod("train-0-x", 2)
    member["metadata"]["ownerReferences"] = [{**owner, "uid": "u"}]
    _, found = answer(tmp_path, listed(cluster("dgx-a100")), a_list([member, made]))
    assert [(part["size"], len(part["places"])) for part in found["parts"]] == [(3, 3)]


def test_a_submitted_job_starts_anew_whatever_its_status_says(tmp_path: Path) -> None:
    made = {**manifest("batch/v1 Job", "train", INDEXED), "status": {"succeeded": 3}}
    _, found = answer(tmp_path, listed(cluster("dgx-a100")), made)
    assert [(part["size"], part["minimum"]) for part in found["parts"]] == [(3, 3)]


def test_ranks_are_those_of_the_operator(tmp_path: Path) -> None:
    made = manifest("kubeflow.org/v1 PyTorchJob", "lm", PYTORCH)
    _, found = answer(tmp_path, listed(cluster("dgx-a100")), made)
    places = found["parts"][0]["places"]
    assert [(place["pod"], place["rank"]) for place in places] == [
        ("lm-master-0", 0),
        ("lm-worker-0", 1),
        ("lm-worker-1", 2),
        ("lm-worker-2", 3),
    ]


def test_several_documents_are_one_job(tmp_path: Path) -> None:
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": 2},
    }
    label = {"scheduling.x-k8s.io/pod-group": "g"}
    pods = [
        {"apiVersion": "v1", "kind": "Pod", **template(2, name=f"w-{n}", labels=label)}
        for n in range(2)
    ]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {}}
    text = yaml.safe_dump_all([service, group, *pods])
    _, found = answer(tmp_path, listed(cluster("dgx-a100")), text, "-n", "ml")
    assert [(part["namespace"], part["is_gang"], part["size"]) for part in found["parts"]] == [
        ("ml", True, 2)
    ]


def test_empty_fields_and_generated_names_are_as_kubectl_takes_them(tmp_path: Path) -> None:
    text = """
apiVersion: batch/v1
kind: Job
metadata:
  generateName: sweep-
  namespace: ml
  labels:
spec:
  template:
    metadata: {creationTimestamp: null, annotations: }
    spec:
      nodeSelector:
      containers:
        - {name: main, resources: {limits: {nvidia.com/gpu: 2}}}
"""
    status, found = answer(tmp_path, listed(cluster("dgx-a100")), text)
    (job,) = found["job"]
    assert (status, job[:-5]) == (0, "Job.batch ml/sweep-")


def test_two_jobs_of_one_generated_name_are_two(tmp_path: Path) -> None:
    one, two = (manifest("batch/v1 Job", "", job_spec(1, template(gpus))) for gpus in (1, 2))
    for each in (one, two):
        each["metadata"] = {"generateName": "sweep-"}
    text = yaml.safe_dump_all([one, two])
    status, found = answer(tmp_path, listed(cluster("dgx-a100")), text)
    assert (status, len(set(found["job"]))) == (0, 2)
    assert sorted(len(place["gpus"]) for part in found["parts"] for place in part["places"]) == [
        1,
        2,
    ]


def test_an_unknown_kind_without_a_pod_template_is_named_and_left_out(tmp_path: Path) -> None:
    domain = manifest("resource.nvidia.com/v1beta1 ComputeDomain", "cd", {"numNodes": 2})
    text = yaml.safe_dump_all([domain, manifest("batch/v1 Job", "t", job_spec(2))])
    status, found = answer(tmp_path, listed(cluster("dgx-a100")), text)
    assert (status, found["job"]) == (0, ["Job.batch ml/t"])
    assert found["notes"] == [
        "ComputeDomain.resource.nvidia.com ml/cd: unknown kind without a pod template: left out"
    ]


@pytest.mark.parametrize(
    ("submitted", "said"),
    [
        ("", "nothing there: expected a job or a pod"),
        ("kind: [", "line 1: expected the node content"),
        (manifest("x.io/v1 Pool", "p", {}), "only Pool.x.io there: expected a job or a pod; of"),
        (manifest("v1 Service", "s", {}), "only Service there: expected a job or a pod"),
        (
            manifest("apps/v1 DaemonSet", "d", {"template": GPUS}),
            "DaemonSet.apps is not understood",
        ),
        (
            manifest("x.io/v1 Train", "t", {"template": GPUS}),
            "; of another kind, pass its pods, as `kubectl get",
        ),
        (manifest("trainer.kubeflow.org/v1 TrainJob", "t", {}), "resourcesPerNode: missing"),
        (manifest("batch/v1 Job", "t", {"parallelism": "many", "template": GPUS}), "'many'"),
        (manifest("batch/v1 Job", "t", job_spec(9999)), "more than 4096 pods"),
        (manifest("batch/v1 Job", "t", {"template": CPU}), "no pod there takes nvidia.com/gpu"),
        (manifest("batch/v1 Job", "t", {"template": {"spec": {}}}), "spec.containers"),
        (
            manifest("batch/v1 Job", "t", {"template": {"spec": {"containers": 3}}}),
            "spec.template.spec.containers: 3: expected a list: at least one container",
        ),
        ({"apiVersion": "v1", "kind": "Pod"}, "metadata: missing: expected a mapping with a name"),
        (
            a_list([pod("w", 1), pod("w", 1)]),
            "items[1]: pod ml/w is also at /job.yaml: document 1: items[0]",
        ),
        ("[" * 500, "line 1: more than 200 levels deep"),
        ("[" * 100_000, "line 1: "),  # newer versions of PyYAML refuse this themselves
        ("kind: !!bool maybe", "job.yaml: document 1: line 1: kind: 'maybe'"),
        ("kind: !!timestamp x", "job.yaml: "),
        ("kind: !!int ''", "job.yaml: "),
        (
            pod("w", 1, {"gang": "q", "gang-size": "3"}),
            "gang ml/q: 1 of 3 pods that it needs to start",
        ),
        (
            manifest("v1 Pod", "w", GPUS["spec"], labels={"scheduling.x-k8s.io/pod-group": "g"}),
            "PodGroup.scheduling.x-k8s.io ml/g: not given",
        ),
    ],
)
def test_what_is_no_job_is_refused_in_one_line(
    submitted: object, said: str, tmp_path: Path
) -> None:
    text = refusal(tmp_path, listed(cluster("dgx-a100")), submitted)
    assert said in text
    assert text.startswith("linkwise: --submit")


def test_a_wrong_annotation_is_refused_with_its_place(tmp_path: Path) -> None:
    made = template(2, annotations={"linkwise.dev/gang-size": "two", "linkwise.dev/gang": "g"})
    text = refusal(
        tmp_path, listed(cluster("dgx-a100")), manifest("batch/v1 Job", "t", {"template": made})
    )
    assert "job.yaml: document 1: spec.template: " in text
    assert "linkwise.dev/gang-size" in text
    assert "'two'" in text


def test_what_only_looks_like_an_annotation_is_noted_and_all_wrong_ones_are_named(
    tmp_path: Path,
) -> None:
    made = manifest("batch/v1 Job", "t", {"template": template(2)})
    made["spec"]["template"]["metadata"]["labels"] = {"linkwise.dev/gang": "a"}
    _, found = answer(tmp_path, listed(cluster("dgx-a100")), made)
    missed = "spec.template.metadata: label linkwise.dev/gang has no effect: write it as an annot"
    assert any(missed in note for note in found["notes"])
    wrong = {"linkwise.dev/rank": "x", "linkwise.dev/gang": "g", "linkwise.dev/gang-size": "two"}
    labels = made["spec"]["template"]["metadata"]["labels"]
    made["spec"]["template"] = template(2, annotations=wrong)
    made["spec"]["template"]["metadata"]["labels"] = labels
    text = refusal(tmp_path, listed(cluster("dgx-a100")), made)
    assert "linkwise.dev/rank: 'x'" in text
    assert "linkwise.dev/gang-size: 'two'" in text
    assert missed in text


def test_a_job_goes_to_nodes_of_the_resource_that_it_requests(tmp_path: Path) -> None:
    it = cluster("dgx-a100", "mi250x-frontier")
    amd = it.nodes["n2"]
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", "amd.com/gpu": "8"}
    it.put_node(change(amd, status=change(amd.status, allocatable=amounts, capacity=amounts)))
    both = ("--resource", "nvidia.com/gpu", "--resource", "amd.com/gpu")

    def taking(resource: str, pods: int) -> Object:
        made = job("t", pods, 0)
        (container,) = made["spec"]["template"]["spec"]["containers"]
        container["resources"] = {"limits": {resource: 8}}
        return made

    for resource, node in (("nvidia.com/gpu", "n1"), ("amd.com/gpu", "n2")):
        status, found = answer(tmp_path, listed(it), taking(resource, 1), *both)
        assert status == 0
        assert node in json.dumps(found["parts"])
    result = what_if(tmp_path, listed(it), taking("amd.com/gpu", 2), *both)
    assert result.exit_code == 1
    assert "node has nvidia.com/gpu, the pod requests amd.com/gpu" in " ".join(
        result.output.split()
    )


def test_another_name_of_gpus_is_answered_with_those_that_there_are(tmp_path: Path) -> None:
    given = listed(cluster("dgx-a100"))
    made = manifest("batch/v1 Job", "t", {"template": template(0)})
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["resources"] = {"limits": {"nvidia.com/gpus": 2}}
    assert (
        "no pod there takes nvidia.com/gpu, so Linkwise has no say in it; they take "
        "nvidia.com/gpus, and the nodes have nvidia.com/gpu\n"
    ) in refusal(tmp_path, given, made)
    _, found = answer(tmp_path, given, made, "--resource", "nvidia.com/gpus")
    assert (
        "no node has nvidia.com/gpus: they have nvidia.com/gpu (--resource NAME)" in found["notes"]
    )


def test_the_class_gives_the_priority(tmp_path: Path) -> None:
    """If the class is not given, pods of the cluster show its value."""
    it = cluster("dgx-a100")
    given = listed(it)
    made = manifest("batch/v1 Job", "t", {"template": template(2)})
    made["spec"]["template"]["spec"]["priorityClassName"] = "high"
    _, found = answer(tmp_path, given, made)
    assert any("PriorityClass high was not given" in note for note in found["notes"])
    other: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x", "namespace": "ml", "uid": "x"},
        "spec": {"priorityClassName": "high", "priority": 7, "containers": []},
    }
    _, found = answer(tmp_path, a_list([*given["items"], other]), made)
    assert found["notes"] == []


LIMITS = {"nvidia.com/gpu": 2, "vpc.amazonaws.com/efa": "1"}


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        (
            {"limits": {"nvidia.com/gpu": "500m"}},
            "resources.limits[nvidia.com/gpu]: '500m': expected a whole number of devices",
        ),
        (
            {"limits": LIMITS, "requests": {"vpc.amazonaws.com/efa": "1500m"}},
            "spec.containers[0].resources.requests[vpc.amazonaws.com/efa]: '1500m': expected a ",
        ),
        (
            {"requests": {"nvidia.com/gpu": 2}},
            "resources.requests[nvidia.com/gpu]: 2 without a limit: expected the same as",
        ),
        (
            {"limits": LIMITS, "requests": {"nvidia.com/gpu": "1"}},
            "resources.requests[nvidia.com/gpu]: 1 beside a limit of 2: expected the same as",
        ),
    ],
)
def test_what_kubernetes_refuses_of_extended_resources_is_refused(
    resources: Object, said: str, tmp_path: Path
) -> None:
    container = {"name": "main", "image": "x", "resources": resources}
    submitted = pod("half", 0, containers=[container])
    text = refusal(tmp_path, listed(cluster("dgx-a100")), submitted)
    assert "job.yaml: document 1: line 1: spec.containers[0].resources." in text
    assert said in text
    made = manifest("batch/v1 Job", "t", {"template": {"spec": submitted["spec"]}})
    assert said in refusal(tmp_path, listed(cluster("dgx-a100")), made)


def test_an_init_container_is_named_as_such(tmp_path: Path) -> None:
    container = {"name": "init", "resources": {"limits": {"nvidia.com/gpu": "0.5"}}}
    submitted = pod("half", 1, initContainers=[container])
    text = refusal(tmp_path, listed(cluster("dgx-a100")), submitted)
    assert "spec.initContainers[0].resources.limits[nvidia.com/gpu]: '0.5': expected" in text


@pytest.mark.parametrize("count", ["2", "2000m", "2e0"])
def test_a_whole_number_may_be_written_in_any_way(count: str, tmp_path: Path) -> None:
    resources = {
        "limits": {"nvidia.com/gpu": count},
        "requests": {"nvidia.com/gpu": 2, "cpu": "500m"},
    }
    submitted = pod("two", 0, containers=[{"name": "main", "resources": resources}])
    assert answer(tmp_path, listed(cluster("dgx-a100")), submitted)[0] == 0
