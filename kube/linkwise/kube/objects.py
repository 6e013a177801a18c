"""The fields of the API server's objects that Linkwise reads.

A cluster has thousands of these objects and every change is decoded, so they are msgspec structs
with only the fields in use; decoding skips all others. Attribute names are the API's in snake_case
(`resourceVersion` is `resource_version`). Frozen: a change is a new object.
"""

import re
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from math import ceil

import msgspec
from kubernetes.utils.quantity import parse_quantity

Quantity = str | int | float
"""A quantity as in a manifest: "500m", "64Gi", 8. `milli` and `whole` read it."""

# The grammar of apimachinery's `resource.Quantity`. Decimal also reads 1_0, " 1" and "nan".
_QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?", re.ASCII)

LARGEST = 2**63 - 1
"""Kubernetes' cap on quantities: "1e30" is well-formed, and must not become a huge int."""


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Subclasses repeat `frozen` for the type checker, which does not inherit it."""


class OwnerReference(_Object, frozen=True):
    kind: str
    name: str
    uid: str
    api_version: str = ""
    controller: bool = False


class ObjectMeta(_Object, frozen=True):
    name: str = ""
    namespace: str = ""  # empty for objects without a namespace, such as a Node
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    owner_references: tuple[OwnerReference, ...] = ()


class Condition(_Object, frozen=True):
    type: str
    status: str  # "True", "False" or "Unknown"
    reason: str = ""
    message: str = ""


class Requirement(_Object, frozen=True):
    """A match expression: `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(_Object, frozen=True):
    """All requirements must hold; an empty selector matches everything."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()


class NodeSelectorTerm(_Object, frozen=True):
    """All requirements must hold; `match_fields` supports `metadata.name` only."""

    match_expressions: tuple[Requirement, ...] = ()
    match_fields: tuple[Requirement, ...] = ()


class NodeSelector(_Object, frozen=True):
    """One of its terms must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class Preference(_Object, frozen=True):
    """A soft preference. Linkwise only looks whether there is one."""


class NodeAffinity(_Object, frozen=True):
    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[Preference, ...] = ()


class PodAffinityTerm(_Object, frozen=True):
    """Of the pods in the namespaces, those that the selector selects. `matchLabelKeys` and
    `mismatchLabelKeys` are left out: the API server merges them into the selector."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None  # None selects no pod
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None  # None selects no namespace


class PodAffinity(_Object, frozen=True):
    """Used for an anti-affinity too."""

    required_during_scheduling_ignored_during_execution: tuple[PodAffinityTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[Preference, ...] = ()


class Affinity(_Object, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class TopologySpreadConstraint(_Object, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    label_selector: LabelSelector | None = None  # None selects no pod
    min_domains: int | None = None
    node_affinity_policy: str | None = None  # Honor, the default, or Ignore
    node_taints_policy: str | None = None  # Ignore, the default, or Honor
    match_label_keys: tuple[str, ...] = ()
    when_unsatisfiable: str = "DoNotSchedule"  # or "ScheduleAnyway", a soft one


class Toleration(_Object, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""  # empty: every effect


class ClaimUse(_Object, frozen=True):
    """A container's devices: those of one request, or of all, of an entry of `resourceClaims`."""

    name: str
    request: str = ""


class Resources(_Object, frozen=True):
    requests: dict[str, Quantity] = {}
    limits: dict[str, Quantity] = {}
    claims: tuple[ClaimUse, ...] = ()


class ContainerPort(_Object, frozen=True):
    host_port: int = 0  # 0: none of the node's
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


class Container(_Object, frozen=True):
    name: str
    resources: Resources = Resources()
    restart_policy: str = ""  # "Always" makes an init container a sidecar
    ports: tuple[ContainerPort, ...] = ()
    command: object = None  # as it comes: only a number of nodes is read of these two
    args: object = None


class ClaimSource(_Object, frozen=True):
    claim_name: str = ""


class EphemeralSource(_Object, frozen=True):
    """A claim that is created with the pod. Its name is the pod's and the volume's."""


class Volume(_Object, frozen=True):
    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None


class PodClaim(_Object, frozen=True):
    """A ResourceClaim by its name, or the template of one that is created with the pod."""

    name: str
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class SchedulingGate(_Object, frozen=True):
    name: str


class SchedulingGroup(_Object, frozen=True):
    """The native PodGroup that a pod belongs to, from Kubernetes 1.36 on."""

    pod_group_name: str = ""


class WorkloadReference(_Object, frozen=True):
    """The same in Kubernetes 1.35: a group within a Workload."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class PodSpec(_Object, frozen=True):
    node_name: str = ""
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    overhead: dict[str, Quantity] = {}
    volumes: tuple[Volume, ...] = ()
    priority: int = 0
    priority_class_name: str = ""
    preemption_policy: str = ""  # Never: the pod waits, and no pod is evicted for it
    restart_policy: str = ""  # Always, OnFailure or Never
    # Claims for devices of DRA drivers. kube-scheduler alone knows where they can be allocated.
    resource_claims: tuple[PodClaim, ...] = ()
    resources: Resources = Resources()  # of the whole pod; for CPU and memory these take precedence
    scheduler_name: str = "default-scheduler"
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadReference | None = None


class ContainerStatus(_Object, frozen=True):
    name: str = ""
    allocated_resources: dict[str, Quantity] = {}  # what the kubelet has admitted
    resources: Resources | None = None  # what is in effect


class PodStatus(_Object, frozen=True):
    phase: str = "Pending"
    reason: str = ""  # such as UnexpectedAdmissionError, the kubelet's refusal
    message: str = ""
    nominated_node_name: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class PodDisruptionBudgetSpec(_Object, frozen=True):
    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(_Object, frozen=True):
    disruptions_allowed: int = 0


class PodDisruptionBudget(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class Pod(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """namespace/name"""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def is_leaving(self) -> bool:
        """Whether it was deleted, with a grace period that its kubelet may still wait for."""
        return self.metadata.deletion_timestamp is not None

    @property
    def is_live(self) -> bool:
        return not (self.has_ended or self.is_leaving)


class Taint(_Object, frozen=True):
    key: str
    effect: str
    value: str = ""


class NodeSpec(_Object, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeSystemInfo(_Object, frozen=True):
    container_runtime_version: str = ""  # as containerd://2.1.4


class NodeStatus(_Object, frozen=True):
    node_info: NodeSystemInfo = NodeSystemInfo()
    capacity: dict[str, Quantity] = {}
    allocatable: dict[str, Quantity] = {}
    conditions: tuple[Condition, ...] = ()


class Node(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Namespace(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class TopologySelectorRequirement(_Object, frozen=True):
    key: str
    values: tuple[str, ...] = ()


class TopologySelectorTerm(_Object, frozen=True):
    """All requirements must hold; an empty term matches nothing."""

    match_label_expressions: tuple[TopologySelectorRequirement, ...] = ()


class StorageClass(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"  # or "WaitForFirstConsumer"
    allowed_topologies: tuple[TopologySelectorTerm, ...] = ()


class PersistentVolumeClaimSpec(_Object, frozen=True):
    access_modes: tuple[str, ...] = ()
    volume_name: str = ""
    storage_class_name: str | None = None
    volume_mode: str = "Filesystem"  # or "Block"
    volume_attributes_class_name: str | None = None
    selector: LabelSelector | None = None  # None selects every volume
    resources: Resources = Resources()


class PersistentVolumeClaimStatus(_Object, frozen=True):
    phase: str = "Pending"  # Bound, or Lost


class PersistentVolumeClaim(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class ObjectReference(_Object, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeNodeAffinity(_Object, frozen=True):
    required: NodeSelector | None = None


class CSIVolumeSource(_Object, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class PersistentVolumeSpec(_Object, frozen=True):
    access_modes: tuple[str, ...] = ()
    capacity: dict[str, Quantity] = {}
    claim_ref: ObjectReference | None = None
    csi: CSIVolumeSource | None = None
    node_affinity: VolumeNodeAffinity | None = None
    storage_class_name: str = ""
    volume_mode: str = "Filesystem"
    volume_attributes_class_name: str | None = None


class PersistentVolumeStatus(_Object, frozen=True):
    phase: str = "Pending"  # Available, Bound, Released or Failed


class PersistentVolume(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class VolumeNodeResources(_Object, frozen=True):
    count: int | None = None  # None: no limit


class CSINodeDriver(_Object, frozen=True):
    name: str
    allocatable: VolumeNodeResources | None = None


class CSINodeSpec(_Object, frozen=True):
    drivers: tuple[CSINodeDriver, ...] | None = None  # null where a node has none


class CSINode(_Object, frozen=True):
    """What the CSI drivers on a node can do; named like the node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CSINodeSpec = CSINodeSpec()


@lru_cache(maxsize=8192)
def milli(quantity: Quantity) -> int:
    """Return thousandths, rounded up as in Kubernetes: "1500m" and 1.5 are 1500. For CPU.

    Raises ValueError if *quantity* does not parse.
    """
    return _rounded_up(quantity, 1000)


@lru_cache(maxsize=8192)
def whole(quantity: Quantity) -> int:
    """Return units, rounded up as in Kubernetes: "1Ki" is 1024. For bytes, GPUs and pods.

    Raises ValueError if *quantity* does not parse.
    """
    return _rounded_up(quantity, 1)


def is_extended(resource: str) -> bool:
    """True for an extended resource, such as nvidia.com/gpu. Its amounts are whole numbers, and
    requests equal limits (Kubernetes' `IsExtendedResourceName`)."""
    return "/" in resource and "kubernetes.io/" not in resource


def _rounded_up(quantity: Quantity, scale: int) -> int:
    if isinstance(quantity, str) and not _QUANTITY.fullmatch(quantity):
        raise ValueError(f'{quantity!r}: expected a quantity like 8, "500m" or "64Gi"')
    try:
        number: Decimal = parse_quantity(quantity)  # type: ignore[no-untyped-call]
    # ArithmeticError: an exponent beyond Decimal's range
    except (ValueError, ArithmeticError) as error:
        raise ValueError(f'{quantity!r}: expected a quantity like 8, "500m" or "64Gi"') from error
    if not number.is_finite():
        raise ValueError(f'{quantity!r}: expected a quantity like 8, "500m" or "64Gi"')
    largest = Decimal(LARGEST // scale)
    return ceil(max(-largest, min(number, largest)) * scale)
