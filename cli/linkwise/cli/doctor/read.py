"""Reads the facts: from the API server, and from the extender through it."""

import re
import time
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
from cryptography import x509

from linkwise.cli.doctor.facts import (
    NAME_LABEL,
    PLUGIN,
    SCHEDULER,
    Certificate,
    DaemonSet,
    Facts,
    Lease,
    SchedulerConfig,
    SeenPod,
)
from linkwise.cli.errors import AskError
from linkwise.cli.proxied import Extender
from linkwise.extender.state.views import NodeView, StateView
from linkwise.kube import device_claims
from linkwise.kube.client import KubeClient
from linkwise.kube.device_claims import ResourceSlice
from linkwise.kube.documents import DocumentError, read_value
from linkwise.kube.errors import ApiError
from linkwise.kube.events import Events
from linkwise.kube.objects import Node
from linkwise.topology.names import DEFAULT_RESOURCES

_HOOKS = "/apis/admissionregistration.k8s.io/v1"
_ENDS = re.compile(r'linkwise_extender_certificate_ends_seconds\{of="([^"]+)"\} (\S+)')
T = TypeVar("T")


class _Nodes(msgspec.Struct):
    items: tuple[Node, ...]


class _Pods(msgspec.Struct):
    items: tuple[SeenPod, ...]


class _Slices(msgspec.Struct):
    items: tuple[ResourceSlice, ...]


class _DaemonSets(msgspec.Struct):
    items: tuple[DaemonSet, ...]


class _ConfigMap(msgspec.Struct):
    data: dict[str, str] = {}


class _ClientConfig(msgspec.Struct, rename="camel"):
    ca_bundle: bytes = b""


class _MatchCondition(msgspec.Struct):
    expression: str = ""


class _Hook(msgspec.Struct, rename="camel"):
    match_conditions: tuple[_MatchCondition, ...] = ()
    client_config: _ClientConfig = msgspec.field(default_factory=_ClientConfig)


class _Hooks(msgspec.Struct):
    webhooks: tuple[_Hook, ...] = ()


class _Profile(msgspec.Struct, rename="camel"):
    scheduler_name: str = "default-scheduler"


class _Managed(msgspec.Struct):
    name: str


class _Extender(msgspec.Struct, rename="camel"):
    managed_resources: tuple[_Managed, ...] = ()


class _Configuration(msgspec.Struct):
    profiles: tuple[_Profile, ...] = (_Profile(),)
    extenders: tuple[_Extender, ...] = ()


def read_facts(extender: Extender) -> Facts:
    """Nodes before pods: a pod that is in use by the first is among the second. What cannot be read
    is in `Facts.unread`."""
    reader = _Reader(extender.api, extender.system)
    nodes = reader.get("nodes", "/api/v1/nodes", _Nodes)
    pods = reader.get("pods", "/api/v1/pods", _Pods)
    slices = reader.get("resourceslices", f"{device_claims.ROOT}/resourceslices", _Slices)
    daemonsets = f"/apis/apps/v1/namespaces/{extender.system}/daemonsets"
    ours = {"labelSelector": f"{NAME_LABEL}={PLUGIN}"}
    read = reader.get("daemonsets", daemonsets, _DaemonSets, ours)
    plugins = () if read is None else read.items
    offered = tuple(dict.fromkeys(each.resource for each in plugins)) or DEFAULT_RESOURCES
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{extender.system}/leases"
    lease = reader.get("lease", f"{leases}/linkwise-extender", Lease)
    events = f"/api/v1/namespaces/{extender.system}/events"
    refused = {"fieldSelector": "reason=FailedCreate"}
    failures = reader.get("events", events, Events, refused)
    hooks = reader.get("webhook", f"{_HOOKS}/mutatingwebhookconfigurations/linkwise", _Hooks)
    certificates = [*reader.certificates(hooks)]
    state: StateView | None = None
    views: tuple[NodeView, ...] = ()
    silence = ""
    try:
        state = msgspec.json.decode(extender.ask("state"), type=StateView)
        views = msgspec.json.decode(extender.ask("nodes"), type=tuple[NodeView, ...])
        certificates += _ends(extender.ask("metrics").decode())
    except AskError as error:
        silence = error.message
    except msgspec.DecodeError as error:
        silence = f"its answer is not understood, it may be of another version: {error}"
    return Facts(
        at=time.time(),
        resources=(offered if state is None else (state.resource, *state.more_resources)),
        nodes=() if nodes is None else nodes.items,
        pods=() if pods is None else pods.items,
        slices=() if slices is None else slices.items,
        daemonsets=plugins,
        events=(failures and failures.items) or (),
        scheduler=reader.scheduler(() if pods is None else pods.items),
        conditions=() if hooks is None else _conditions(hooks),
        lease=lease,
        state=state,
        views=views,
        silence=silence,
        certificates=tuple(certificates),
        unread=tuple(reader.unread),
        system=extender.system,
    )


class _Reader:
    def __init__(self, client: KubeClient, system: str) -> None:
        self._client, self._system = client, system
        self.unread: list[tuple[str, str]] = []

    def get(
        self, what: str, path: str, kind: type[T], params: Mapping[str, str] | None = None
    ) -> T | None:
        """None if there is none, or if it cannot be read."""
        try:
            return self._client.get(path, kind, params=params)
        except ApiError as error:
            if error.status != 404:
                self.unread.append((what, error.message))
        except msgspec.MsgspecError as error:
            self.unread.append((what, str(error)))
        return None

    def scheduler(self, pods: Iterable[SeenPod]) -> SchedulerConfig | None:
        """Its pods name the ConfigMap: each change of it may get another name."""
        mounted = (
            volume.config_map.name
            for pod in pods
            if pod.live and pod.is_of(SCHEDULER)
            for volume in pod.spec.volumes
            if volume.config_map is not None
        )
        what = "configmap of the scheduler"
        for name in dict.fromkeys(mounted):
            path = f"/api/v1/namespaces/{self._system}/configmaps/{name}"
            found = self.get(what, path, _ConfigMap)
            text = "" if found is None else found.data.get("config.yaml", "")
            try:
                read = msgspec.convert(read_value(text.encode()) or {}, _Configuration)
            except (DocumentError, msgspec.MsgspecError) as error:
                self.unread.append((what, str(error)))
                continue
            if text:
                managed = (one.name for each in read.extenders for one in each.managed_resources)
                profiles = (each.scheduler_name for each in read.profiles)
                return SchedulerConfig(frozenset(profiles), frozenset(managed))
        return None

    def certificates(self, hooks: _Hooks | None) -> list[Certificate]:
        """The authorities that others trust: of several, the one that lasts longest."""
        found: list[Certificate] = []
        path = f"/api/v1/namespaces/{self._system}/configmaps/linkwise-extender"
        published = self.get("configmap", path, _ConfigMap)
        if published is not None:
            text = published.data.get("ca.crt", "").encode()
            found += self._last("the extender's authority", text)
        for hook in () if hooks is None else hooks.webhooks[:1]:
            found += self._last("the webhook's authority", hook.client_config.ca_bundle)
        return found

    def _last(self, name: str, pem: bytes) -> list[Certificate]:
        try:
            known = x509.load_pem_x509_certificates(pem)
        except ValueError as error:
            self.unread.append((name, str(error)))
            return []
        last = max(known, key=lambda each: each.not_valid_after_utc)
        made, ends = last.not_valid_before_utc.timestamp(), last.not_valid_after_utc.timestamp()
        return [Certificate(name, made, ends)]


def _conditions(hooks: _Hooks) -> tuple[str, ...]:
    return tuple(each.expression for hook in hooks.webhooks for each in hook.match_conditions)


def _ends(metrics: str) -> list[Certificate]:
    return [
        Certificate(f"certificate of {name}", None, float(ends))
        for name, ends in _ENDS.findall(metrics)
    ]
