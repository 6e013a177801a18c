"""The table of rules: one entry for each system whose pods the extender recognises.

The first rule that matches wins. Groups that a pod names, also by a label alone, come before what
its owner's kind implies. Every other rule requires an owner that fits, whatever the labels say,
because users copy labels. docs/workloads.md has the same table for users.

A new kind, in this order; a special one comes before a general one:

1. An entry here. `DECLARED` with `_named(…)`, and a function of the name in `declared.py`, if each
   pod names its group by a label or an annotation. `_GANGS`, with a function in `batch.py`,
   `kubeflow.py` or `serving.py`, if the owner's kind implies the gang and the owner fixes its size.
   `_SINGLES` with `_single(…)`, if the pods never need each other.
2. `marks.py`: the keys by which its pods name their group, index, queue or priority class. The rule
   gets the name from there; all pods of the group then count, with GPUs or without.
3. `kinds.py`: the kind of the object that the rule reads; the entry lists it.
4. In daemonset/chart/templates, then `make manifests`: `extender/account.yaml`, `get` of that kind;
   `webhook/configurations.yaml`, the kinds that people apply, so that the webhook sees them.
5. kube/linkwise/kube/controllers/workload.py: which objects and pods the controller creates, from a
   manifest; the webhook judges them too.
6. tests/pods/podgrouper/examples.py: a pod as its operator makes it. `workload_pods.json` beside it
   has pods recorded from the operator, if there are any.
7. docs/workloads.md: a row, in the order of the table, and the list of kinds; docs/annotations.md,
   the list of what the webhook refuses.

Tests fail for what is missing, except for step 7's lists and recorded pods:
tests/pods/podgrouper/test_systems.py, tests/extender/state/membership/test_membership.py,
tests/extender/test_manifests.py, tests/extender/run/test_owner_reader.py and
tests/test_workload_kinds.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from linkwise.pods.podgrouper.workloads import batch, declared, kinds, kubeflow, marks, serving
from linkwise.pods.podgrouper.workloads.answer import NoGang
from linkwise.pods.podgrouper.workloads.case import Case
from linkwise.pods.podgrouper.workloads.declared import DeclaredGroup
from linkwise.pods.podgrouper.workloads.kinds import OwnerKind
from linkwise.pods.podgrouper.workloads.singles import Single, bare, unknown
from linkwise.pods.podgrouper.workloads.workload import FoundWorkload
from linkwise.topology import names

GroupKind = tuple[str, str]  # API group and kind
ANY: frozenset[GroupKind] = frozenset()
Owned = FoundWorkload | NoGang | None


@dataclass(frozen=True, slots=True)
class System:
    """`recognise` returns None if the pod belongs to another system."""

    rule: str
    title: str
    gang: str
    reads: tuple[OwnerKind, ...]  # kinds of objects; that which it always reads comes first
    recognise: Callable[[Case], DeclaredGroup | Owned]
    owners: frozenset[GroupKind] = ANY  # kinds that control its pods


def _kind(kind: OwnerKind) -> GroupKind:
    return kind.group, kind.kind


_NOTHING = ("", "")
_POD = ("", "Pod")
_JOB = _kind(kinds.JOB)
_STATEFUL_SET = _kind(kinds.STATEFUL_SET)
_REPLICA_SET = _kind(kinds.REPLICA_SET)
_BARE, _JOBS = frozenset({_NOTHING}), frozenset({_JOB})
_STATEFUL, _REPLICAS = frozenset({_STATEFUL_SET}), frozenset({_REPLICA_SET})
_WORKFLOW = frozenset({("argoproj.io", "Workflow")})
_CONTROLLER = frozenset({("", "ReplicationController")})
_SPARK = frozenset(
    {
        _NOTHING,
        _POD,
        _STATEFUL_SET,
        _REPLICA_SET,
        ("sparkoperator.k8s.io", "SparkApplication"),
        ("spark.apache.org", "SparkApplication"),
        ("spark.apache.org", "SparkCluster"),
    }
)


def _named(
    rule: str, title: str, tells: Callable[[Case, str], DeclaredGroup | None], *reads: OwnerKind
) -> System:
    """Its pods name their group where its row of `MARKS` says."""
    recognise = partial(declared.group_at, places=marks.MARKS[rule].group, tells=tells)
    return System(rule, title, "yes", reads, recognise)


DECLARED: tuple[System, ...] = (
    System(
        "native-pod-group",
        "Kubernetes PodGroup, from 1.36",
        "as its policy says",
        (kinds.NATIVE_POD_GROUP, kinds.COMPOSITE_POD_GROUP, kinds.NATIVE_WORKLOAD),
        declared.native_pod_group,
    ),
    System(
        "native-workload",
        "Kubernetes Workload, 1.35",
        "as its policy says",
        (kinds.NATIVE_WORKLOAD,),
        declared.native_workload,
    ),
    _named("kueue", "Kueue pod group", declared.kueue),
    _named("koordinator", "Koordinator gang", declared.koordinator),
    System("yunikorn", "YuniKorn task groups", "yes", (), declared.yunikorn),
    _named("coscheduling-labels", "scheduler-plugins, 2020", declared.old_coscheduling_labels),
    _named(
        "coscheduling",
        "scheduler-plugins PodGroup",
        declared.coscheduling,
        kinds.COSCHEDULING_POD_GROUP,
        kinds.OLD_COSCHEDULING_POD_GROUP,
    ),
    _named(
        "volcano-pod-group",
        "Volcano PodGroup",
        declared.volcano_pod_group,
        kinds.VOLCANO_POD_GROUP,
    ),
    _named("kai", "KAI PodGroup", declared.kai, kinds.KAI_POD_GROUP),
    _named("grove", "Grove PodGang", declared.grove, kinds.POD_GANG),
)


def _owned(
    rule: str, title: str, kind: OwnerKind, tells: Callable[[Case], Owned], gang: str = "yes"
) -> System:
    """The controller of its pods says all that the rule reads."""
    return System(rule, title, gang, (kind,), tells, frozenset({_kind(kind)}))


def _training(rule: str, kind: OwnerKind, specs: str, *order: str) -> System:
    specs = f"spec.{specs}"
    tells = partial(kubeflow.training_job, kind=kind, rule=rule, specs=specs, order=order)
    return _owned(rule, kind.kind, kind, tells)


_GANGS = (
    _training(
        "tfjob", kinds.TF_JOB, "tfReplicaSpecs", "chief", "master", "worker", "ps", "evaluator"
    ),
    _training("pytorchjob", kinds.PYTORCH_JOB, "pytorchReplicaSpecs", "master", "worker"),
    _training("xgboostjob", kinds.XGBOOST_JOB, "xgbReplicaSpecs", "master", "worker"),
    _training("paddlejob", kinds.PADDLE_JOB, "paddleReplicaSpecs", "master", "worker"),
    _training("jaxjob", kinds.JAX_JOB, "jaxReplicaSpecs", "worker"),
    _training(
        "mxjob",
        kinds.MX_JOB,
        "mxReplicaSpecs",
        "scheduler",
        "server",
        "worker",
        "tunertracker",
        "tunerserver",
        "tuner",
    ),
    _owned("mpijob-v1", "MPIJob v1", kinds.MPI_JOB, kubeflow.mpi_job_v1),
    System(
        "mpijob-v2beta1",
        "MPIJob v2beta1",
        "yes",
        (kinds.MPI_JOB,),
        kubeflow.mpi_job_v2,
        frozenset({_kind(kinds.MPI_JOB), _JOB}),
    ),
    System(
        "mpijob-v1alpha1",
        "MPIJob v1alpha1",
        "yes",
        (kinds.MPI_JOB,),
        kubeflow.mpi_job_v1alpha1,
        frozenset({_JOB, _STATEFUL_SET}),
    ),
    System("trainjob", "TrainJob", "yes", (kinds.JOB_SET,), batch.train_job, _JOBS),
    System("jobset", "JobSet", "yes", (kinds.JOB_SET,), batch.job_set, _JOBS),
    _owned("volcano-job", "Volcano Job", kinds.VOLCANO_JOB, batch.volcano_job),
    System(
        "leaderworkerset",
        "LeaderWorkerSet",
        "yes, one per group",
        (kinds.LEADER_WORKER_SET,),
        serving.leader_worker_set,
        _STATEFUL,
    ),
    _owned("raycluster", "RayCluster", kinds.RAY_CLUSTER, serving.ray_cluster),
    _owned("podset", "AIBrix PodSet", kinds.POD_SET, serving.pod_set),
    _owned(
        "modelserving",
        "kthena ModelServing",
        kinds.MODEL_SERVING,
        serving.model_serving,
        "yes, one per role replica or serving group",
    ),
    System(
        "kserve-multi-node",
        "KServe, several nodes for one model",
        "yes, one per generation",
        (kinds.DEPLOYMENT,),
        serving.kserve_multi_node,
        _REPLICAS,
    ),
)


def _single(
    title: str,
    owners: frozenset[GroupKind],
    rule: str,
    because: str,
    *labels: str,
    role: str = "replica",
    role_label: str = "",
    index_label: str = "",
) -> System:
    tells = Single(rule, because, labels, role, role_label, index_label)
    return System(rule, title, "no", (), tells, owners)


_SERVES = "each replica serves alone"
# Pods whose number only a running program knows.
_BY_ITSELF = f"unless its driver has {names.GANG_TO_COME}"
_DRIVEN = f"its driver runs first and creates workers that are not known before, {_BY_ITSELF}"
_SINGLES = (
    _single(
        "Ray, the submitter of a RayJob",
        _JOBS,
        "rayjob-submitter",
        "it comes once the cluster is up",
        "ray.io/originated-from-crd",
        role="submitter",
    ),
    _owned(
        "job",
        "Job",
        kinds.JOB,
        batch.job,
        "if all its pods run at once, and it is Indexed or its command names as many nodes",
    ),
    _single(
        "Spark operator",
        _SPARK,
        "spark-operator",
        _DRIVEN,
        "sparkoperator.k8s.io/app-name",
        "spark.operator/spark-app-name",
        role="driver",
        role_label="spark-role",
        index_label="spark-exec-id",
    ),
    _single(
        "Spark",
        _SPARK,
        "spark",
        _DRIVEN,
        "spark-app-selector",
        role="driver",
        role_label="spark-role",
        index_label="spark-exec-id",
    ),
    _single(
        "DLRover",
        frozenset({("elastic.iml.github.io", "ElasticJob")}),
        "dlrover",
        f"its master runs first and creates workers that are not known before, {_BY_ITSELF}",
        role="worker",
        role_label="elasticjob.dlrover/replica-type",
        index_label="elasticjob.dlrover/replica-index",
    ),
    _single(
        "Dask",
        frozenset({_NOTHING, _REPLICA_SET}),
        "dask",
        f"its scheduler runs first; its workers are not known before, {_BY_ITSELF}",
        "dask.org/cluster-name",
        role="worker",
        role_label="dask.org/component",
    ),
    _single(
        "MLRun job",
        _BARE,
        "mlrun",
        "a run is one pod; MLRun's MPI jobs are MPIJobs",
        "mlrun/class",
        role="run",
    ),
    _single(
        "Kubeflow Notebook",
        _STATEFUL,
        "notebook",
        "a person works in it",
        "notebook-name",
        role="notebook",
    ),
    _single(
        "Kubeflow Workspace",
        _STATEFUL,
        "workspace",
        "a person works in it",
        "notebooks.kubeflow.org/workspace-name",
        role="notebook",
    ),
    _single(
        "Kubeflow Pipelines",
        _WORKFLOW,
        "kubeflow-pipelines",
        "steps run one by one",
        "pipeline/runid",
        "pipelines.kubeflow.org/v2_component",
        role="step",
    ),
    _single(
        "Argo Workflow",
        _WORKFLOW,
        "argo-workflow",
        f"steps run one by one; what a step creates is not known before, {_BY_ITSELF}",
        role="step",
    ),
    _single(
        "KServe, Knative mode",
        _REPLICAS,
        "kserve-knative",
        _SERVES,
        "serving.knative.dev/revision",
        role_label="component",
    ),
    _single(
        "KServe, Standard mode",
        _REPLICAS,
        "kserve",
        _SERVES,
        serving.KSERVE,
        role_label="component",
    ),
    _single(
        "Seldon Core",
        frozenset({_REPLICA_SET, _STATEFUL_SET}),
        "seldon",
        _SERVES,
        "seldon-deployment-id",
        "seldon-server-name",
        role="predictor",
    ),
    _single(
        "BentoML",
        _REPLICAS,
        "bentoml",
        _SERVES,
        "yatai.ai/bento-deployment",
        role_label="yatai.ai/bento-deployment-component-type",
    ),
    _single("Nuclio", _REPLICAS, "nuclio", _SERVES, "nuclio.io/function-name", role="function"),
    _single(
        "Pachyderm",
        _CONTROLLER,
        "pachyderm",
        "its workers take one piece of data after another, alone",
        "pipelineName",
        role="worker",
        role_label="component",
    ),
    _owned(
        "statefulset-nodes",
        "StatefulSet of the nodes of one server",
        kinds.STATEFUL_SET,
        serving.nodes_of_one_server,
        "if parallel and its command names as many nodes",
    ),
    _single(
        "StatefulSet",
        _STATEFUL,
        "statefulset",
        "its pods are made one after the other, or are copies; a gang says linkwise.dev/gang",
    ),
    _single("Deployment", _REPLICAS, "deployment", "its replicas are copies"),
    _single(
        "ReplicationController", _CONTROLLER, "replicationcontroller", "its replicas are copies"
    ),
    _single("DaemonSet", frozenset({("apps", "DaemonSet")}), "daemonset", "one for each node"),
    _single("Static pod", frozenset({("", "Node")}), "static-pod", "its node runs it by itself"),
    System("bare-pod", "Bare pod", "no", (), bare, _BARE),
    System("unknown-owner", "Any other owner", "no: never guessed", (), unknown),
)

OWNED: tuple[System, ...] = (*_GANGS, *_SINGLES)
SYSTEMS: tuple[System, ...] = (*DECLARED, *OWNED)
READ = tuple(dict.fromkeys(kind for system in SYSTEMS for kind in system.reads))
"""All owners that the extender may read; its ClusterRole allows `get` on exactly these."""


@lru_cache(maxsize=1024)
def owned_by(owner: GroupKind) -> tuple[System, ...]:
    """The systems whose pods this kind may control, in the order of the table."""
    return tuple(system for system in OWNED if not system.owners or owner in system.owners)
