"""The kinds of objects that the stand-in stores, and their paths: one row each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResourceKind:
    name: str
    plural: str
    api_version: str = "v1"
    namespaced: bool = True
    has_status: bool = True  # clients write `/status` separately
    also: tuple[str, ...] = ()  # versions that manifests may name for the same objects

    @property
    def root(self) -> str:
        return f"/api{'s' if '/' in self.api_version else ''}/{self.api_version}"

    @property
    def list_kind(self) -> str:
        return f"{self.name}List"


POD = ResourceKind("Pod", "pods")
NODE = ResourceKind("Node", "nodes", namespaced=False)
EVENT = ResourceKind("Event", "events", has_status=False)
JOB = ResourceKind("Job", "jobs", "batch/v1")
DAEMON_SET = ResourceKind("DaemonSet", "daemonsets", "apps/v1")
BUDGET = ResourceKind("PodDisruptionBudget", "poddisruptionbudgets", "policy/v1")
SERVICE = ResourceKind("Service", "services")
ENDPOINTS = ResourceKind("Endpoints", "endpoints", has_status=False)
ENDPOINT_SLICE = ResourceKind(
    "EndpointSlice", "endpointslices", "discovery.k8s.io/v1", has_status=False
)
LEASE = ResourceKind("Lease", "leases", "coordination.k8s.io/v1", has_status=False)
CONFIG_MAP = ResourceKind("ConfigMap", "configmaps", has_status=False)

NAMESPACE = ResourceKind("Namespace", "namespaces", namespaced=False)
STORAGE = (
    ResourceKind("PersistentVolume", "persistentvolumes", namespaced=False),
    ResourceKind("PersistentVolumeClaim", "persistentvolumeclaims"),
    ResourceKind(
        "StorageClass", "storageclasses", "storage.k8s.io/v1", namespaced=False, has_status=False
    ),
    ResourceKind("CSINode", "csinodes", "storage.k8s.io/v1", namespaced=False, has_status=False),
)

# Of DRA drivers. The stand-in allocates nothing: a client writes a claim's status.
SLICE = ResourceKind(
    "ResourceSlice", "resourceslices", "resource.k8s.io/v1", namespaced=False, has_status=False
)
CLAIM = ResourceKind("ResourceClaim", "resourceclaims", "resource.k8s.io/v1")

# Kubernetes 1.35 to 1.37 have each of these objects in other versions.
_NATIVE = tuple(
    f"scheduling.k8s.io/{version}" for version in ("v1alpha1", "v1alpha2", "v1alpha3", "v1beta1")
)

# Owners of pods that the extender reads.
OWNERS = (
    ResourceKind("StatefulSet", "statefulsets", "apps/v1"),
    ResourceKind("Deployment", "deployments", "apps/v1"),
    ResourceKind("TFJob", "tfjobs", "kubeflow.org/v1"),
    ResourceKind("PyTorchJob", "pytorchjobs", "kubeflow.org/v1"),
    ResourceKind("XGBoostJob", "xgboostjobs", "kubeflow.org/v1"),
    ResourceKind("PaddleJob", "paddlejobs", "kubeflow.org/v1"),
    ResourceKind("JAXJob", "jaxjobs", "kubeflow.org/v1"),
    ResourceKind("MXJob", "mxjobs", "kubeflow.org/v1"),
    ResourceKind("MPIJob", "mpijobs", "kubeflow.org/v1"),
    ResourceKind("MPIJob", "mpijobs", "kubeflow.org/v2beta1"),
    ResourceKind("JobSet", "jobsets", "jobset.x-k8s.io/v1alpha2"),
    ResourceKind("LeaderWorkerSet", "leaderworkersets", "leaderworkerset.x-k8s.io/v1"),
    ResourceKind("Job", "jobs", "batch.volcano.sh/v1alpha1"),
    ResourceKind("RayCluster", "rayclusters", "ray.io/v1"),
    ResourceKind("PodGroup", "podgroups", "scheduling.k8s.io/v1beta1", also=_NATIVE),
    ResourceKind(
        "CompositePodGroup", "compositepodgroups", "scheduling.k8s.io/v1alpha3", also=_NATIVE
    ),
    ResourceKind("Workload", "workloads", "scheduling.k8s.io/v1beta1", also=_NATIVE),
    ResourceKind("PodGroup", "podgroups", "scheduling.x-k8s.io/v1alpha1"),
    ResourceKind("PodGroup", "podgroups", "scheduling.sigs.k8s.io/v1alpha1"),
    ResourceKind("PodGroup", "podgroups", "scheduling.volcano.sh/v1beta1"),
    ResourceKind("PodGroup", "podgroups", "scheduling.run.ai/v2alpha2"),
    ResourceKind("PodGang", "podgangs", "scheduler.grove.io/v1alpha1"),
    ResourceKind("PodSet", "podsets", "orchestration.aibrix.ai/v1alpha1"),
    ResourceKind("ModelServing", "modelservings", "workload.serving.volcano.sh/v1alpha1"),
)

# Other workloads that manifests may have, and what stands between a workload and its pods.
WORKLOADS = (
    ResourceKind("ReplicaSet", "replicasets", "apps/v1"),
    ResourceKind("ReplicationController", "replicationcontrollers"),
    ResourceKind("CronJob", "cronjobs", "batch/v1"),
    ResourceKind("TrainJob", "trainjobs", "trainer.kubeflow.org/v1alpha1"),
    ResourceKind("RayJob", "rayjobs", "ray.io/v1"),
    ResourceKind("RayService", "rayservices", "ray.io/v1"),
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
    CONFIG_MAP,
    NAMESPACE,
    *STORAGE,
    SLICE,
    CLAIM,
    *OWNERS,
    *WORKLOADS,
)
