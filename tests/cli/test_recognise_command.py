"""`linkwise recognise` names the gangs of pods, and the place of an error in its input."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from linkwise.cli.__main__ import main
from tests.pods.podgrouper.pods import Object, owner, pod, template

JOB = owner(
    "batch/v1 Job",
    "lm",
    {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template()},
)
MEMBERS = [
    pod(f"lm-{index}-x7k2p", JOB, {"batch.kubernetes.io/job-completion-index": str(index)})
    for index in range(2)
]
NOTEBOOK = pod("nb-0", owner("apps/v1 StatefulSet", "nb"), {"notebook-name": "nb"})


def a_list(*items: Object) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def told(*arguments: str, given: str | bytes = "") -> Result:
    return CliRunner().invoke(main, ["recognise", *arguments], input=given)


def told_json(*arguments: str, given: str = "") -> list[dict[str, Any]]:
    result = told(*arguments, "-o", "json", given=given)
    pods: list[dict[str, Any]] = json.loads(result.stdout)["pods"]
    return pods


def test_each_pod_has_a_line_with_its_gang_or_why_it_has_none() -> None:
    result = told("-f", "-", given=yaml.safe_dump(a_list(*MEMBERS, JOB, NOTEBOOK)))
    assert result.exit_code == 0
    lines = [line.split(None, 8) for line in result.stdout.splitlines()]
    assert lines == [
        ["POD", "GANG", "SIZE", "MIN", "WAVES", "ROLE", "RANK", "RULE", "WHY"],
        *(
            [
                f"ml/lm-{index}-x7k2p",
                *("ml/Job.batch/lm", "2", "2", "-", "worker", str(index), "job"),
                "Job.batch ml/lm is Indexed and runs all its 2 pods at once",
            ]
            for index in range(2)
        ),
        ["ml/nb-0", "-", "1", "1", "-", "notebook", "-", "notebook", "a person works in it"],
    ]


def test_pods_that_their_owner_creates_after_others_are_a_wave_of_their_own() -> None:
    within = {"size": 4, "workerTemplate": template(8)}
    spec = {"replicas": 1, "startupPolicy": "LeaderReady", "leaderWorkerTemplate": within}
    made = owner("leaderworkerset.x-k8s.io/v1 LeaderWorkerSet", "vllm", spec)
    lines = told("-f", "-", given=json.dumps(made)).stdout.splitlines()
    assert [line.split()[2:6] for line in lines[1:]] == [
        ["4", "4", "1+3", "leader"],
        *[["4", "4", "1+3", "worker"]] * 3,
    ]
    first, *_ = told_json("-f", "-", given=json.dumps(made))
    assert first["waves"] == [1, 3]


def test_json_has_the_uid_that_tells_a_job_from_the_one_before_it() -> None:
    first, *_ = told_json("-f", "-", given=json.dumps(a_list(*MEMBERS, JOB)))
    assert first == {
        "namespace": "ml",
        "name": "lm-0-x7k2p",
        "answer": "gang",
        "rule": "job",
        "because": "Job.batch ml/lm is Indexed and runs all its 2 pods at once",
        "gang": "ml/Job.batch/lm",
        "uid": JOB["metadata"]["uid"],
        "size": 2,
        "minimum": 2,
        "gpu_size": 2,
        "gpu_minimum": 2,
        "basis": "heuristic",
        "role": "worker",
        "index": 0,
        "rank": 0,
    }


def test_pods_and_owners_may_be_in_several_files_and_documents(tmp_path: Path) -> None:
    pods, owners = tmp_path / "pods.yaml", tmp_path / "owners.json"
    pods.write_text("---\n" + yaml.safe_dump_all([MEMBERS[0], None, MEMBERS[1]]))
    owners.write_text(json.dumps(JOB))
    answers = told_json("-f", str(pods), "-f", str(owners))
    assert [answer["gang"] for answer in answers] == ["ml/Job.batch/lm"] * 2


def test_a_list_of_pods_says_their_kind_once() -> None:
    bare = [{key: made[key] for key in ("metadata", "spec")} for made in [NOTEBOOK]]
    pods = {"apiVersion": "v1", "kind": "PodList", "items": bare}
    assert [answer["rule"] for answer in told_json("-f", "-", given=json.dumps(pods))] == [
        "notebook"
    ]


PYTORCH = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "bert", "labels": None},
    "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template()}}},
}


def test_a_manifest_of_a_workload_stands_for_the_pods_that_its_operator_creates() -> None:
    answers = told_json("-f", "-", given=yaml.safe_dump(PYTORCH))
    assert [(each["name"], each["gang"], each["rank"]) for each in answers] == [
        ("bert-worker-0", "default/PyTorchJob.kubeflow.org/bert", 0),
        ("bert-worker-1", "default/PyTorchJob.kubeflow.org/bert", 1),
    ]


def test_a_job_with_a_status_stands_for_one_that_starts_anew() -> None:
    spec = {"completionMode": "Indexed", "parallelism": 4, "completions": 4, "template": template()}
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "t"}, "spec": spec}
    given = yaml.safe_dump({**made, "status": {"succeeded": 4}})
    assert {each["size"] for each in told_json("-f", "-", given=given)} == {4}


def test_a_stateful_set_whose_pods_may_need_each_other_says_what_to_write() -> None:
    spec = {"replicas": 2, "podManagementPolicy": "Parallel", "template": template()}
    made = owner("apps/v1 StatefulSet", "sglang", spec)
    assert [each["because"] for each in told_json("-f", "-", given=yaml.safe_dump(made))] == [
        "its pods are made one after the other, or are copies; a gang says linkwise.dev/gang"
    ] * 2
    container = spec["template"]["spec"]["containers"][0]  # type: ignore[index]
    container["command"] = ["python3", "-m", "sglang.launch_server", "--nnodes", "2"]
    assert [each["gang"] for each in told_json("-f", "-", given=yaml.safe_dump(made))] == [
        "ml/StatefulSet.apps/sglang"
    ] * 2


def test_a_list_may_mix_pods_and_workloads_of_all_kinds() -> None:
    deployment = owner("apps/v1 Deployment", "web", {"template": template()})
    del deployment["metadata"]["uid"]
    answers = told_json("-f", "-", given=yaml.safe_dump(a_list(PYTORCH, deployment, NOTEBOOK)))
    assert [each["rule"] for each in answers] == [
        *["pytorchjob"] * 2,
        "deployment",
        "notebook",
    ]


def test_two_jobs_of_one_generated_name_are_two() -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "sweep-"},
        "spec": {"template": template()},
    }
    answers = told_json("-f", "-", given=yaml.safe_dump_all([job, job]))
    assert len({each["name"] for each in answers}) == 2


def test_beside_the_pods_of_a_cluster_its_workloads_create_no_others() -> None:
    done = owner("batch/v1 Job", "done", {"template": template()})
    answers = told_json("-f", "-", given=json.dumps(a_list(JOB, done, *MEMBERS)))
    assert [each["name"] for each in answers] == ["lm-0-x7k2p", "lm-1-x7k2p"]


def test_a_workload_of_a_cluster_without_its_pods_stands_for_them() -> None:
    answers = told_json("-f", "-", given=json.dumps(JOB))
    assert [each["gang"] for each in answers] == ["ml/Job.batch/lm"] * 2


def test_a_mistyped_annotation_of_a_template_is_told_by_the_status() -> None:
    made = template(annotations={"linkwise.dev/gang-sise": "2"})
    text = yaml.safe_dump(owner("batch/v1 Job", "lm", {"template": made}))
    result = told("-f", "-", given=text)
    assert result.exit_code == 1
    why = "linkwise.dev/gang-sise: no such annotation: expected linkwise.dev/gang-size"
    assert why in result.stdout


def test_a_workload_whose_pods_are_unknown_is_named_and_told_by_the_status() -> None:
    given = yaml.safe_dump(
        a_list(PYTORCH, owner("apps/v1 DaemonSet", "d", {"template": template()}))
    )
    result = told("-f", "-", given=given)
    assert result.exit_code == 1
    assert "bert-worker-1" in result.stdout
    assert (
        "items[1]: DaemonSet.apps ml/d: it is unknown which pods it creates: pass its pods "
        "instead, as `kubectl get pods -o yaml` prints them once it runs"
    ) in result.stderr
    assert len(json.loads(told("-f", "-", "-o", "json", given=given).stdout)["left_out"]) == 1


def test_an_unknown_kind_without_a_pod_template_is_named_and_left_out() -> None:
    domain = owner("resource.nvidia.com/v1beta1 ComputeDomain", "cd", {"numNodes": 2})
    given = yaml.safe_dump(a_list(PYTORCH, domain))
    result = told("-f", "-", given=given)
    assert result.exit_code == 0
    assert "bert-worker-1" in result.stdout
    said = "ComputeDomain.resource.nvidia.com ml/cd: unknown kind without a pod template: left out"
    assert f"items[1]: {said}\n" in result.stderr
    (left_out,) = json.loads(told("-f", "-", "-o", "json", given=given).stdout)["left_out"]
    assert left_out.endswith(said)
    assert told("-f", "-", given=yaml.safe_dump(domain)).exit_code == 2


def test_what_names_no_namespace_is_in_the_default_one() -> None:
    for made in (JOB, MEMBERS[0]):
        assert made["metadata"]["namespace"] == "ml"
    text = yaml.safe_dump_all([MEMBERS[0], JOB]).replace("  namespace: ml\n", "")
    assert told_json("-f", "-", given=text)[0]["gang"] == "default/Job.batch/lm"


def test_an_owner_that_was_not_given_is_named_and_told_by_the_status() -> None:
    result = told("-f", "-", given=yaml.safe_dump(MEMBERS[0]))
    assert result.exit_code == 1
    assert "needs Job.batch ml/lm, which is in none of the files" in result.stdout
    answer = told_json("-f", "-", given=yaml.safe_dump(MEMBERS[0]))[0]
    assert (answer["answer"], answer["needs"]) == ("needs-owner", "Job.batch ml/lm")


def test_a_refused_pod_is_told_by_the_status() -> None:
    made = pod("w", annotations={"linkwise.dev/gang": "g", "linkwise.dev/gang-size": "four"})
    result = told("-f", "-", given=yaml.safe_dump(made))
    assert result.exit_code == 1
    assert "refused" in result.stdout
    assert "linkwise.dev/gang-size: 'four': expected a whole number" in result.stdout


def test_what_counts_as_a_gpu_and_as_a_gang_can_be_chosen() -> None:
    given = json.dumps(a_list(*MEMBERS, JOB))
    assert told_json("-f", "-", "--resource", "amd.com/gpu", given=given)[0]["gpu_size"] == 0
    assert told_json("-f", "-", "--indexed-jobs", "none", given=given)[0]["answer"] == "none"


def test_a_day_in_a_label_is_a_text_as_the_api_server_reads_it() -> None:
    text = yaml.safe_dump(NOTEBOOK).replace("notebook-name: nb", "notebook-name: 2026-01-02")
    assert told_json("-f", "-", given=text)[0]["rule"] == "notebook"


def test_all_wrong_annotations_are_named_and_what_does_nothing(tmp_path: Path) -> None:
    wrong = {"linkwise.dev/gang-sise": "2", "linkwise.dev/gang": "a", "linkwise.dev/rank": "x"}
    path = tmp_path / "job.yaml"
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "j",
            "labels": {"linkwise.dev/gang": "a"},
            "annotations": {"linkwise.dev/rank": "1"},
        },
        "spec": {"parallelism": 2, "completions": 2, "template": template(annotations=wrong)},
    }
    job["spec"]["template"]["metadata"]["annotations"]["linkwise.io/gang-size"] = "2"
    path.write_text(yaml.safe_dump(job))
    result = told("-f", str(path))
    row = result.stdout.splitlines()[1]
    assert "gang-sise: no such annotation" in row
    assert "linkwise.dev/rank: 'x'" in row
    assert "gang-size beside it" not in row
    where = f"linkwise: -f {path}: document 1:"
    misses = [
        "metadata: label linkwise.dev/gang has no effect: write it as an annotation",
        "metadata.annotations: linkwise.dev/rank: has no effect here; it belongs on the pod "
        "template",
        "spec.template.metadata: annotation linkwise.io/gang-size has no effect: write "
        "linkwise.dev/gang-size",
    ]
    assert result.stderr.splitlines() == [f"{where} {each}" for each in misses]
    (in_json,) = [json.loads(told("-f", str(path), "-o", "json").stdout)["near_misses"]]
    assert in_json == [f"-f {path}: document 1: {each}" for each in misses]


NO_POD = "no pod there, and no workload that creates one: `kubectl get pods -o yaml`"
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", NO_POD),
        (yaml.safe_dump({**JOB, "kind": "Jab", "spec": {}}), NO_POD),
        (
            yaml.safe_dump({**JOB, "spec": {"parallelism": -1}}),
            "document 1: spec.parallelism: -1: expected a whole number from 0 to 1000000",
        ),
        ("a: [1\nb: 2\n", "document 1: line 2: expected ',' or ']', but got ':'"),
        ('{"a": [1}', "document 1: line 1: expected ',' or ']', but got '}'"),
        ("a: \0\n", "document 1: line 1: character '\\x00': control characters are not allowed"),
        (
            "just text\n",
            "document 1: line 1: 'just text': expected an object with apiVersion and kind",
        ),
        (
            POD + "---\n- 1\n",
            "document 2: line 5: a list: expected an object with apiVersion and kind",
        ),
        (
            "kind: Pod\nmetadata: {name: a}\n",
            "document 1: line 1: apiVersion: missing: expected one such as v1 or batch/v1",
        ),
        (
            "apiVersion: v1\nmetadata: {name: a}\n",
            "document 1: line 1: kind: missing: expected a kind such as Pod or Job",
        ),
        (
            "apiVersion: v1\nkind: Pod\n",
            "document 1: line 1: metadata: missing: expected a mapping with a name",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {}\n",
            "document 1: line 3: metadata.name: missing: expected the object's name",
        ),
        (
            POD.replace("a}", "a, namespace: 7}"),
            "document 1: line 3: metadata.namespace: 7: expected a namespace, as a text",
        ),
        ("apiVersion: v1\nkind: List\nitems: 3\n", "document 1: line 3: items: 3: expected a list"),
        (
            "apiVersion: v1\nkind: List\nitems: [4]\n",
            "document 1: line 3: items[0]: 4: expected an object with apiVersion and kind",
        ),
        (
            POD.replace("a}", "a, name: b}"),
            "document 1: line 3: metadata.name: this key stands here twice",
        ),
        (
            '{"kind": "Pod",\n"kind": "Job"}',
            "document 1: line 2: kind: this key stands here twice",
        ),
        (
            POD.replace("a}", "a, labels: {x: 7}}"),
            'document 1: line 3: metadata.labels.x: 7: expected a text: write it in quotes, "7"',
        ),
        (
            POD + "spec: {containers: {}}\n",
            "document 1: line 4: spec.containers: a mapping: expected a list: "
            "at least one container",
        ),
    ],
)
def test_what_is_wrong_is_told_with_file_document_and_field(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(text)
    result = told("-f", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"linkwise: -f {path}: {problem}\n"


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    missing, binary = tmp_path / "none.yaml", tmp_path / "pods.bin"
    binary.write_bytes(b"\x80\x81")
    assert told("-f", str(missing)).stderr == f"linkwise: -f {missing}: No such file or directory\n"
    assert told("-f", str(binary)).stderr.startswith(f"linkwise: -f {binary}: not text: ")
    assert told("-f", "-", given=b"\x80").stderr.startswith(
        "linkwise: -f standard input: not text: "
    )


def test_no_file_at_all_is_refused() -> None:
    result = told()
    assert (result.exit_code, result.stderr) == (
        2,
        "linkwise: Missing option '-f' / '--filename'.\n",
    )


def test_aliases_of_aliases_are_refused_and_not_written_out() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for last, key in pairwise("abcdefghij"):
        lines.append(f"{key}: &{key} [{', '.join([f'*{last}'] * 9)}]")
    result = told("-f", "-", given="\n".join(lines))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "more than 100000 values in one document" in result.stderr
    assert "an alias that contains itself" in told("-f", "-", given="a: &a [*a]").stderr


def test_aliases_as_people_write_them_are_read() -> None:
    text = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: bert}
spec:
  pytorchReplicaSpecs:
    Master: &role
      template: {spec: {containers: [{name: m, image: x}]}}
    Worker: *role
"""
    assert [each["rank"] for each in told_json("-f", "-", given=text)] == [0, 1]


def test_a_role_that_is_a_number_ends_in_no_traceback() -> None:
    given = yaml.safe_dump(PYTORCH).replace("Worker:", "7:")
    assert told("-f", "-", given=given).exit_code == 0


def test_what_is_nested_deeply_is_refused_and_ends_nothing() -> None:
    for text in ("[" * 100_000, "- " * 100_000, "{a: " * 100_000):
        result = told("-f", "-", given=text)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1
