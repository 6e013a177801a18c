"""The kubelet's Topology Manager: how a node's kubelet is set to align a pod's devices.

Names and values are those of KubeletConfiguration (`topologyManagerPolicy`, `…Scope`,
`…PolicyOptions`).
"""

from dataclasses import dataclass
from enum import StrEnum

PREFER_CLOSEST = "prefer-closest-numa-nodes"


class Policy(StrEnum):
    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class Scope(StrEnum):
    CONTAINER = "container"
    POD = "pod"


class Source(StrEnum):
    """What said so."""

    CONFIGZ = "configz"  # the kubelet itself
    FILE = "file"  # its configuration file; flags of the kubelet may differ from it
    NODE_RESOURCE_TOPOLOGY = "NodeResourceTopology"  # what another agent found


@dataclass(frozen=True, slots=True)
class TopologyManager:
    policy: Policy
    scope: Scope = Scope.CONTAINER
    options: tuple[tuple[str, str], ...] = ()  # by name
    source: Source = Source.CONFIGZ

    @property
    def refuses(self) -> bool:
        """Whether the kubelet refuses pods whose devices it cannot align."""
        return self.policy in (Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE)

    @property
    def prefers_closest(self) -> bool:
        return dict(self.options).get(PREFER_CLOSEST, "").lower() in ("1", "t", "true")
