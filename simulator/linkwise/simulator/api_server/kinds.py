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
ENDPOINT_SLICE = Kind("EndpointSlice", "endpointslices", "discovery.k8s.io/v1", has_status=False)
LEASE = Kind("Lease", "leases", "coordination.k8s.io/v1", has_status=False)

KINDS = (POD, NODE, EVENT, JOB, DAEMON_SET, BUDGET, SERVICE, ENDPOINT_SLICE, LEASE)
