"""The user's YAML files: what is read, and how each mistake is refused with its place."""

from itertools import pairwise
from pathlib import Path

import pytest

from linkwise.simulator.manifests.read_manifests import (
    ManifestError,
    read_manifest_files,
    read_manifests,
)

EXAMPLES = Path(__file__).parents[3] / "examples"

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: one
  namespace: ml
spec:
  containers:
    - name: main
      image: x
      resources:
        limits:
          nvidia.com/gpu: 2
"""

JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  completions: 2
  completionMode: Indexed
  template:
    metadata:
      annotations:
        linkwise.dev/gang-size: "2"
    spec:
      restartPolicy: Never
      containers:
        - name: main
          image: x
          resources:
            limits:
              nvidia.com/gpu: 8
"""


def test_a_pod_is_read_with_its_place_and_where_it_goes() -> None:
    (pod,) = read_manifests("# first line\n" + POD, "pods.yaml")
    assert (pod.kind, pod.namespace, pod.name) == ("Pod", "ml", "one")
    assert (pod.file, pod.line) == ("pods.yaml", 2)
    assert pod.collection == "/api/v1/namespaces/ml/pods"
    assert pod.body["spec"] == {
        "containers": [
            {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 2}}}
        ]
    }


def test_a_job_goes_to_the_batch_api_and_to_the_default_namespace() -> None:
    (job,) = read_manifests(JOB)
    assert job.collection == "/apis/batch/v1/namespaces/default/jobs"


def test_documents_and_lists_are_read_in_order_and_empty_documents_left_out() -> None:
    items = POD.replace("\n", "\n    ").rstrip(" ")
    text = f"---\n{JOB}---\n---\napiVersion: v1\nkind: List\nitems:\n  - {items}"
    assert [(m.kind, m.name) for m in read_manifests(text)] == [("Job", "train"), ("Pod", "one")]


def test_anchors_and_merges_are_written_out() -> None:
    text = POD.replace("limits:", "requests: &gpus\n          nvidia.com/gpu: 2\n        limits:")
    text = text.replace("limits:\n          nvidia.com/gpu: 2", "limits:\n          <<: *gpus")
    (pod,) = read_manifests(text)
    spec = pod.body["spec"]
    assert isinstance(spec, dict)
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 2}


def test_the_examples_are_sound() -> None:
    files = sorted(EXAMPLES.glob("*.yaml"))
    assert len(read_manifest_files(files)) >= len(files) > 0


def test_linkwise_annotations_are_left_to_the_extender() -> None:
    (job,) = read_manifests(JOB.replace("gang-size", "gnag-size"))
    assert "gnag-size" in str(job.body)


def _pod(old: str, new: str) -> str:
    assert old in POD
    return POD.replace(old, new)


def _job(old: str, new: str) -> str:
    assert old in JOB
    return JOB.replace(old, new)


LIMIT = "          nvidia.com/gpu: 2\n"

MALFORMED = {
    "no YAML": ("kind: [Pod\n", "f.yaml:2: document 1: expected ',' or ']'"),
    "a tab": (_pod("  name: one", "\tname: one"), "f.yaml:4: document 1: found character"),
    "a control character": ("kind: \x01", "f.yaml:1: document 1: character"),
    "an unknown alias": (_pod("image: x", "image: *x"), "f.yaml:9: document 1: found undefined"),
    "an alias of itself": ("a: &a [*a]", "an alias that contains itself"),
    "lists without end": ("a: " + "[" * 2000, "f.yaml:1: document 1: nested too deeply"),
    "aliases of aliases": (
        "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]\n"
        + "".join(
            f"{key}: &{key} [{', '.join([f'*{last}'] * 10)}]\n"
            for last, key in pairwise("abcdefghij")
        ),
        "more than 100000 values in one document",
    ),
    "an unknown tag": (_pod("image: x", "image: !ruby x"), "f.yaml:9: document 1: could not"),
    "a key twice": (
        _pod("  name: one", "  name: one\n  name: two"),
        "f.yaml:5: document 1: metadata.name: this key stands here twice",
    ),
    "nothing at all": ("# nothing\n", "f.yaml:1: no object in it: expected a Pod or a Job"),
    "a text for an object": ("hello\n", "f.yaml:1: document 1: 'hello': expected an object"),
    "no kind": (_pod("kind: Pod\n", ""), "document 1: kind: missing: expected Pod, Job or List"),
    "another kind": (
        JOB + "---\n" + _pod("kind: Pod", "kind: Deployment"),
        "f.yaml:22: document 2: kind: 'Deployment': expected Pod, Job or List",
    ),
    "no apiVersion": (_pod("apiVersion: v1\n", ""), "apiVersion: missing: expected v1"),
    "another apiVersion": (
        _job("batch/v1", "v1"),
        "f.yaml:1: document 1: apiVersion: 'v1': expected batch/v1 for a Job",
    ),
    "no metadata": (
        _pod("metadata:\n  name: one\n  namespace: ml\n", ""),
        "metadata: missing: expected a mapping with a name",
    ),
    "no name": (_pod("  name: one\n", ""), "f.yaml:3: document 1: metadata.name: missing"),
    "a number for a name": (
        _pod("name: one", "name: 1"),
        "f.yaml:4: document 1: metadata.name: 1: expected the object's name, as a text",
    ),
    "a name with capitals": (_pod("name: one", "name: One"), "metadata.name: 'One': expected"),
    "a name too long for a job's pods": (
        _job("name: train", f"name: {'t' * 58}"),
        "digits, - and ., at most 57",
    ),
    "an illegal namespace": (_pod("ml", "m_l"), "f.yaml:5: document 1: metadata.namespace: 'm_l'"),
    "no spec": (POD[: POD.index("spec:")], "document 1: spec: missing: expected the pod's spec"),
    "a list for a spec": (
        POD[: POD.index("spec:")] + "spec: []\n",
        "f.yaml:6: document 1: spec: a list: expected the pod's spec",
    ),
    "no containers": (
        POD[: POD.index("  containers:")] + "  restartPolicy: Never\n",
        "f.yaml:6: document 1: spec.containers: missing: expected at least one container",
    ),
    "an empty list of containers": (
        POD[: POD.index("  containers:")] + "  containers: []\n",
        "f.yaml:7: document 1: spec.containers: empty",
    ),
    "one container without its dash": (
        _pod("    - name: main", "      name: main"),
        "f.yaml:7: document 1: spec.containers: a mapping: expected a list",
    ),
    "a container without a name": (
        _pod("- name: main\n      image: x", "- image: x"),
        "f.yaml:8: document 1: spec.containers[0].name: missing",
    ),
    "a container without an image": (_pod("      image: x\n", ""), "containers[0].image: missing"),
    "two containers of one name": (
        POD + "    - name: main\n      image: y\n",
        "f.yaml:13: document 1: spec.containers[1].name: 'main': another container has this name",
    ),
    "half a GPU": (
        _pod("gpu: 2", "gpu: 0.5"),
        "f.yaml:12: document 1: spec.containers[0].resources.limits[nvidia.com/gpu]: "
        "0.5: expected a whole number of devices",
    ),
    "milli GPUs": (_pod("gpu: 2", "gpu: 500m"), "'500m': expected a whole number of devices"),
    "fewer GPUs than none": (_pod("gpu: 2", "gpu: -1"), "-1: expected 0 or more"),
    "true GPUs": (_pod("gpu: 2", "gpu: yes"), "True: expected a quantity"),
    "a resource without its name": (
        _pod("nvidia.com/gpu: 2", '"nvidia.com/": 2'),
        "limits[nvidia.com/]: expected a resource's name like cpu or nvidia.com/gpu",
    ),
    "no quantity": (
        _pod(LIMIT, "          memory: 64 GB\n"),
        "resources.limits.memory: '64 GB': expected a quantity like",
    ),
    "an empty quantity": (_pod("gpu: 2", "gpu:"), "limits[nvidia.com/gpu]: None: expected"),
    "a list of limits": (
        _pod(LIMIT, "          - nvidia.com/gpu\n"),
        "f.yaml:11: document 1: spec.containers[0].resources.limits: a list: expected resource",
    ),
    "requests beyond the limits": (
        _pod(LIMIT, "          cpu: 1\n        requests:\n          cpu: 1500m\n"),
        "f.yaml:14: document 1: spec.containers[0].resources.requests.cpu: more than the limit",
    ),
    "GPUs requested without a limit": (
        _pod("limits:", "requests:"),
        "requests[nvidia.com/gpu]: 2 beside no limit: expected them to be equal",
    ),
    "an unquoted annotation": (
        _job('"2"', "2"),
        "f.yaml:11: document 1: spec.template.metadata.annotations[linkwise.dev/gang-size]: "
        '2: expected a text: write it in quotes, "2"',
    ),
    "an unquoted label": (
        _pod("  name: one", "  name: one\n  labels: {spot: true}"),
        'metadata.labels.spot: true: expected a text: write it in quotes, "true"',
    ),
    "run-seconds without a number": (
        _pod(
            "  name: one",
            "  name: one\n  annotations: {simulator.linkwise.dev/run-seconds: 5m}",
        ),
        "annotations[simulator.linkwise.dev/run-seconds]: '5m': expected seconds like 30 or 0.5",
    ),
    "half a completion": (
        _job("completions: 2", "completions: 1.5"),
        "f.yaml:6: document 1: spec.completions: 1.5: expected a whole number from 0 to 100000",
    ),
    "a completion too many": (
        _job("completions: 2", "completions: 100001"),
        "spec.completions: 100001: expected a whole number from 0 to 100000",
    ),
    "fewer retries than none": (
        _job("completions: 2", "completions: 2\n  backoffLimit: -1"),
        "f.yaml:7: document 1: spec.backoffLimit: -1: expected a whole number from 0 to 2147483647",
    ),
    "a job that may be suspended": (
        _job("completions: 2", "completions: 2\n  suspend: maybe"),
        "f.yaml:7: document 1: spec.suspend: expected `bool`, got `str`",
    ),
    "another completion mode": (_job("Indexed", "Index"), "'Index': expected Indexed or NonInd"),
    "an Indexed job without completions": (
        _job("  completions: 2\n", ""),
        "spec: completions: missing: an Indexed job says how many",
    ),
    "a job without a template": (
        JOB[: JOB.index("  template:")],
        "spec.template: missing: expected the template of the job's pods",
    ),
    "a job whose pods restart for ever": (
        _job("      restartPolicy: Never\n", ""),
        "spec.template.spec.restartPolicy: missing: expected Never or OnFailure in a Job",
    ),
    "a container that restarts for ever": (
        _pod("image: x", "image: x\n      restartPolicy: Always"),
        "expected Always, and on an init container only",
    ),
    "a selector with a number": (
        POD + "  nodeSelector:\n    disks: 4\n",
        "f.yaml:13: document 1: spec.nodeSelector: expected `str`, got `int`",
    ),
    "a toleration without its dash": (
        POD + "  tolerations:\n    key: gpu\n",
        "f.yaml:13: document 1: spec.tolerations: expected `array`, got `object`",
    ),
    "two objects of one name": (
        JOB + "---\n" + JOB,
        "f.yaml:21: metadata.name: Job default/train stands here a second time: "
        "expected another name than in f.yaml:1",
    ),
    "a list without items": ("apiVersion: v1\nkind: List\n", "items: missing"),
    "a bad item of a list": (
        "apiVersion: v1\nkind: List\nitems:\n  - apiVersion: v1\n    kind: Service\n",
        "f.yaml:5: document 1: items[0].kind: 'Service': expected Pod, Job or List",
    ),
}


def test_a_field_that_is_null_is_a_field_that_is_not_there() -> None:
    """The API server reads it so, and templates leave such fields behind."""
    text = POD.replace("  namespace: ml\n", "  namespace:\n  labels:\n  annotations: null\n")
    (pod,) = read_manifests(text + "  initContainers:\n  tolerations: ~\n")
    (plain,) = read_manifests(POD.replace("  namespace: ml\n", ""))
    assert (pod.body, pod.namespace) == (plain.body, "default")


@pytest.mark.parametrize("slip", MALFORMED)
def test_a_slip_is_refused_with_file_line_document_and_field(slip: str) -> None:
    text, refusal = MALFORMED[slip]
    with pytest.raises(ManifestError) as caught:
        read_manifests(text, "f.yaml")
    assert refusal in str(caught.value)
    assert str(caught.value).startswith("f.yaml:")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"none\.yaml: No such file or directory"):
        read_manifest_files([tmp_path / "none.yaml"])


def test_a_file_that_is_no_text_is_named_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "bytes.yaml"
    file.write_bytes(b"kind: Pod\nname: \xff\n")
    with pytest.raises(ManifestError, match=r"bytes\.yaml:2: byte 0xff: expected UTF-8 text"):
        read_manifest_files([file])


def test_one_name_in_two_files_names_both_places(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(POD)
    second.write_text("---\n" + POD)
    with pytest.raises(ManifestError, match=r"b\.yaml:2: .*a second time.* than in .*a\.yaml:1$"):
        read_manifest_files([first, second])
