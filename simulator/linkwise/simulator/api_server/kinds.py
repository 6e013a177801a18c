"""Which kinds of object the stand-in holds, and where: one row each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    plural: str
    api_version: str = "v1"
    namespaced: bool = True
    has_status: bool = True  # `/status` is written apart from the rest

    @property
    def root(self) -> str:
        return f"/api{'s' if '/' in self.api_version else ''}/{self.api_version}"

    @property
    def list_kind(self) -> str:
        return f"{self.name}List"


POD = Kind("Pod", "pods")
NODE = Kind("Node", "nodes", namespaced=False)
EVENT = Kind("Event", "events", has_status=False)
JOB = Kind("Job", "jobs", "batch/v1")
DAEMON_SET = Kind("DaemonSet", "daemonsets", "apps/v1")
BUDGET = Kind("PodDisruptionBudget", "poddisruptionbudgets", "policy/v1")
SERVICE = Kind("Service", "services")
ENDPOINTS = Kind("Endpoints", "endpoints", has_status=False)
ENDPOINT_SLICE = Kind("EndpointSlice", "endpointslices", "discovery.k8s.io/v1", has_status=False)
LEASE = Kind("Lease", "leases", "coordination.k8s.io/v1", has_status=False)

# What pods may hang on, so that whoever reads it finds it; nothing makes pods of these.
OWNERS = (
    Kind("StatefulSet", "statefulsets", "apps/v1"),
    Kind("Deployment", "deployments", "apps/v1"),
    Kind("TFJob", "tfjobs", "kubeflow.org/v1"),
    Kind("PyTorchJob", "pytorchjobs", "kubeflow.org/v1"),
    Kind("XGBoostJob", "xgboostjobs", "kubeflow.org/v1"),
    Kind("PaddleJob", "paddlejobs", "kubeflow.org/v1"),
    Kind("JAXJob", "jaxjobs", "kubeflow.org/v1"),
    Kind("MXJob", "mxjobs", "kubeflow.org/v1"),
    Kind("MPIJob", "mpijobs", "kubeflow.org/v1"),
    Kind("MPIJob", "mpijobs", "kubeflow.org/v2beta1"),
    Kind("JobSet", "jobsets", "jobset.x-k8s.io/v1alpha2"),
    Kind("LeaderWorkerSet", "leaderworkersets", "leaderworkerset.x-k8s.io/v1"),
    Kind("Job", "jobs", "batch.volcano.sh/v1alpha1"),
    Kind("RayCluster", "rayclusters", "ray.io/v1"),
    Kind("PodGroup", "podgroups", "scheduling.k8s.io/v1alpha2"),
    Kind("Workload", "workloads", "scheduling.k8s.io/v1alpha1"),
    Kind("PodGroup", "podgroups", "scheduling.x-k8s.io/v1alpha1"),
    Kind("PodGroup", "podgroups", "scheduling.sigs.k8s.io/v1alpha1"),
    Kind("PodGroup", "podgroups", "scheduling.volcano.sh/v1beta1"),
    Kind("PodGroup", "podgroups", "scheduling.run.ai/v2alpha2"),
)

KINDS = (
    POD,
    NODE,
    EVENT,
    JOB,
    DAEMON_SET,
    BUDGET,
    SERVICE,
    ENDPOINTS,
    ENDPOINT_SLICE,
    LEASE,
    *OWNERS,
)
