"""What the stand-in for the kubelet lets its user set. PURE."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """The defaults are a real kubelet's where it has any; tests and the demo make haste."""

    capacity: Mapping[str, str] = field(
        default_factory=lambda: {"cpu": "192", "memory": "2Ti", "pods": "110"}
    )
    labels: Mapping[str, str] = field(default_factory=dict)
    status_seconds: float = 10.0  # a new count of devices shows in the Node at the next one
    init_seconds: float = 0.0  # how long each pod's init containers take together
    stop_seconds: float = 0.1  # how long containers take to end, where their pod does not say
    endpoint_grace_seconds: float = 300.0  # a plugin gone for longer: the resource counts 0
