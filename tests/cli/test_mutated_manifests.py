"""A thousand manifests with slips: an answer or one clear line; no pod is dropped in silence."""

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from linkwise.cli.__main__ import main
from linkwise.cli.errors import BadInputError
from linkwise.cli.what_if.given.job import read_job
from linkwise.simulator.manifests.object_reader import ManifestError
from linkwise.simulator.manifests.read_manifests import read_manifests
from tests.pods.podgrouper.pods import Object

POD = {"spec": {"containers": [{"name": "a", "image": "x", "resources": {"limits": {"cpu": 1}}}]}}
ENDING = {"spec": {**POD["spec"], "restartPolicy": "Never"}}
JOB = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": ENDING}
LWS = {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": POD}}
GROUPS = [{"groupName": "g", "replicas": 2, "maxReplicas": 4, "template": POD}]
OBJECTS = {
    "v1 Pod": POD["spec"],
    "batch/v1 Job": JOB,
    "apps/v1 StatefulSet": {"replicas": 2, "template": POD},
    "jobset.x-k8s.io/v1alpha2 JobSet": {
        "replicatedJobs": [{"name": "n", "replicas": 2, "template": {"spec": JOB}}]
    },
    "batch.volcano.sh/v1alpha1 Job": {"tasks": [{"name": "w", "replicas": 2, "template": POD}]},
    "kubeflow.org/v1 PyTorchJob": {
        "pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": POD}}
    },
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet": LWS,
    "ray.io/v1 RayCluster": {"headGroupSpec": {"template": POD}, "workerGroupSpecs": GROUPS},
    "x.io/v1 Unknown": {"template": POD},
}
BESIDE = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "beside"}, "spec": POD["spec"]}
VALUES: tuple[object, ...] = (
    None,
    -1,
    0,
    3,
    10**9,
    1.5,
    True,
    "",
    "x",
    "8",
    [],
    {},
    [1],
    {"a": 1},
    [{}],
    "\0",
)
# These say that there is nothing to run, each in its own way.
NOTHING = {"replicas", "parallelism", "completions", "podGroupSize", "maxReplicas", "size"}


def manifest(kind: str) -> Object:
    api_version, _, word = kind.rpartition(" ")
    metadata = {"name": "lm", "namespace": "ml", "labels": {"a": "b"}}
    spec = copy.deepcopy(OBJECTS[kind])
    return {"apiVersion": api_version, "kind": word, "metadata": metadata, "spec": spec}


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        inside = [*value.items()]
    else:
        inside = [*enumerate(value)] if isinstance(value, list) else []
    for step, item in inside:
        yield from spots(item, (*path, step))


def mutate(made: Object, chance: random.Random) -> str:
    """Cut, mistype or change something; return which key."""
    path = chance.choice([*spots(made)])
    around: Any = made
    for step in path[:-1]:
        around = around[step]
    last, how = path[-1], chance.choice(("cut", "mistype", "change"))
    if how == "cut":
        del around[last]
    elif how == "mistype" and isinstance(last, str):
        around[last + "X"] = around.pop(last)
    else:
        around[last] = copy.deepcopy(chance.choice(VALUES))
    return str(last)


@pytest.mark.parametrize(("shard", "kind"), [*enumerate(sorted(OBJECTS))])
def test_a_slip_is_answered_or_refused_in_one_line(tmp_path: Path, shard: int, kind: str) -> None:
    chance = random.Random(shard)
    for _ in range(112):  # of nine kinds: a thousand
        made = manifest(kind)
        key = mutate(made, chance)
        text = yaml.safe_dump_all([made, BESIDE])
        result = CliRunner().invoke(main, ["recognise", "-f", "-"], input=text)
        assert isinstance(result.exception, SystemExit | None), text
        assert result.exit_code in (0, 1, 2), text
        assert result.exit_code != 2 or result.stderr.count("\n") == 1, text
        # The object's pods, or why there are none, beside the header and the other pod.
        rows = len(result.stdout.splitlines()) - 2
        assert rows > 0 or result.stderr or key in NOTHING, text
        for refusal in (of_simulator(text), of_what_if(tmp_path / "job.yaml", text)):
            assert "\n" not in refusal, text


TYPED = """\
apiVersion: v1
kind: Pod
metadata:
  name: one
  annotations:
    linkwise.dev/gang: a
spec:
  containers:
    - name: main
      image: x
      resources:
        limits:
          cpu: 4
"""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "cpu: 4",
            "memory: 16GB",
            "line 13: spec.containers[0].resources.limits.memory: '16GB': expected a quantity like "
            '8, "500m" or "64Gi"',
        ),
        (
            "cpu: 4",
            "cpu: 4cores",
            "line 13: spec.containers[0].resources.limits.cpu: '4cores': expected a quantity like "
            '8, "500m" or "64Gi"',
        ),
        (
            "gang: a",
            "gang-size: 2",
            "line 6: metadata.annotations[linkwise.dev/gang-size]: 2: expected a text: write it in "
            'quotes, "2"',
        ),
        (
            "name: one",
            "name: My_Pod",
            "line 4: metadata.name: 'My_Pod': expected lower-case letters, digits, - and ., at "
            "most 253",
        ),
        (
            "cpu: 4",
            "nvidia.com/gpu: 0.5",
            "line 13: spec.containers[0].resources.limits[nvidia.com/gpu]: 0.5: expected a whole "
            "number of devices",
        ),
        ("- name: main", "- name: Main", "line 9: spec.containers[0].name: 'Main': expected"),
        ("kind: Pod", "kind: pod", "line 2: kind: 'pod': expected Pod, with its capitals"),
        ("  name: one\n", "", "line 3: metadata.name: missing: expected the object's name"),
    ],
)
def test_a_slip_is_refused_in_the_same_words_by_all_that_read_it(
    right: str, wrong: str, said: str, tmp_path: Path
) -> None:
    assert right in TYPED
    text = TYPED.replace(right, wrong)
    result = CliRunner().invoke(main, ["recognise", "-f", "-"], input=text)
    assert result.exit_code == 2
    assert f"document 1: {said}" in result.stderr
    assert f"document 1: {said}" in of_what_if(tmp_path / "job.yaml", text)
    line, _, rest = said.removeprefix("line ").partition(": ")
    assert of_simulator(text).startswith(f"f.yaml:{line}: document 1: {rest}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "resources: [job.yaml]\n",
            "line 1: a kustomization: pass what `kubectl kustomize DIRECTORY` prints",
        ),
        (
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n",
            "line 1: a kustomization: pass what `kubectl kustomize DIRECTORY` prints",
        ),
        (
            "kind: Pod\n{{- if .Values.gpu }}\nmetadata:\n",
            ": this is a template of Helm: pass what `helm template` prints",
        ),
        (
            "kind: Pod\nmetadata:\n  name: {{ .Values.name }}\n",
            ": this is a template of Helm: pass what `helm template` prints",
        ),
    ],
)
def test_what_is_no_manifest_yet_says_what_makes_it_one(
    text: str, said: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(main, ["recognise", "-f", "-"], input=text)
    assert result.exit_code == 2
    assert said in result.stderr
    assert said in of_what_if(tmp_path / "job.yaml", text)
    assert said.removeprefix("line 1: ") in of_simulator(text)


def test_braces_in_quotes_are_no_template_of_helm() -> None:
    text = TYPED.replace("name: one", "name: one\n  labels: {a: '{{inputs.a}}', b: 7}")
    assert "Helm" not in of_simulator(text)
    assert "7: expected a text" in of_simulator(text)


def test_what_a_cluster_listed_has_been_checked_by_its_api_server() -> None:
    """It may use what is newer than this reader, or older than a rule."""
    listed = TYPED.replace("name: one", "name: one\n  uid: a").replace("name: main", "name: M_1")
    result = CliRunner().invoke(main, ["recognise", "-f", "-"], input=listed)
    assert "spec.containers" not in result.stderr


def of_simulator(text: str) -> str:
    try:
        read_manifests(text, "f.yaml")
    except ManifestError as error:
        return str(error)
    return ""


def of_what_if(path: Path, text: str) -> str:
    path.write_text(text)
    try:
        read_job([str(path)], "ml", {}, 0.0)
    except BadInputError as error:
        return error.message
    return ""
