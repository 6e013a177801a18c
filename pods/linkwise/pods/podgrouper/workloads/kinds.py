"""The kinds of objects that the extender may read, and their paths on the API server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnerKind:
    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]  # tried in this order if no reference names one

    @property
    def qualified(self) -> str:
        return f"{self.kind}.{self.group}"

    def paths(self, namespace: str, name: str, version: str = "") -> tuple[str, ...]:
        versions = (version,) if version else self.versions
        return tuple(
            f"/apis/{self.group}/{served}/namespaces/{namespace}/{self.plural}/{name}"
            for served in versions
        )


JOB = OwnerKind("batch", "Job", "jobs", ("v1",))
STATEFUL_SET = OwnerKind("apps", "StatefulSet", "statefulsets", ("v1",))
REPLICA_SET = OwnerKind("apps", "ReplicaSet", "replicasets", ("v1",))
DEPLOYMENT = OwnerKind("apps", "Deployment", "deployments", ("v1",))

TF_JOB = OwnerKind("kubeflow.org", "TFJob", "tfjobs", ("v1",))
PYTORCH_JOB = OwnerKind("kubeflow.org", "PyTorchJob", "pytorchjobs", ("v1",))
XGBOOST_JOB = OwnerKind("kubeflow.org", "XGBoostJob", "xgboostjobs", ("v1",))
PADDLE_JOB = OwnerKind("kubeflow.org", "PaddleJob", "paddlejobs", ("v1",))
JAX_JOB = OwnerKind("kubeflow.org", "JAXJob", "jaxjobs", ("v1",))
MX_JOB = OwnerKind("kubeflow.org", "MXJob", "mxjobs", ("v1",))
MPI_JOB = OwnerKind("kubeflow.org", "MPIJob", "mpijobs", ("v2beta1", "v1"))
JOB_SET = OwnerKind("jobset.x-k8s.io", "JobSet", "jobsets", ("v1alpha2",))
LEADER_WORKER_SET = OwnerKind(
    "leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", ("v1",)
)
VOLCANO_JOB = OwnerKind("batch.volcano.sh", "Job", "jobs", ("v1alpha1",))
RAY_CLUSTER = OwnerKind("ray.io", "RayCluster", "rayclusters", ("v1", "v1alpha1"))

NATIVE_POD_GROUP = OwnerKind(
    "scheduling.k8s.io", "PodGroup", "podgroups", ("v1beta1", "v1alpha3", "v1alpha2")
)
COMPOSITE_POD_GROUP = OwnerKind(
    "scheduling.k8s.io", "CompositePodGroup", "compositepodgroups", ("v1beta1", "v1alpha3")
)
NATIVE_WORKLOAD = OwnerKind(
    "scheduling.k8s.io", "Workload", "workloads", ("v1beta1", "v1alpha3", "v1alpha1")
)
COSCHEDULING_POD_GROUP = OwnerKind("scheduling.x-k8s.io", "PodGroup", "podgroups", ("v1alpha1",))
OLD_COSCHEDULING_POD_GROUP = OwnerKind(
    "scheduling.sigs.k8s.io", "PodGroup", "podgroups", ("v1alpha1",)
)
VOLCANO_POD_GROUP = OwnerKind("scheduling.volcano.sh", "PodGroup", "podgroups", ("v1beta1",))
KAI_POD_GROUP = OwnerKind("scheduling.run.ai", "PodGroup", "podgroups", ("v2alpha2",))
POD_GANG = OwnerKind("scheduler.grove.io", "PodGang", "podgangs", ("v1alpha1",))
POD_SET = OwnerKind("orchestration.aibrix.ai", "PodSet", "podsets", ("v1alpha1",))
MODEL_SERVING = OwnerKind(
    "workload.serving.volcano.sh", "ModelServing", "modelservings", ("v1alpha1",)
)

# Annotations of these kinds by which pods are created only once others have a node.
EXCLUSIVE_JOBS = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NODE_SELECTOR_STRATEGY = "alpha.jobset.sigs.k8s.io/node-selector"
EXCLUSIVE_GROUPS = "leaderworkerset.sigs.k8s.io/exclusive-topology"
EXCLUSIVE_SUBGROUPS = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
