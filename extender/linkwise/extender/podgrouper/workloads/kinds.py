"""The kinds of objects that may have to be read, and where the API server keeps them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    group: str
    kind: str
    plural: str
    versions: tuple[str, ...]  # to be tried in this order where no reference names one

    def paths(self, namespace: str, name: str, version: str = "") -> tuple[str, ...]:
        versions = (version,) if version else self.versions
        return tuple(
            f"/apis/{self.group}/{served}/namespaces/{namespace}/{self.plural}/{name}"
            for served in versions
        )


JOB = Kind("batch", "Job", "jobs", ("v1",))
STATEFUL_SET = Kind("apps", "StatefulSet", "statefulsets", ("v1",))
REPLICA_SET = Kind("apps", "ReplicaSet", "replicasets", ("v1",))
DEPLOYMENT = Kind("apps", "Deployment", "deployments", ("v1",))

TF_JOB = Kind("kubeflow.org", "TFJob", "tfjobs", ("v1",))
PYTORCH_JOB = Kind("kubeflow.org", "PyTorchJob", "pytorchjobs", ("v1",))
XGBOOST_JOB = Kind("kubeflow.org", "XGBoostJob", "xgboostjobs", ("v1",))
PADDLE_JOB = Kind("kubeflow.org", "PaddleJob", "paddlejobs", ("v1",))
JAX_JOB = Kind("kubeflow.org", "JAXJob", "jaxjobs", ("v1",))
MX_JOB = Kind("kubeflow.org", "MXJob", "mxjobs", ("v1",))
MPI_JOB = Kind("kubeflow.org", "MPIJob", "mpijobs", ("v2beta1", "v1"))
JOB_SET = Kind("jobset.x-k8s.io", "JobSet", "jobsets", ("v1alpha2",))
LEADER_WORKER_SET = Kind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", ("v1",))
VOLCANO_JOB = Kind("batch.volcano.sh", "Job", "jobs", ("v1alpha1",))
RAY_CLUSTER = Kind("ray.io", "RayCluster", "rayclusters", ("v1", "v1alpha1"))

NATIVE_POD_GROUP = Kind(
    "scheduling.k8s.io", "PodGroup", "podgroups", ("v1beta1", "v1alpha3", "v1alpha2")
)
NATIVE_WORKLOAD = Kind("scheduling.k8s.io", "Workload", "workloads", ("v1alpha1",))
COSCHEDULING_POD_GROUP = Kind("scheduling.x-k8s.io", "PodGroup", "podgroups", ("v1alpha1",))
OLD_COSCHEDULING_POD_GROUP = Kind("scheduling.sigs.k8s.io", "PodGroup", "podgroups", ("v1alpha1",))
VOLCANO_POD_GROUP = Kind("scheduling.volcano.sh", "PodGroup", "podgroups", ("v1beta1",))
KAI_POD_GROUP = Kind("scheduling.run.ai", "PodGroup", "podgroups", ("v2alpha2",))

READ = (
    JOB,
    STATEFUL_SET,
    DEPLOYMENT,
    TF_JOB,
    PYTORCH_JOB,
    XGBOOST_JOB,
    PADDLE_JOB,
    JAX_JOB,
    MX_JOB,
    MPI_JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    VOLCANO_JOB,
    RAY_CLUSTER,
    NATIVE_POD_GROUP,
    NATIVE_WORKLOAD,
    COSCHEDULING_POD_GROUP,
    OLD_COSCHEDULING_POD_GROUP,
    VOLCANO_POD_GROUP,
    KAI_POD_GROUP,
)
"""All that may have to be read; the extender's account may get these and no others."""
