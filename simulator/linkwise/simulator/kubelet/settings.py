"""Settings of the kubelet stand-in. PURE."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
