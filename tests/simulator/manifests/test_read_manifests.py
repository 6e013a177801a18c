"""The user's YAML files: what is read, and how each mistake is refused with its place."""

from itertools import pairwise
from pathlib import Path
from textwrap import indent

import pytest

from linkwise.simulator.manifests.object_reader import ManifestError
from linkwise.simulator.manifests.read_manifests import read_manifest_files, read_manifests

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
    "lists without end": ("a: " + "[" * 2000, "f.yaml:1: document 1: more than 200 levels deep"),
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
    "nothing at all": ("# nothing\n", "f.yaml:1: no object in it: expected a Pod or a workload"),
    "a text for an object": ("hello\n", "f.yaml:1: document 1: 'hello': expected an object"),
    "no kind": (_pod("kind: Pod\n", ""), "document 1: kind: missing: expected Pod, Job or another"),
    "another kind": (
        JOB + "---\n" + _pod("kind: Pod", "kind: Deployment"),
        "f.yaml:21: document 2: apiVersion: 'v1': expected apps/v1 for a Deployment",
    ),
    "no apiVersion": (_pod("apiVersion: v1\n", ""), "apiVersion: missing: expected v1"),
    "another apiVersion": (
        _job("batch/v1", "v1"),
        "f.yaml:1: document 1: apiVersion: 'v1': expected batch/v1 or batch.volcano.sh/v1alpha1 "
        "for a Job",
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
        "requests[nvidia.com/gpu]: 2 without a limit: expected the same as",
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
    "a job whose pods restart forever": (
        _job("      restartPolicy: Never\n", ""),
        "spec.template.spec.restartPolicy: missing: expected Never or OnFailure in a Job",
    ),
    "a container that restarts forever": (
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
        "apiVersion: v1\nkind: List\nitems:\n  - apiVersion: v1\n    kind: Pod\n",
        "f.yaml:4: document 1: items[0].metadata: missing: expected a mapping with a name",
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


def workload(kind: str, spec: str) -> str:
    api_version, _, word = kind.rpartition(" ")
    head = f"apiVersion: {api_version}\nkind: {word}\nmetadata: {{name: lm}}\nspec:\n"
    return f"{head}{indent(spec, '  ')}\n"


TEMPLATE = "template: {spec: {containers: [{name: m, image: x}]}}"
IN_A_JOB = "template: {spec: {restartPolicy: Never, containers: [{name: m, image: x}]}}"
DEPLOYMENT, PYTORCH, JOB_SET = (
    "apps/v1 Deployment",
    "kubeflow.org/v1 PyTorchJob",
    "jobset.x-k8s.io/v1alpha2 JobSet",
)
TRAIN = "trainer.kubeflow.org/v1alpha1 TrainJob"
WORKERS = f"pytorchReplicaSpecs:\n  Worker:\n    replicas: 2\n    {TEMPLATE}"
JOBS = (
    "replicatedJobs:\n- name: n\n  replicas: 2\n"
    f"  template: {{spec: {{parallelism: 3, {IN_A_JOB}}}}}"
)
# Kind, spec, the path to which it goes, and how many pods it creates first.
WORKLOADS = (
    (DEPLOYMENT, f"replicas: 3\n{TEMPLATE}", "/apis/apps/v1/…/deployments", 3),
    ("apps/v1 ReplicaSet", TEMPLATE, "/apis/apps/v1/…/replicasets", 1),
    ("apps/v1 StatefulSet", f"replicas: 2\n{TEMPLATE}", "/apis/apps/v1/…/statefulsets", 2),
    (PYTORCH, WORKERS, "/apis/kubeflow.org/v1/…/pytorchjobs", 2),
    (
        "kubeflow.org/v2beta1 MPIJob",
        f"mpiReplicaSpecs:\n  Launcher: {{{IN_A_JOB}}}\n  Worker: {{replicas: 2, {TEMPLATE}}}",
        "/apis/kubeflow.org/v2beta1/…/mpijobs",
        3,
    ),
    (JOB_SET, JOBS, "/apis/jobset.x-k8s.io/v1alpha2/…/jobsets", 6),
    (
        TRAIN,
        "trainer: {numNodes: 2, resourcesPerNode: {limits: {nvidia.com/gpu: 8}}}",
        "/apis/trainer.kubeflow.org/v1alpha1/…/trainjobs",
        2,
    ),
    (
        "batch.volcano.sh/v1alpha1 Job",
        f"tasks: [{{name: w, replicas: 2, {TEMPLATE}}}]",
        "/apis/batch.volcano.sh/v1alpha1/…/jobs",
        2,
    ),
    (
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
        f"replicas: 2\nleaderWorkerTemplate: {{size: 3, workerT{TEMPLATE[1:]}}}",
        "/apis/leaderworkerset.x-k8s.io/v1/…/leaderworkersets",
        6,
    ),
    (
        "ray.io/v1 RayCluster",
        f"headGroupSpec: {{{TEMPLATE}}}\n"
        f"workerGroupSpecs: [{{groupName: a, replicas: 2, {TEMPLATE}}}]",
        "/apis/ray.io/v1/…/rayclusters",
        3,
    ),
)


@pytest.mark.parametrize(("kind", "spec", "path", "pods"), WORKLOADS)
def test_a_workload_goes_to_its_api_and_counts_its_first_pods(
    kind: str, spec: str, path: str, pods: int
) -> None:
    (read,) = read_manifests(workload(kind, spec))
    assert (read.collection, read.pods) == (path.replace("…", "namespaces/default"), pods)


@pytest.mark.parametrize("suspended", ["suspend: true", "runPolicy: {suspend: true}"])
def test_a_suspended_workload_creates_nothing_yet(suspended: str) -> None:
    (read,) = read_manifests(workload(PYTORCH, f"{WORKERS}\n{suspended}"))
    assert read.pods == 0


def test_objects_without_pods_are_kept_and_have_no_path_if_the_api_server_lacks_them() -> None:
    read = read_manifests(workload("v1 Secret", "{}") + "---\n" + workload("v1 Service", "{}"))
    assert [(each.kind, each.collection) for each in read] == [
        ("Secret", ""),
        ("Service", "/api/v1/namespaces/default/services"),
    ]


def test_what_kubectl_prints_is_read_as_it_was_applied() -> None:
    """The ReplicaSet is not among the objects; its name shows whose it is."""
    deployment = workload(DEPLOYMENT, TEMPLATE) + "status: {replicas: 1}\n"
    deployment = deployment.replace("{name: lm}", "{name: lm, uid: u, resourceVersion: '7'}")
    owners = "[{apiVersion: apps/v1, kind: ReplicaSet, name: lm-5f7c9, uid: r, controller: true}]"
    owned = POD.replace("  name: one", f"  name: lm-5f7c9-x\n  ownerReferences: {owners}")
    lone = POD.replace("spec:", "spec:\n  nodeName: n1") + "status: {phase: Running}\n"
    read = read_manifests("---\n".join((deployment, owned, lone)))
    assert [(each.kind, each.name) for each in read] == [("Deployment", "lm"), ("Pod", "one")]
    assert read[0].body["metadata"] == {"name": "lm", "namespace": "default"}
    assert "status" not in read[0].body
    assert "nodeName" not in str(read[1].body)


def test_an_unknown_kind_without_a_pod_template_is_left_out_by_name() -> None:
    domain = workload("resource.nvidia.com/v1beta1 ComputeDomain", "numNodes: 2")
    left_out, job = read_manifests(f"{domain}---\n{JOB}", "f.yaml")
    assert (left_out.collection, left_out.pods, job.pods) == ("", 0, 1)
    name = "ComputeDomain.resource.nvidia.com default/lm"
    assert left_out.left_out == f"{name}: unknown kind without a pod template: left out"
    assert not job.left_out


def test_what_looks_like_an_annotation_of_linkwise_is_named_with_its_place() -> None:
    said = "annotations: {linkwise.dev/gang: lm}, labels: {linkwise.dev/gang: lm}"
    labels = "metadata: {labels: {linkwise.io/rank: a}}"
    template = IN_A_JOB.replace("{spec:", f"{{{labels}, spec:", 1)
    given = workload("batch/v1 Job", template).replace("{name: lm}", f"{{name: lm, {said}}}")
    (job,) = read_manifests(given)
    assert job.near_misses == (
        "metadata: label linkwise.dev/gang has no effect: write it as an annotation",
        "metadata.annotations: linkwise.dev/gang: has no effect here; it belongs on the "
        "pod template",
        "spec.template.metadata: label linkwise.io/rank has no effect: write it as an annotation, "
        "linkwise.dev/rank",
    )


BROKEN = {
    "an unknown kind and nothing that makes pods": (
        f"{workload('x.io/v1 Pool', 'size: 2')}---\n"
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n",
        "f.yaml:2: document 1: kind: Pool is unknown, and nothing else here creates pods: pass "
        "the pods that it creates",
    ),
    "replicas below 0": (
        workload(DEPLOYMENT, f"replicas: -1\n{TEMPLATE}"),
        "f.yaml:5: document 1: spec.replicas: -1: expected a whole number from 0",
    ),
    "a role with many replicas": (
        workload(PYTORCH, WORKERS.replace("replicas: 2", "replicas: many")),
        "f.yaml:7: document 1: spec.pytorchReplicaSpecs.Worker.replicas: 'many': expected",
    ),
    "more pods than a gang may have": (
        workload("apps/v1 ReplicaSet", f"replicas: 5000\n{TEMPLATE}"),
        "f.yaml:1: document 1: more than 4096 pods",
    ),
    "no template": (
        workload("apps/v1 StatefulSet", "replicas: 2"),
        "f.yaml:4: document 1: spec.template.spec.containers: missing: expected at least one",
    ),
    "a template that is null": (
        workload("apps/v1 StatefulSet", "template: null"),
        "f.yaml:5: document 1: spec.template.spec.containers: missing: expected at least one",
    ),
    "a role without containers": (
        workload(PYTORCH, "pytorchReplicaSpecs:\n  Worker:\n    template: {spec: {}}"),
        "f.yaml:7: document 1: spec.pytorchReplicaSpecs.Worker.template.spec.containers: missing",
    ),
    "a number as an annotation in a template": (
        workload(
            DEPLOYMENT,
            "template:\n  metadata:\n    annotations:\n      linkwise.dev/gang-size: 4\n"
            "  spec: {containers: [{name: m, image: x}]}",
        ),
        "f.yaml:8: document 1: spec.template.metadata.annotations[linkwise.dev/gang-size]: 4: "
        'expected a text: write it in quotes, "4"',
    ),
    "a Job of a JobSet that restarts forever": (
        workload(JOB_SET, JOBS.replace("restartPolicy: Never, ", "restartPolicy: Always, ")),
        "spec.restartPolicy: 'Always': expected Never or OnFailure in a Job",
    ),
    "a TrainJob without its runtime": (
        workload(TRAIN, "runtimeRef: {name: torch}"),
        "f.yaml:4: document 1: spec.trainer.resourcesPerNode: missing, and the runtime 'torch'",
    ),
    "an unknown kind": (
        workload("x.io/v1 Train", TEMPLATE),
        "f.yaml:2: document 1: kind: Train.x.io: it is unknown which pods this kind creates",
    ),
    "another version of a kind": (
        workload("kubeflow.org/v2 TFJob", "{}"),
        "f.yaml:1: document 1: apiVersion: 'kubeflow.org/v2': expected kubeflow.org/v1 for a TFJob",
    ),
    "a name with markup": (
        workload(DEPLOYMENT, TEMPLATE).replace("lm", "'<b>[red]'"),
        "f.yaml:3: document 1: metadata.name: '<b>[red]': expected lower-case letters",
    ),
    "a listing of a whole cluster": (
        "a: " + "x" * 2**21,
        "f.yaml: 2097155 characters: expected manifests of at most 2097152",
    ),
}


@pytest.mark.parametrize("slip", BROKEN)
def test_a_broken_workload_is_refused_with_its_place(slip: str) -> None:
    text, refusal = BROKEN[slip]
    with pytest.raises(ManifestError) as caught:
        read_manifests(text, "f.yaml")
    assert refusal in str(caught.value)
