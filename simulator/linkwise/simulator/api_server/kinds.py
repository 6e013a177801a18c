"""The kinds of objects that the stand-in stores, and their paths: one row each.

The owners of pods are those that the extender reads.
"""

from dataclasses import dataclass

from linkwise.pods.podgrouper.workloads import kinds
from linkwise.pods.podgrouper.workloads.systems import READ


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

# Kubernetes 1.35 to 1.37 have each of its owners of pods in other versions.
_NATIVE = tuple(
    f"scheduling.k8s.io/{version}" for version in ("v1alpha1", "v1alpha2", "v1alpha3", "v1beta1")
)
# The others are served in the version that the extender tries first.
_SERVED = {kinds.MPI_JOB: ("v1", "v2beta1"), kinds.COMPOSITE_POD_GROUP: ("v1alpha3",)}
OWNERS = tuple(
    ResourceKind(
        kind.kind,
        kind.plural,
        f"{kind.group}/{version}",
        also=_NATIVE if kind.group == "scheduling.k8s.io" else (),
    )
    for kind in READ
    if kind != kinds.JOB
    for version in _SERVED.get(kind, kind.versions[:1])
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
