"""Settings of the kubelet stand-in. PURE."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from linkwise.topology.machine.topology_manager import Policy, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """Defaults are the real kubelet's, if it has any; tests and the demo use shorter times."""

    capacity: Mapping[str, str] = field(
        default_factory=lambda: {"cpu": "192", "memory": "2Ti", "pods": "110"}
    )
    labels: Mapping[str, str] = field(default_factory=dict)
    # interval of the Node's status, so the delay until new devices show there
    status_seconds: float = 10.0
    init_seconds: float = 0.0  # duration of each pod's init containers together
    stop_seconds: float = 0.1  # time that containers take to end, unless their pod says
    endpoint_grace_seconds: float = 300.0  # after so long without its plugin, a resource counts 0
    numa_nodes: tuple[int, ...] | None = None  # of the machine; None: those of its devices
    topology_manager_policy: Policy = Policy.NONE
    topology_manager_scope: Scope = Scope.CONTAINER

    @property
    def configuration(self) -> Mapping[str, str]:
        """The KubeletConfiguration, as far as the stand-in has one."""
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "topologyManagerPolicy": self.topology_manager_policy,
            "topologyManagerScope": self.topology_manager_scope,
        }
