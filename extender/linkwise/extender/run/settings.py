"""The extender's settings, checked once at the start; each default has its reason.

Each setting is a flag of `linkwise-extender` and an environment variable
`LINKWISE_EXTENDER_<FLAG>`.
"""

import re
from dataclasses import dataclass
from ipaddress import ip_address

from linkwise.extender.next.core_settings import CoreSettings, Moves
from linkwise.kube.lease import Timing
from linkwise.pods.spans import LABEL_KEY, NODE
from linkwise.serving.certificates.callers import Place
from linkwise.serving.certificates.pairs import Lifetime
from linkwise.topology.errors import LinkwiseError
from linkwise.topology.names import RESOURCE_NAME

_TIMING = Timing()  # client-go's own
_CERTIFICATES = Lifetime()
_SHORTEST_LIFETIME_SECONDS = 10.0
# kube-scheduler tries a pod again after up to 10 s, and `barrier_seconds` has to be longer.
_SHORTEST_CALL_SECONDS = 13.0
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class SettingsError(LinkwiseError):
    """An invalid setting; the text names the flag, its value and what was expected."""

    def __init__(self, flag: str, value: object, expected: str) -> None:
        super().__init__(f"--{flag} {value}: expected {expected}")


@dataclass(frozen=True, slots=True)
class Settings(CoreSettings):
    """The core's, and those of the program around it."""

    kubeconfig: str | None = None  # None and no api_server: the pod's own service account
    api_server: str | None = None  # a plain URL, for an API server that asks for no credentials
    listen_address: str = "0.0.0.0"  # kube-scheduler calls from another pod
    listen_port: int = 9402  # for kube-scheduler; the plugin has 9401, the webhook 9403
    status_port: int = 9404  # for all other clients
    plain_http: bool = False  # on a loopback address, for trials on one machine
    # The names and addresses in the certificate of the call port.
    hosts: tuple[str, ...] = ("linkwise-extender.kube-system.svc",)
    certificates: Place = ("kube-system", "linkwise-extender")
    certificate_lifetime: Lifetime = _CERTIFICATES
    callers: tuple[str, ...] = ("system:kube-scheduler",)  # its name in every cluster
    caller_secret: Place | None = None  # stores the caller's certificate; the extender signs it
    # After it, kube-scheduler treats the call as failed, and the pod as not bound.
    call_timeout_seconds: float = 15.0
    device_class: str = ""  # of the claims that are created for planned GPUs; empty: the vendor's

    leader_elect: bool = False  # a single process needs no election; the manifests set it
    lease_namespace: str = "kube-system"
    timing: Timing = _TIMING
    # The Service without a selector whose calls the leader receives; it needs `pod_ip`.
    service: str | None = None
    pod_name: str | None = None  # the pod of which this is the only process
    pod_ip: str | None = None

    def __post_init__(self) -> None:
        self._check_election()
        self._check_names()
        if self.api_server is not None and not self.api_server.startswith(("http://", "https://")):
            raise SettingsError("api-server", self.api_server, "a URL like http://127.0.0.1:8001")
        for flag, port in (("listen-port", self.listen_port), ("status-port", self.status_port)):
            if not 0 <= port <= 65535:
                raise SettingsError(flag, port, "0 to 65535")
        if self.listen_port == self.status_port != 0:
            raise SettingsError("status-port", self.status_port, "another than --listen-port")
        self._check_reclaim()
        self._check_callers()
        self._check_span_levels()
        if self.gang_timeout_seconds <= 0:
            raise SettingsError("gang-timeout", self.gang_timeout_seconds, "more than 0 seconds")
        if self.lift_gates_after_seconds is not None and self.lift_gates_after_seconds <= 0:
            expected = "more than 0 seconds"
            raise SettingsError("lift-gates-after", self.lift_gates_after_seconds, expected)
        if not 0 <= self.reserve_share <= 1:
            raise SettingsError("reserve-share", self.reserve_share, "0 to 1")
        if self.max_refusals < 1:
            raise SettingsError("max-refusals", self.max_refusals, "1 or more")

    def _check_names(self) -> None:
        for resource in self.resource_names:
            if not RESOURCE_NAME.fullmatch(resource):
                raise SettingsError("resource-name", resource, "like nvidia.com/gpu")
        if not self.resource_names or len({*self.resource_names}) < len(self.resource_names):
            expected = "each resource once"
            raise SettingsError("resource-name", ", ".join(self.resource_names), expected)
        movable = [namespace for namespace, _ in self.moves.namespaces]
        if len(movable) > len({*movable}):
            raise SettingsError("movable-namespace", ", ".join(movable), "each namespace once")
        for flag, namespaces in (("namespace", self.namespaces), ("movable-namespace", movable)):
            for namespace in namespaces:
                if not _NAMESPACE.fullmatch(namespace):
                    raise SettingsError(flag, namespace, "the name of a namespace")
        if self.moves.whole_nodes and self.moves.moves is Moves.NEVER:
            expected = "0, unless --moves is consent or advise"
            raise SettingsError("whole-nodes", self.moves.whole_nodes, expected)

    def _check_reclaim(self) -> None:
        seen = set()
        for namespace, seconds in self.reclaim_idle:
            if not _NAMESPACE.fullmatch(namespace) or namespace in seen or seconds <= 0:
                said = f"{namespace}={seconds:g}s"
                expected = "each namespace once, and more than 0 seconds"
                raise SettingsError("reclaim-idle", said, expected)
            seen.add(namespace)

    def _check_callers(self) -> None:
        if self.plain_http and not is_loopback(self.listen_address):
            expected = "with a --listen-address that only this machine reaches, such as 127.0.0.1"
            raise SettingsError("plain-http", self.plain_http, expected)
        if not self.callers:
            raise SettingsError("caller", "", "a name")
        if self.caller_secret is not None and len(self.callers) != 1:
            expected = "one, where --caller-secret is given"
            raise SettingsError("caller", ", ".join(self.callers), expected)
        if not self.hosts:
            raise SettingsError("host", "", "a name or an address")
        seconds = self.certificate_lifetime.seconds
        if seconds < _SHORTEST_LIFETIME_SECONDS:
            raise SettingsError("certificate-lifetime", seconds, "10 seconds or more")
        seconds = self.call_timeout_seconds
        if seconds < _SHORTEST_CALL_SECONDS:
            expected = (
                f"{_SHORTEST_CALL_SECONDS:g} seconds or more, else members of a gang do not meet"
            )
            raise SettingsError("call-timeout", seconds, expected)

    @property
    def barrier_seconds(self) -> float:
        """How long a member's bind waits for the others of its gang. The rest of the call's time is
        for the Bindings: some three seconds for a thousand."""
        return 0.8 * self.call_timeout_seconds

    def _check_election(self) -> None:
        timing = self.timing
        if timing.retry_seconds <= 0:
            raise SettingsError("retry-period", timing.retry_seconds, "more than 0 seconds")
        if timing.renew_deadline_seconds < 2 * timing.retry_seconds:
            expected = f"at least twice --retry-period {timing.retry_seconds:g}"
            raise SettingsError("renew-deadline", timing.renew_deadline_seconds, expected)
        if timing.lease_seconds < 1.25 * timing.renew_deadline_seconds:
            # The difference is for writes in flight.
            expected = f"at least 1.25 times --renew-deadline {timing.renew_deadline_seconds:g}"
            raise SettingsError("lease-duration", timing.lease_seconds, expected)
        if self.service is not None:
            if not self.pod_name:
                raise SettingsError("pod-name", self.pod_name, "a name, where --service is given")
            try:
                ip_address(self.pod_ip or "")
            except ValueError:
                expected = "an IP address of this process, where --service is given"
                raise SettingsError("pod-ip", self.pod_ip, expected) from None

    def _check_span_levels(self) -> None:
        for level in self.span_levels:
            if level == NODE or not LABEL_KEY.fullmatch(level):
                raise SettingsError("span-levels", level, "clique or the key of a node label")


def is_loopback(address: str) -> bool:
    try:
        return address == "localhost" or ip_address(address).is_loopback
    except ValueError:
        return False
