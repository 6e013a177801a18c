"""What is refused as it is applied, in the words that the extender would use later."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from linkwise.topology import names
from linkwise.webhook.patch import Rules
from tests.pods.podgrouper.pods import owner, pod, template
from tests.webhook.reviews import Object, ask, refusal, review, warnings

GANG = {names.GANG: "train", names.GANG_SIZE: "4"}
WRONG = {names.GANG: "train", names.GANG_SIZE: "four"}
SIZE = "linkwise.dev/gang-size: 'four': expected a whole number from 1 to 4096"
ANNOTATIONS = "spec.template.metadata.annotations"
WORKLOADS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "pods" / "podgrouper" / "workload_pods.json").read_text()
)["cases"]


def job(said: Object, *, pods: int = 4, gpus: int = 8, **metadata: Any) -> Object:
    spec = {"parallelism": pods, "completions": pods}
    made = owner("batch/v1 Job", "train", spec | {"template": of(said, gpus)})
    made["metadata"] |= metadata
    return made


def of(annotations: Object, gpus: int = 8) -> Object:
    return template(gpus, annotations=annotations)


def test_a_good_pod_and_a_good_job_are_let_in_without_a_word() -> None:
    assert warnings(pod("train-0", annotations=GANG)) == []
    assert warnings(job(GANG)) == []


@pytest.mark.parametrize("case", WORKLOADS, ids=[case["id"] for case in WORKLOADS])
def test_nothing_of_anybody_elses_is_refused_or_remarked_upon(case: dict[str, Any]) -> None:
    for made in [*(row["pod"] for row in case["pods"]), *case["objects"]]:
        assert warnings(made) == []


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (WRONG, SIZE),
        ({names.GANG: "train"}, "linkwise.dev/gang-size beside it"),
        ({names.GANG_SIZE: "4"}, "linkwise.dev/gang beside it"),
        ({"linkwise.dev/gangsize": "4"}, "no such annotation: expected linkwise.dev/gang-size"),
        ({"linkwise.dev/foo": "4"}, "no such annotation: expected linkwise.dev/ and one of comm"),
        ({names.REQUIRE_LINK: "nvlinks"}, "expected one of nvlink, switch, host-bridge"),
        ({names.GPU_MEMORY: "40 GB"}, "linkwise.dev/gpu-memory: '40 GB': expected a quantity"),
    ],
)
def test_a_pod_and_a_job_are_refused_for_the_same_reason(said: Object, why: str) -> None:
    of_pod = refusal(pod("train-0", annotations=said))
    assert why in of_pod
    assert refusal(job(said)) == f"{ANNOTATIONS}: {of_pod}"


def test_all_wrong_annotations_are_named_and_a_change_of_one_blocks_none() -> None:
    wrong = WRONG | {names.RANK: "first", names.REQUIRE_LINK: "NVLINK"}
    said = refusal(job(wrong))
    assert [part.split(":")[1].strip() for part in said.split("; ")] == [
        names.RANK,
        names.REQUIRE_LINK,
        names.GANG_SIZE,
    ]
    better = wrong | {names.RANK: "1"}
    for made in (job, lambda said: pod("train-0", annotations=said)):
        assert refusal(made(better), old=made(wrong)) == ""
        assert len(warnings(made(better), old=made(wrong))) == 2


def test_what_looks_like_an_annotation_and_does_nothing_is_warned_of() -> None:
    missed = {"linkwise.io/gang-size": "2"}
    label = {names.GANG: "a"}
    said = [
        "annotation linkwise.io/gang-size has no effect: write linkwise.dev/gang-size",
        "label linkwise.dev/gang has no effect: write it as an annotation",
    ]
    assert warnings(pod("train-0", annotations=missed, labels=label)) == said
    made = job(missed, labels=label)
    made["spec"]["template"]["metadata"]["labels"] = label
    assert warnings(made) == [
        *(f"spec.template.metadata: {each}" for each in said),
        f"metadata: {said[1]}",
    ]


def test_a_whole_job_s_gpus_on_one_pod_are_refused() -> None:
    why = "nvidia.com/gpu: 128 in one pod: expected 112 at most, as no machine has more"
    assert refusal(pod("train-0", gpus=128)).startswith(why)
    assert refusal(job(GANG, gpus=128)).startswith(f"{ANNOTATIONS}: {why}")
    assert warnings(pod("train-0", gpus=112)) == []


def test_a_pod_that_requests_gpus_of_two_vendors_is_refused() -> None:
    both = Rules(resources=("nvidia.com/gpu", "amd.com/gpu"))
    limits = {"nvidia.com/gpu": 1, "amd.com/gpu": 1}
    of_pod, of_job = pod("train-0"), job(GANG)
    for made, spec in (of_pod, of_pod["spec"]), (of_job, of_job["spec"]["template"]["spec"]):
        spec["containers"][0]["resources"] = {"limits": limits}
        why = "nvidia.com/gpu and amd.com/gpu in one pod: expected one of them"
        assert why in refusal(made, rules=both)
        assert refusal(made) == ""


def test_a_pod_that_says_too_much_is_refused_only_if_it_takes_gpus() -> None:
    large = pod("train-0")
    large["metadata"]["labels"] = {f"label-{number}": "x" for number in range(4000)}
    assert "KiB: expected 40 KiB at most" in refusal(large)
    for container in large["spec"]["containers"]:
        container["resources"] = {}
    assert warnings(large) == []


def cron_job(said: Object) -> Object:
    return owner("batch/v1 CronJob", "nightly", {"jobTemplate": {"spec": {"template": of(said)}}})


def job_set(said: Object, pods: int = 4) -> Object:
    spec = {"parallelism": pods, "completions": pods, "template": of(said)}
    jobs = [
        {"name": "driver", "template": {"spec": {"template": of({})}}},
        {"name": "worker", "replicas": 1, "template": {"spec": spec}},
    ]
    return owner("jobset.x-k8s.io/v1alpha2 JobSet", "train", {"replicatedJobs": jobs})


def training(kind: str, field: str, said: Object, replicas: int = 4) -> Object:
    spec = {"Master": {"template": of({})}, "Worker": {"replicas": replicas, "template": of(said)}}
    return owner(f"kubeflow.org/{kind}", "train", {field: spec})


@pytest.mark.parametrize(
    ("made", "path"),
    [
        (cron_job(WRONG), "spec.jobTemplate.spec.template.metadata.annotations"),
        (owner("apps/v1 Deployment", "web", {"template": of(WRONG)}), ANNOTATIONS),
        (owner("apps/v1 StatefulSet", "db", {"template": of(WRONG)}), ANNOTATIONS),
        (owner("apps/v1 DaemonSet", "all", {"template": of(WRONG)}), ANNOTATIONS),
        (
            job_set(WRONG),
            "spec.replicatedJobs[1].template.spec.template.metadata.annotations",
        ),
        (
            training("v1 PyTorchJob", "pytorchReplicaSpecs", WRONG),
            "spec.pytorchReplicaSpecs.Worker.template.metadata.annotations",
        ),
        (
            training("v2beta1 MPIJob", "mpiReplicaSpecs", WRONG),
            "spec.mpiReplicaSpecs.Worker.template.metadata.annotations",
        ),
        (owner("kubeflow.org/v1 Notebook", "n", {"template": of(WRONG)}), ANNOTATIONS),
        (
            owner(
                "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
                "serve",
                {"leaderWorkerTemplate": {"workerTemplate": of(WRONG)}},
            ),
            "spec.leaderWorkerTemplate.workerTemplate.metadata.annotations",
        ),
        (
            owner(
                "ray.io/v1 RayJob",
                "ray",
                {"rayClusterSpec": {"workerGroupSpecs": [{"template": of(WRONG)}]}},
            ),
            "spec.rayClusterSpec.workerGroupSpecs[0].template.metadata.annotations",
        ),
        (
            owner("batch.volcano.sh/v1alpha1 Job", "v", {"tasks": [{"template": of(WRONG)}]}),
            "spec.tasks[0].template.metadata.annotations",
        ),
        (
            owner(
                "sparkoperator.k8s.io/v1beta2 SparkApplication",
                "s",
                {"driver": {"annotations": WRONG}},
            ),
            "spec.driver.annotations",
        ),
    ],
)
def test_a_template_is_found_wherever_its_kind_has_it(made: Object, path: str) -> None:
    assert refusal(made) == f"{path}: {SIZE}"


def test_every_wrong_template_is_told_at_once() -> None:
    made = job_set(WRONG)
    made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"] = of({names.RANK: "-1"})
    first, second = refusal(made).split("; ")
    assert first.startswith("spec.replicatedJobs[0].template.spec.template.metadata.annotations: ")
    assert "linkwise.dev/rank: '-1'" in first
    assert second.endswith(SIZE)


@pytest.mark.parametrize(
    ("made", "other"),
    [
        (job(GANG, pods=8), "Job.batch ml/train runs 8 pods of it"),
        (
            owner("apps/v1 StatefulSet", "db", {"replicas": 5, "template": of(GANG)}),
            "StatefulSet.apps ml/db runs 5 pods of it",
        ),
        (
            owner(
                "batch/v1 CronJob",
                "nightly",
                {
                    "jobTemplate": {
                        "spec": {"parallelism": 6, "completions": 6, "template": of(GANG)}
                    }
                },
            ),
            "Job.batch ml/nightly-0 runs 6 pods of it",
        ),
        (job_set(GANG, pods=5), "JobSet.jobset.x-k8s.io ml/train runs 5 pods of it"),
        (
            training("v1 PyTorchJob", "pytorchReplicaSpecs", GANG, replicas=5),
            "PyTorchJob.kubeflow.org ml/train runs 5 pods of it",
        ),
        (
            training("v2beta1 MPIJob", "mpiReplicaSpecs", GANG, replicas=5),
            "MPIJob.kubeflow.org ml/train runs 5 pods of it",
        ),
        (
            owner(
                "batch.volcano.sh/v1alpha1 Job",
                "v",
                {"tasks": [{"name": "w", "replicas": 5, "template": of(GANG)}]},
            ),
            "Job.batch.volcano.sh ml/v runs 5 pods of it",
        ),
        (
            owner(
                "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
                "serve",
                {"leaderWorkerTemplate": {"size": 5, "workerTemplate": of(GANG)}},
            ),
            "LeaderWorkerSet.leaderworkerset.x-k8s.io ml/serve runs 5 pods of it",
        ),
        (
            owner(
                "ray.io/v1 RayJob",
                "ray",
                {
                    "rayClusterSpec": {
                        "headGroupSpec": {"template": of({})},
                        "workerGroupSpecs": [
                            {"groupName": "w", "replicas": 5, "template": of(GANG)}
                        ],
                    }
                },
            ),
            "runs 5 pods of it",
        ),
        (job_set(GANG, pods=10**6), "runs 1000000 pods of it"),
    ],
)
def test_a_gang_that_cannot_come_true_is_refused_with_both_sources(
    made: Object, other: str
) -> None:
    said = refusal(made)
    assert "linkwise.dev/gang 'train': linkwise.dev/gang-size is 4, but " in said
    assert other in said


def test_a_pod_that_names_two_groups_is_refused_with_both() -> None:
    labels = {"kueue.x-k8s.io/pod-group-name": "g"}
    count = {"kueue.x-k8s.io/pod-group-total-count": "8"}
    said = refusal(pod("train-0", labels=labels, annotations=GANG | count))
    assert said == (
        "linkwise.dev/gang 'train': linkwise.dev/gang-size is 4, "
        "but kueue.x-k8s.io/pod-group-total-count: 8"
    )
    # Kueue's own mistakes are Kueue's to tell.
    theirs = {next(iter(count)): "many", names.RANK: "1"}
    assert not refusal(pod("k", labels=labels, annotations=theirs))


@pytest.mark.parametrize("key", names.BY_EXTENDER)
def test_what_the_extender_decides_is_refused_in_templates_and_counts_for_nothing_in_pods(
    key: str,
) -> None:
    assert refusal(job({key: "x"})) == (
        f"{ANNOTATIONS}: {key}: only Linkwise's extender decides this, for each pod; remove it"
    )
    assert not refusal(pod("train-0", annotations={key: "x"}))
    assert key in refusal(job(GANG | {key: "x"}, pods=8))  # before what else is wrong with it


def test_a_number_without_quotes_is_told_from_a_text() -> None:
    """Of kinds with a schema the API server says so itself; others keep what they are given."""
    assert refusal(job({names.GANG_SIZE: 4})) == (
        f"{ANNOTATIONS}: linkwise.dev/gang-size: 4: expected a string, in quotes"
    )


def test_annotations_at_a_place_where_they_do_nothing_are_remarked_upon() -> None:
    said = {names.GANG: "x", "other.example/key": "y"}
    assert warnings(job({}, annotations=said)) == [
        "metadata.annotations: linkwise.dev/gang: has no effect here; "
        "it belongs on the pod template"
    ]
    notebook = owner("kubeflow.org/v1 Notebook", "n", {"template": of({})})
    notebook["metadata"]["annotations"] = said  # its controller copies them to the pod
    assert warnings(notebook) == []


def test_what_was_wrong_before_stops_no_change_of_something_else() -> None:
    before, after = job(WRONG), job(WRONG, pods=5)
    assert warnings(after, before) == [f"{ANNOTATIONS}: {SIZE}"]
    worse = job(WRONG | {names.RANK: "-1"})
    assert "linkwise.dev/rank: '-1'" in refusal(worse, before)
    assert refusal(job(WRONG), job(GANG))
    assert warnings(job(GANG), job(WRONG)) == []


def test_a_pods_annotations_are_judged_when_they_are_changed_too() -> None:
    before = pod("train-0", annotations=GANG, nodeName="n1")
    after = deepcopy(before)
    after["metadata"]["annotations"][names.GANG_SIZE] = "four"
    assert refusal(after, before) == SIZE
    assert warnings(after, after) == [SIZE]


def test_what_runs_well_today_is_not_stopped() -> None:
    """A web server with a misspelt annotation, of which a node takes ten replicas down."""
    web = owner("apps/v1 ReplicaSet", "web")
    assert warnings(pod("web-x", by=web, annotations=WRONG, gpus=0)) == [SIZE]
    assert refusal(pod("web-x", by=web, annotations=WRONG, gpus=1)) == SIZE
    assert refusal(pod("web", annotations=WRONG, gpus=0)) == SIZE


def test_what_a_controller_makes_of_an_object_is_let_in_and_its_pods_are_judged() -> None:
    child = job(WRONG)
    child["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "u", "controller": True}
    ]
    assert warnings(child) == [f"{ANNOTATIONS}: {SIZE}"]


@pytest.mark.parametrize(
    "changes",
    [
        {"operation": "DELETE", "object": None},
        {"operation": "CONNECT"},
        {"subResource": "status"},
        {"object": None},
        {"object": []},
        {"object": {"spec": 1, "metadata": []}},
    ],
)
def test_nothing_but_what_is_written_is_judged(changes: Object) -> None:
    for made in (job(WRONG), pod("train-0", annotations=WRONG)):
        asked = review(made)
        assert not ask("/validate", asked)["allowed"]
        asked["request"] |= changes
        assert ask("/validate", asked)["allowed"]


def test_a_deep_and_a_wide_object_are_read_to_the_end() -> None:
    inner: Object = of(WRONG)
    for _ in range(400):
        inner = {"deeper": inner}
    made = owner("example.org/v1 Odd", "odd", {"wide": [{}] * 20_000, "deep": inner})
    assert refusal(made).endswith(SIZE)


PREEMPTIBLE = {names.PREEMPTIBLE: "true"}
IGNORES = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.mark.parametrize("said", [PREEMPTIBLE, {names.RECLAIM: "4h"}])
@pytest.mark.parametrize(
    ("make", "path"),
    [
        (job, "spec"),
        (cron_job, "spec.jobTemplate.spec"),
        (job_set, "spec.replicatedJobs[1].template.spec"),
    ],
)
def test_a_job_that_an_eviction_may_fail_is_remarked_upon(
    make: Callable[[Object], Object], path: str, said: Object
) -> None:
    ((key, value),) = said.items()
    why = "its Job counts an eviction as a failure, because its podFailurePolicy does not ignore "
    todo = "DisruptionTarget; add a rule with action: Ignore"
    made = make(said)
    assert warnings(made) == [f"{path}.podFailurePolicy: {key}: {value}: {why}{todo}"]
    assert "warnings" not in ask("/validate", review(made, operation="UPDATE", old=made))
    spec: Any = made
    for step in path.replace("[1]", ".1").split("."):
        spec = spec[int(step) if step == "1" else step]
    spec["podFailurePolicy"] = {"rules": [IGNORES]}
    assert warnings(made) == []


@pytest.mark.parametrize("said", [{}, {names.PREEMPTIBLE: "false"}, {names.RECLAIM: "never"}])
def test_a_job_whose_pods_do_not_consent_is_let_in_without_a_word(said: Object) -> None:
    assert warnings(job(said)) == []


def test_thousands_of_faults_are_refused_in_a_few_lines() -> None:
    groups = [
        {"groupName": f"g{n}", "replicas": 1, "template": of({f"linkwise.dev/{'x' * 50}{n}": "x"})}
        for n in range(4000)
    ]
    cluster = owner("ray.io/v1 RayCluster", "train", {"workerGroupSpecs": groups})
    assert len(refusal(cluster)) < 12_000
    assert refusal(cluster).endswith("; and 3990 more")
    (*first, last) = warnings(cluster, cluster)
    assert len(first) == 10
    assert last == "and 3990 more"


def test_an_annotation_that_is_too_long_is_quoted_in_part() -> None:
    assert len(refusal(job({f"linkwise.dev/{'x' * 200_000}": "x"}))) == 1024
