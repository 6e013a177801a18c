"""NodePorts: no two pods on a node use the same port of it."""

from collections.abc import Iterable
from typing import NamedTuple

from linkwise.kube.filters.rejection import Rejection
from linkwise.kube.objects import PodSpec

ALL_IPS = "0.0.0.0"
IN_USE = Rejection(
    "NodePorts",
    ("node(s) didn't have free ports for the requested pod ports",),
    resolvable=True,
)


class HostPort(NamedTuple):
    ip: str
    protocol: str
    port: int

    def conflicts(self, other: "HostPort") -> bool:
        return self[1:] == other[1:] and (self.ip == other.ip or ALL_IPS in (self.ip, other.ip))


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """Return the ports of the containers and sidecars. With `hostNetwork`, the API server has set
    every container port as host port."""
    sidecars = (each for each in spec.init_containers if each.restart_policy == "Always")
    return tuple(
        HostPort(port.host_ip or ALL_IPS, port.protocol or "TCP", port.host_port)
        for container in (*sidecars, *spec.containers)
        for port in container.ports
        if port.host_port > 0
    )


def conflict(wanted: Iterable[HostPort], used: Iterable[HostPort]) -> bool:
    return any(one.conflicts(other) for other in used for one in wanted)
