"""What looks like a gang and is none, what describes one gang twice, and what is not there."""

import msgspec
import pytest

from linkwise.kube.objects import Pod
from linkwise.pods.claims import ClaimAsk, write_claims
from linkwise.pods.podgrouper.decide import recognise
from linkwise.pods.podgrouper.workloads.answer import (
    Basis,
    IndexedJobs,
    Missing,
    NeedsOwner,
    NoGang,
    ObjectRef,
    Recognised,
    Refused,
)
from linkwise.pods.podgrouper.workloads.essence import essence
from linkwise.topology import names
from tests.pods.podgrouper.pods import (
    Object,
    gang,
    needed,
    owner,
    pod,
    ref_of,
    reference,
    template,
    told,
)

TRAINING = "training.kubeflow.org/"
INDEX = "batch.kubernetes.io/job-completion-index"
POD_GROUP = "scheduling.x-k8s.io/v1alpha1 PodGroup"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"


def pytorch_job(name: str = "bert", **spec: object) -> Object:
    replicas = {"Worker": {"replicas": 4, "template": template()}}
    return owner("kubeflow.org/v1 PyTorchJob", name, {"pytorchReplicaSpecs": replicas, **spec})


def worker(job: Object, group: str = "") -> Object:
    labels = {TRAINING + "replica-type": "worker", TRAINING + "replica-index": "2"}
    if group:
        labels[POD_GROUP_LABEL] = group
    return pod(f"{job['metadata']['name']}-worker-2", job, labels)


def indexed_job(by: Object | None = None, **spec: object) -> Object:
    counts = {"parallelism": 4, "completions": 4, "completionMode": "Indexed"}
    return owner("batch/v1 Job", "lm", {**counts, "template": template(), **spec}, by)


def of_indexed(job: Object) -> Object:
    return pod("lm-3-x7k2p", job, {INDEX: "3"})


def claimed_template(template: str) -> Object:
    claims = [{"name": "gpus", "resourceClaimTemplateName": template}]
    return {"spec": {"containers": [{"name": "main"}], "resourceClaims": claims}}


def of_claim(made: Object, template: str) -> Object:
    """The webhook's patch."""
    ask = ClaimAsk("gpus", f"linkwise-{'a':0>20}", {"gpu": 2}, template)
    made["metadata"]["annotations"][names.CLAIMS] = write_claims(ask)
    made["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": ask.claim}]
    return made


def native(**policy: object) -> Object:
    return owner("scheduling.k8s.io/v1beta1 PodGroup", "g", {"schedulingPolicy": policy})


def in_native_group(made: Object) -> Object:
    made["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    return made


def test_labels_of_a_training_job_on_somebody_elses_pod_prove_nothing() -> None:
    copied = {TRAINING + "job-name": "bert", TRAINING + "replica-type": "worker"}
    replica_set = owner("apps/v1 ReplicaSet", "web-6b8d7f9c5")
    answer = told(pod("web-6b8d7f9c5-x", replica_set, copied), [pytorch_job()])
    assert isinstance(answer.answer, NoGang)
    assert answer.answer.rule == "deployment"
    assert not answer.gets


def test_labels_of_a_jobset_on_a_pod_of_another_job_prove_nothing() -> None:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "gpt",
        "jobset.sigs.k8s.io/replicatedjob-name": "workers",
    }
    answer = told(pod("sweep-c9kzt", owner("batch/v1 Job", "sweep"), labels)).answer
    assert isinstance(answer, NoGang)
    assert answer.rule == "job"


def test_the_reference_that_controls_counts_not_the_first_one() -> None:
    job = pytorch_job()
    made = worker(job)
    first = reference(owner("apps/v1 ReplicaSet", "other"), controller=False)
    made["metadata"]["ownerReferences"].insert(0, first)
    assert gang(made, job).rule == "pytorchjob"


def test_a_job_made_again_under_its_old_name_is_another_gang() -> None:
    job = pytorch_job()
    again = msgspec.json.decode(msgspec.json.encode(job))
    again["metadata"]["uid"] = "another"
    assert gang(worker(job), job).gang != gang(worker(again), again).gang
    assert str(gang(worker(job), job).gang) == str(gang(worker(again), again).gang)


def test_a_pod_of_a_job_that_was_replaced_waits_for_nobody() -> None:
    job = pytorch_job()
    made = worker(job)
    job["metadata"]["uid"] = "another"
    answer = told(made, [job]).answer
    assert isinstance(answer, NoGang)
    assert answer.because == (
        "PyTorchJob.kubeflow.org ml/bert is a new one of the same name: "
        "the pod belongs to the old one"
    )


@pytest.mark.parametrize("missing", list(Missing))
def test_an_owner_that_cannot_be_read_makes_nobody_wait(missing: Missing) -> None:
    answer = told(worker(pytorch_job()), missing=missing).answer
    assert isinstance(answer, NoGang)
    assert answer.because == f"PyTorchJob.kubeflow.org ml/bert {missing.value}"


def test_what_has_to_be_read_is_named_with_its_path() -> None:
    answer = needed(worker(pytorch_job()), {})
    assert answer.owner == ObjectRef("kubeflow.org", "PyTorchJob", "ml", "bert")
    assert answer.paths == ("/apis/kubeflow.org/v1/namespaces/ml/pytorchjobs/bert",)
    assert answer.rule == "pytorchjob"


def test_a_group_whose_version_no_reference_tells_is_looked_for_in_all() -> None:
    answer = needed(in_native_group(pod("lm-0")), {})
    paths = "/apis/scheduling.k8s.io/{}/namespaces/ml/podgroups/g"
    assert answer.paths == tuple(paths.format(v) for v in ("v1beta1", "v1alpha3", "v1alpha2"))


def test_a_group_that_the_pod_names_and_that_is_not_there_yet_is_waited_for() -> None:
    made = pod("w", labels={POD_GROUP_LABEL: "g"})
    answer = told(made).answer
    assert isinstance(answer, NeedsOwner)
    assert answer.missing
    assert answer.because == (
        "PodGroup.scheduling.x-k8s.io ml/g does not exist: the pod waits for it"
    )


@pytest.mark.parametrize("missing", [Missing.FORBIDDEN, Missing.NOT_SERVED])
def test_a_group_that_nobody_can_read_leaves_the_word_to_the_owner(missing: Missing) -> None:
    job = pytorch_job()
    made = worker(job, group="g")
    group = ObjectRef("scheduling.x-k8s.io", "PodGroup", "ml", "g")
    answer = recognise(msgspec.convert(made, Pod), {ref_of(job): job, group: missing})
    assert not isinstance(answer, NoGang | NeedsOwner | Refused)
    assert answer.rule == "pytorchjob"


def test_a_group_that_the_pods_owner_controls_is_the_owners_gang() -> None:
    job = pytorch_job()
    group = owner(POD_GROUP, "bert", {"minMember": 3, "queue": "q1"}, by=job)
    answer = gang(worker(job, group="bert"), job, group)
    assert str(answer.gang) == "ml/PyTorchJob.kubeflow.org/bert"
    assert (answer.size, answer.minimum, answer.basis) == (4, 3, Basis.DECLARED)
    assert "3 at once" in answer.because
    assert "runs 4 worker" in answer.because


def test_the_old_label_of_the_name_alone_means_the_pod_group_of_that_name() -> None:
    """Found: RoleBasedGroup labels its pods so, and all were refused."""
    group = owner(POD_GROUP, "g", {"minMember": 3})
    made = pod("w-0", None, {"pod-group.scheduling.sigs.k8s.io/name": "g"}, gpus=4)
    answer = gang(made, group)
    assert (answer.rule, answer.minimum) == ("coscheduling", 3)


def test_a_group_that_a_person_made_stands_for_itself_and_more_may_join() -> None:
    job = pytorch_job()
    group = owner(POD_GROUP, "mine", {"minMember": 6})
    answer = gang(worker(job, group="mine"), job, group)
    assert str(answer.gang) == "ml/PodGroup.scheduling.x-k8s.io/mine"
    assert (answer.size, answer.open_ended, answer.member.rank) == (6, True, 2)


def test_the_group_that_volcano_gives_to_any_pod_makes_no_gang() -> None:
    replica_set = owner("apps/v1 ReplicaSet", "web-6b8d7f9c5")
    name = f"podgroup-{replica_set['metadata']['uid']}"
    made = pod("web-x", replica_set, annotations={"scheduling.k8s.io/group-name": name})
    group = owner("scheduling.volcano.sh/v1beta1 PodGroup", name, {"minMember": 1})
    for objects in ([group], []):
        answer = told(made, objects).answer
        assert isinstance(answer, NoGang)
        assert answer.rule == "deployment"


def test_groups_for_fast_admission_come_one_by_one() -> None:
    stateful = owner("apps/v1 StatefulSet", "web", {"replicas": 3, "template": template()})
    made = pod(
        "web-0",
        stateful,
        {"kueue.x-k8s.io/pod-group-name": "web"},
        {
            "kueue.x-k8s.io/pod-group-total-count": "3",
            "kueue.x-k8s.io/pod-group-fast-admission": "true",
        },
    )
    answer = told(made, [stateful]).answer
    assert isinstance(answer, NoGang)
    assert answer.rule == "statefulset"


def test_a_driver_of_spark_does_not_wait_for_the_executors_it_will_ask_for() -> None:
    made = pod(
        "etl-driver",
        labels={"spark-role": "driver", "spark-app-selector": "s", "applicationId": "s"},
        annotations={
            "yunikorn.apache.org/task-group-name": "driver",
            "yunikorn.apache.org/task-groups": '[{"name":"executor","minMember":4}]',
        },
    )
    assert isinstance(told(made).answer, NoGang)


def test_a_basic_policy_beats_the_reading_of_an_indexed_job() -> None:
    job = indexed_job()
    assert gang(of_indexed(job), job).basis is Basis.HEURISTIC
    answer = told(in_native_group(of_indexed(job)), [job, native(basic={})]).answer
    assert isinstance(answer, NoGang)
    assert answer.rule == "native-pod-group"
    job["spec"]["scheduling"] = {"schedulingPolicy": {"basic": {}}}
    assert isinstance(told(of_indexed(job), [job]).answer, NoGang)


def test_the_basic_group_that_every_job_gets_says_nothing() -> None:
    """Kubernetes 1.37 with WorkloadWithJob: 3 of 4 pods of an Indexed Job started."""
    job, group = indexed_job(), native(basic={})
    group["metadata"]["ownerReferences"] = [reference(job)]
    answer = gang(in_native_group(of_indexed(job)), job, group)
    assert (answer.rule, answer.size, answer.basis) == ("job", 4, Basis.HEURISTIC)
    job["spec"]["scheduling"] = {"schedulingPolicy": {"basic": {}}}
    assert isinstance(told(in_native_group(of_indexed(job)), [job, group]).answer, NoGang)


def test_a_basic_group_that_a_child_job_got_unasked_leaves_its_jobset_a_gang() -> None:
    child = owner("batch/v1 Job", "gpt-node-0")
    node = {"spec": {"parallelism": 4, "completions": 4, "template": template()}}
    job_set = owner(
        "jobset.x-k8s.io/v1alpha2 JobSet",
        "gpt",
        {"replicatedJobs": [{"name": "node", "replicas": 2, "template": node}]},
    )
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "gpt",
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
    }
    made = in_native_group(pod("gpt-node-0-1-a1b2c", child, labels))
    group = native(basic={})
    group["metadata"]["ownerReferences"] = [reference(child)]
    assert gang(made, job_set, group).rule == "jobset"
    group["metadata"]["ownerReferences"] = []
    assert isinstance(told(made, [job_set, group]).answer, NoGang)


def test_a_job_that_asks_for_a_gang_is_one_whatever_its_counts_look_like() -> None:
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    job = indexed_job(completions=10, scheduling=policy)
    answer = gang(of_indexed(job), job)
    assert (answer.size, answer.minimum, answer.basis) == (4, 2, Basis.DECLARED)


def test_a_job_without_an_index_is_read_by_nobody() -> None:
    result = told(pod("sweep-c9kzt", owner("batch/v1 Job", "sweep", {"parallelism": 8})))
    assert isinstance(result.answer, NoGang)
    assert not result.gets


def torchrun(command: list[str], **spec: object) -> tuple[Object, Object]:
    """A pod, and its Job without indices."""
    made = template()
    made["spec"]["containers"][0]["command"] = command
    counts = {"parallelism": 4, "completions": 4, "template": made}
    job = owner("batch/v1 Job", "lm", {**counts, **spec})
    return pod("lm-x7k2p", job, containers=made["spec"]["containers"]), job


@pytest.mark.parametrize(
    ("command", "minimum"),
    [
        (["torchrun", "--nnodes=4", "train.py"], 4),
        (["torchrun", "--nnodes", "2:4", "train.py"], 2),
        (["sh", "-c", "exec torchrun --nnodes '4' \\\n train.py"], 4),
    ],
)
def test_a_job_without_an_index_whose_command_counts_its_pods_is_a_gang(
    command: list[str], minimum: int
) -> None:
    """Found: two of four started, and waited for the others with their GPUs."""
    made, job = torchrun(command)
    answer = gang(made, job)
    assert (answer.rule, answer.size, answer.minimum) == ("job", 4, minimum)
    assert gang(made, {**essence(job)}) == answer  # the extender caches the essence alone
    made, job = torchrun(command, completions=None)
    assert gang(made, job).minimum == minimum
    made, job = torchrun(command)
    job["status"] = {"succeeded": 1}
    answer = gang(made, job)
    assert (answer.size, answer.minimum, answer.done) == (3, minimum - 1, 1)


@pytest.mark.parametrize(
    ("command", "spec"),
    [
        (["torchrun", "--nnodes=2"], {}),
        (["torchrun", "--nnodes=2:8"], {}),
        (["torchrun", "--nnodes=4"], {"completions": 8}),
        (["torchrun", "--nnodes=1"], {"parallelism": 1, "completions": 1}),
    ],
)
def test_other_numbers_of_nodes_make_no_gang(command: list[str], spec: Object) -> None:
    made, job = torchrun(command, **spec)
    assert isinstance(told(made, [job]).answer, NoGang)


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [
        (
            {
                "pod-group.scheduling.sigs.k8s.io/name": "g",
                "pod-group.scheduling.sigs.k8s.io/min-available": "0",
            },
            {},
        ),
        (
            {},
            {
                "gang.scheduling.koordinator.sh/name": "g",
                "gang.scheduling.koordinator.sh/min-available": "0",
                "gang.scheduling.koordinator.sh/total-number": "3",
            },
        ),
    ],
    ids=["scheduler-plugins", "koordinator"],
)
def test_with_a_minimum_of_zero_no_pod_waits_for_another(
    labels: dict[str, str], annotations: dict[str, str]
) -> None:
    assert isinstance(told(pod("w", labels=labels, annotations=annotations)).answer, NoGang)


def test_members_lost_their_labels_and_are_known_by_name() -> None:
    job = pytorch_job()
    member = gang(pod("bert-worker-3", job), job).member
    assert (member.role, member.rank) == ("worker", 3)


@pytest.mark.parametrize("prefix", ["tf-", "pytorch-", ""])
def test_labels_of_older_operators_are_read(prefix: str) -> None:
    job = pytorch_job()
    labels = {f"{prefix}replica-type": "Worker", f"{prefix}replica-index": "1"}
    member = gang(pod("x", job, labels), job).member
    assert (member.role, member.rank) == ("worker", 1)


@pytest.mark.parametrize("replicas", ["four", -1, True, 2.5, 10**9])
def test_a_count_that_is_none_is_refused_with_its_place(replicas: object) -> None:
    job = pytorch_job(pytorchReplicaSpecs={"Worker": {"replicas": replicas}})
    answer = told(worker(job), [job]).answer
    assert isinstance(answer, Refused)
    assert answer.because == (
        f"PyTorchJob.kubeflow.org: replicas: {replicas!r}: "
        "expected a whole number from 0 to 1000000"
    )


@pytest.mark.parametrize("count", ["", "three", "0", "-1", "1" * 80])
def test_a_group_of_pods_with_no_good_count_is_refused_with_its_key(count: str) -> None:
    key = "kueue.x-k8s.io/pod-group-total-count"
    made = pod("w", labels={"kueue.x-k8s.io/pod-group-name": "g"}, annotations={key: count})
    answer = told(made).answer
    assert isinstance(answer, Refused)
    assert answer.because.startswith(f"{key}: ")
    assert "expected a whole number from 1" in answer.because


def test_task_groups_that_are_no_json_are_refused() -> None:
    made = pod(
        "w",
        labels={"applicationId": "a"},
        annotations={"yunikorn.apache.org/task-groups": '[{"name":"w"}]'},
    )
    answer = told(made, indexed_jobs=IndexedJobs.NONE).answer
    assert isinstance(answer, Refused)
    assert answer.because == (
        "yunikorn.apache.org/task-groups: Object missing required field `minMember` - at `$[0]`"
    )


def test_labels_of_a_launcher_on_a_pod_of_another_job_prove_nothing() -> None:
    labels = {
        TRAINING + "operator-name": "mpi-operator",
        TRAINING + "job-name": "hvd",
        TRAINING + "job-role": "launcher",
    }
    result = told(pod("sweep-c9kzt", owner("batch/v1 Job", "sweep"), labels))
    assert isinstance(result.answer, NoGang)
    assert result.answer.rule == "job"


@pytest.mark.parametrize(
    "name",
    ["../../../../v1/namespaces/default", "a?watch=true", "a/status", "A", "a%2f", "a."],
)
def test_what_is_no_name_of_an_object_ends_in_no_path(name: str) -> None:
    """Every user who may create a pod chooses what its annotations say."""
    result = told(pod("w", annotations={"pod-group-name": name}))
    assert isinstance(result.answer, NoGang)
    assert result.gets == ()


@pytest.mark.parametrize("version", ["..", "v1?watch=true", "v1;"])
def test_what_is_no_version_of_an_api_ends_in_no_path(version: str) -> None:
    by = owner(f"batch/{version} Job", "train")
    result = told(pod("w", by, annotations={INDEX: "0"}))
    assert isinstance(result.answer, NoGang)
    assert result.answer.because.endswith("is no name that an object can have")
    assert result.gets == ()


def test_pods_whose_gpus_come_of_the_template_of_a_claim_are_a_gang() -> None:
    job = indexed_job(template=claimed_template("two-gpus"))
    made = of_claim(pod("lm-3-x7k2p", job, {INDEX: "3"}, gpus=0), "two-gpus")
    answer = recognise(msgspec.convert(made, Pod), {ref_of(job): essence(job)})
    assert isinstance(answer, Recognised), answer
    assert (answer.size, answer.gpu_size) == (4, 4)


def test_a_template_of_another_claim_need_not_be_for_gpus() -> None:
    job = pytorch_job()
    replicas = job["spec"]["pytorchReplicaSpecs"]
    replicas["Worker"]["template"] = claimed_template("two-gpus")
    replicas["Master"] = {"replicas": 1, "template": claimed_template("network")}
    made = of_claim(worker(job), "two-gpus")
    made["spec"]["containers"] = [{"name": "main"}]
    found = gang(made, job)
    assert (found.size, found.gpu_size) == (5, 4)
    both = claimed_template("two-gpus")
    both["spec"]["resourceClaims"].append({"name": "net", "resourceClaimTemplateName": "network"})
    replicas["Master"]["template"] = both
    assert gang(made, job).gpu_size == 4


def test_a_template_with_a_claim_by_name_is_that_of_no_template() -> None:
    job = pytorch_job()
    shared = claimed_template("")
    shared["spec"]["resourceClaims"] = [{"name": "cache", "resourceClaimName": "shared-cache"}]
    job["spec"]["pytorchReplicaSpecs"]["Master"] = {"replicas": 1, "template": shared}
    made = of_claim(worker(job), "")
    made["spec"]["containers"] = [{"name": "main"}]
    assert gang(made, job).gpu_size == 4
