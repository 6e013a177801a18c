"""What the doctor looks at: objects of the API server, and the extender's views."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import msgspec

from linkwise.extender.state.cache.resources import resource_on
from linkwise.extender.state.views import NodeView, StateView
from linkwise.kube.device_claims import ResourceSlice
from linkwise.kube.events import Event, why_not_created
from linkwise.kube.filters.node_affinity import RequiredNodes, required_nodes
from linkwise.kube.objects import (
    Affinity,
    Condition,
    Node,
    ObjectMeta,
    Resources,
    SchedulingGate,
    whole,
)
from linkwise.kube.pod_conditions import scheduler_error
from linkwise.topology import names
from linkwise.topology.annotations.node_annotation import read_topology
from linkwise.topology.errors import LinkwiseError
from linkwise.topology.machine.model import Machine
from linkwise.topology.vendors.known import vendor_of_resource

PLUGIN, EXTENDER = "linkwise-plugin", "linkwise-extender"
SCHEDULER, WEBHOOK = "linkwise-scheduler", "linkwise-webhook"
NAME_LABEL = "app.kubernetes.io/name"
IN_FRONT, OBSERVES, ALONE = "in-front", "observe", "alone"
_DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"
_SOCKET_FLAG = re.compile(r"--kubelet-socket[= ]\S*/linkwise/")
_FLAGS = "LINKWISE_PLUGIN_"  # flags of our plugin as variables
_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})  # as click reads a flag


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Only the fields in use, as in `linkwise.kube.objects`."""


class EnvVar(_Object, frozen=True):
    name: str
    value: str = ""


class VolumeMount(_Object, frozen=True):
    name: str
    mount_path: str


class Container(_Object, frozen=True):
    name: str
    image: str = ""
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    resources: Resources = Resources()
    restart_policy: str = ""
    volume_mounts: tuple[VolumeMount, ...] = ()


class HostPath(_Object, frozen=True):
    path: str


class ConfigMapVolume(_Object, frozen=True):
    name: str = ""


class Volume(_Object, frozen=True):
    name: str
    host_path: HostPath | None = None
    config_map: ConfigMapVolume | None = None


class PodSpec(_Object, frozen=True):
    node_name: str = ""
    scheduler_name: str = "default-scheduler"
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()


class PodStatus(_Object, frozen=True):
    phase: str = "Pending"
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()


class SeenPod(_Object, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def live(self) -> bool:
        ended = self.status.phase in ("Succeeded", "Failed")
        return not ended and self.metadata.deletion_timestamp is None

    @property
    def ready(self) -> bool:
        return any(
            each.type == "Ready" and each.status == "True" for each in self.status.conditions
        )

    @property
    def refusal(self) -> str:
        """kube-scheduler's reason why the pod is not bound."""
        told = (each for each in self.status.conditions if each.type == "PodScheduled")
        return " ".join(each.message for each in told if each.status != "True")

    @property
    def broken_off(self) -> str:
        """kube-scheduler's error if it broke off its last try of the pod."""
        return scheduler_error(self.status.conditions)

    def is_of(self, program: str) -> bool:
        return self.program == program

    @property
    def program(self) -> str:
        return self.metadata.labels.get(NAME_LABEL, "")

    def values_of(self, flag: str) -> tuple[str, ...]:
        """Of a flag of Linkwise's program: on its command line, else in its environment."""
        found: list[str] = []
        for each in self.spec.containers:
            for arg, following in pairwise((*each.args, "")):
                name, equals, value = arg.partition("=")
                if name == f"--{flag}":
                    found.append(value if equals else following)
        if found:
            return tuple(found)
        variable = f"{self.program}-{flag}".upper().replace("-", "_")
        env = (var for each in self.spec.containers for var in each.env)
        return tuple(word for var in env if var.name == variable for word in var.value.split())

    @property
    def resource(self) -> str:
        """Of a pod of our plugin: what it offers."""
        return next(iter(self.values_of("resource-name")), names.DEFAULT_RESOURCE)

    def takes(self, resource: str) -> bool:
        return _any_takes((*self.spec.init_containers, *self.spec.containers), resource)

    def keeps(self, resource: str) -> bool:
        """Whether a container has it for as long as the pod runs. podresources lists no init
        container that ends (kubelet, `pkg/kubelet/apis/podresources/server_v1.go`)."""
        sidecars = (each for each in self.spec.init_containers if each.restart_policy == "Always")
        return _any_takes((*sidecars, *self.spec.containers), resource)

    @property
    def mode(self) -> str:
        """How a pod of our plugin runs."""
        said = {arg.partition("=")[0] for each in self.spec.containers for arg in each.args}
        said |= {
            f"--{var.name.removeprefix(_FLAGS).lower().replace('_', '-')}"
            for each in self.spec.containers
            for var in each.env
            if var.name.startswith(_FLAGS) and var.value.lower() in _TRUE
        }
        return IN_FRONT if "--in-front" in said else OBSERVES if "--observe" in said else ALONE

    def is_vendor_of(self, resource: str) -> bool:
        """Whether this is a vendor's device plugin for *resource*, as far as names tell."""
        vendor = vendor_of_resource(resource)
        words = vendor.plugin_words if vendor else (resource.partition(".")[0],)
        named = [f"{self.metadata.name} {each.name} {each.image}" for each in self.spec.containers]
        about = " ".join(named).lower()
        mounts = any(_is_below(each.host_path) for each in self.spec.volumes)
        known = "device-plugin" in about and any(word in about for word in words)
        return mounts and known and not self.is_of(PLUGIN)

    @property
    def registers_with_us(self) -> bool:
        """Whether a vendor's plugin registers at Linkwise's socket and not at the kubelet's."""
        told = (var for each in self.spec.containers for var in each.env)
        if any(var.name == "KUBELET_SOCKET" and "/linkwise/" in var.value for var in told):
            return True
        words = " ".join(arg for each in self.spec.containers for arg in each.args)
        if _SOCKET_FLAG.search(words):
            return True
        ours = {each.name for each in self.spec.volumes if _is_ours(each.host_path)}
        mounts = (mount for each in self.spec.containers for mount in each.volume_mounts)
        return any(m.name in ours and m.mount_path.rstrip("/") == _DEVICE_PLUGINS for m in mounts)


class _TemplateSpec(PodSpec, frozen=True):
    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None


class _Template(SeenPod, frozen=True):
    spec: _TemplateSpec = _TemplateSpec()


class _DaemonSetSpec(_Object, frozen=True):
    template: _Template = _Template()


class DaemonSet(_Object, frozen=True):
    """Of the plugin: a cluster with two vendors has one for each."""

    metadata: ObjectMeta = ObjectMeta(name=PLUGIN)
    spec: _DaemonSetSpec = _DaemonSetSpec()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def resource(self) -> str:
        return self.spec.template.resource

    def is_for(self, node: Node) -> bool:
        """Whether its pods may run on *node*. They tolerate every taint."""
        return self._required.match(node.metadata.name, node.metadata.labels)

    @property
    def labels(self) -> dict[str, str]:
        """The labels by which it selects nodes, with a value that each may have."""
        required = self._required
        of_terms = (each for term in required.terms or () for each in term.match_expressions)
        every = (*(required.selector or ()), *of_terms)
        return {each.key: next(iter(each.values), "true") for each in every}

    @property
    def _required(self) -> RequiredNodes:
        template = self.spec.template.spec
        return required_nodes(template.node_selector, template.affinity)


class LeaseSpec(_Object, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: datetime | None = None


class Lease(_Object, frozen=True):
    spec: LeaseSpec = LeaseSpec()


@dataclass(frozen=True, slots=True)
class Certificate:
    name: str
    made: float | None  # None: unknown
    ends: float


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Of the second scheduler: its names, and the resources of the pods about which it asks."""

    names: frozenset[str]
    managed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """Times are seconds since 1970."""

    at: float
    resources: tuple[str, ...]  # those that are GPUs
    nodes: tuple[Node, ...] = ()
    pods: tuple[SeenPod, ...] = ()
    slices: tuple[ResourceSlice, ...] = ()  # what DRA drivers publish
    daemonsets: tuple[DaemonSet, ...] = ()
    events: tuple[Event, ...] = ()  # about pods that could not be created
    scheduler: SchedulerConfig | None = None  # None: there is no second one, or it is unknown
    conditions: tuple[str, ...] = ()  # under which the API server calls the webhook for a pod
    lease: Lease | None = None
    state: StateView | None = None
    views: tuple[NodeView, ...] = ()
    silence: str = ""  # why the extender did not answer
    certificates: tuple[Certificate, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()  # what could not be read, and why
    system: str = "kube-system"  # the namespace in which Linkwise is installed

    def resource_on(self, node: Node) -> str:
        """The one that is a GPU there."""
        return resource_on(node, self.resources)

    def daemonset_for(self, node: Node) -> DaemonSet | None:
        """The one that selects the node, else the one for its GPUs; None: there is none."""
        resource = self.resource_on(node)
        return min(
            self.daemonsets,
            key=lambda each: (not each.is_for(node), each.resource != resource),
            default=None,
        )

    def takes_gpus(self, pod: SeenPod) -> bool:
        return any(map(pod.takes, self.resources))

    def could_read(self, what: str) -> bool:
        return what not in dict(self.unread)

    @property
    def plugins(self) -> tuple[SeenPod, ...]:
        return tuple(pod for pod in self.pods if pod.live and pod.is_of(PLUGIN))

    @property
    def refused(self) -> Mapping[str, str]:
        """By DaemonSet or program, the last reason why no pod of it could be created; without those
        of which one was created since."""
        found: dict[str, str] = {}
        programs = (PLUGIN, EXTENDER, SCHEDULER, WEBHOOK)
        pods_of = {each: [pod for pod in self.pods if pod.is_of(each)] for each in programs}
        pods_of |= {
            each.name: [pod for pod in pods_of[PLUGIN] if pod.resource == each.resource]
            for each in self.daemonsets
        }
        for event in sorted(self.events, key=lambda each: each.last):
            about, why = event.involved_object.name, why_not_created(event)
            # The pods of a Deployment are created by a ReplicaSet, with a name that is longer.
            alike = (each for each in pods_of if f"{about}-".startswith(f"{each}-"))
            program = max(alike, key=len, default="")
            if not why or not program:
                continue
            made = (
                pod.metadata.creation_timestamp.timestamp()
                for pod in pods_of[program]
                if pod.metadata.creation_timestamp is not None
            )
            found.pop(program, None)
            if event.last > max(made, default=0.0):
                found[program] = why
        return found

    @property
    def observes(self) -> bool:
        """Whether the cluster is only observed: no plugin of ours serves a kubelet."""
        return bool(self.plugins) and all(pod.mode == OBSERVES for pod in self.plugins)


def amount_of(amounts: Mapping[str, str | int | float], resource: str) -> int:
    """How much of *resource*; 0 for what does not parse."""
    try:
        return whole(amounts.get(resource, 0))
    except ValueError:
        return 0


def machine_on(node: Node) -> Machine | None:
    """The topology annotation; None: there is none that can be read."""
    text = node.metadata.annotations.get(names.TOPOLOGY)
    try:
        return None if text is None else read_topology(text)
    except LinkwiseError:
        return None


def _any_takes(containers: Iterable[Container], resource: str) -> bool:
    return any(
        amount_of(amounts, resource) > 0
        for container in containers
        for amounts in (container.resources.limits, container.resources.requests)
    )


def _is_below(path: HostPath | None) -> bool:
    return path is not None and f"{path.path.rstrip('/')}/".startswith(f"{_DEVICE_PLUGINS}/")


def _is_ours(path: HostPath | None) -> bool:
    return path is not None and path.path.rstrip("/") == f"{_DEVICE_PLUGINS}/linkwise"
