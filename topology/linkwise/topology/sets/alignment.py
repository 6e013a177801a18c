"""Which GPUs a kubelet whose Topology Manager refuses pods gives to a container.

The device manager makes a hint of every set of NUMA nodes that has enough GPUs, and prefers those
of as few nodes as all GPUs of the machine, free or not, allow for so many. `single-numa-node` and
`restricted` admit preferred hints only, and the former only those of one node. Of several the
kubelet takes the one with the lowest NUMA nodes, and the plugin chooses among its GPUs alone. So
free GPUs of a higher NUMA node are out of reach while a lower one has enough.

What other devices, CPUs and memory prefer is not known here. A kubelet that takes them into account
may give other GPUs, or refuse the pod.
"""

from collections.abc import Hashable
from itertools import combinations

from linkwise.topology.machine.model import Machine
from linkwise.topology.machine.topology_manager import Policy, Scope

# By default, a kubelet has no Topology Manager on a machine with more than 8
# (https://kubernetes.io/docs/tasks/administer-cluster/topology-manager/). So many sets of them are
# looked at that a machine with very many would keep all others waiting.
_MOST_NUMA_NODES = 16


class Alignment:
    """All GPU sets are bitmasks over `Machine.gpus`."""

    def __init__(self, machine: Machine) -> None:
        manager = machine.topology_manager
        assert manager is not None, "made by alignment_of alone"
        self.policy = manager.policy
        self.of_pod = manager.scope is Scope.POD
        self._any_of_fewest = manager.prefers_closest
        self._gpus_of: dict[int, int] = {}  # NUMA node -> its GPUs
        for position, gpu in enumerate(machine.gpus):
            for node in gpu.numa_nodes if gpu.parts is None else ():
                if node >= 0:
                    self._gpus_of[node] = self._gpus_of.get(node, 0) | 1 << position
        self._regions: dict[int, tuple[int, ...]] = {}
        self.of_several_nodes = self._of_several_nodes()

    def _of_several_nodes(self) -> int:
        seen = several = 0
        for gpus in self._gpus_of.values():
            several |= seen & gpus
            seen |= gpus
        return several

    @property
    def key(self) -> Hashable:
        """Equal for machines whose kubelets align alike."""
        return self.policy, self.of_pod, self._any_of_fewest, tuple(sorted(self._gpus_of.items()))

    @property
    def matters(self) -> bool:
        """Whether any GPU has a NUMA node: else the kubelet has no hints of them. With very many
        NUMA nodes it is not worked out what the kubelet would do."""
        is_known = len(self._gpus_of) <= _MOST_NUMA_NODES or self.policy is Policy.SINGLE_NUMA_NODE
        return bool(self._gpus_of) and is_known

    def regions(self, size: int) -> tuple[int, ...]:
        """The GPUs of each set of NUMA nodes from which the kubelet would give *size* GPUs, in its
        order; empty if it gives so many to no container."""
        found = self._regions.get(size)
        if found is None:
            found = self._regions[size] = self._fewest(size)
        return found

    def _fewest(self, size: int) -> tuple[int, ...]:
        most = 1 if self.policy is Policy.SINGLE_NUMA_NODE else len(self._gpus_of)
        if size > _union([*self._gpus_of.values()]).bit_count():
            return ()
        for count in range(1, most + 1):
            # The lowest bitmask of nodes first: that is the one whose highest node is lower.
            sets = sorted(combinations(sorted(self._gpus_of, reverse=True), count))
            regions = [_union([self._gpus_of[node] for node in nodes]) for nodes in sets]
            if large := tuple(region for region in regions if region.bit_count() >= size):
                return large
        return ()

    def reach(self, free: int, size: int) -> int:
        """Those of the *free* GPUs among which the kubelet would choose *size*; 0: it refuses."""
        return self.reach_beside(free, 0, size)

    def reach_beside(self, free: int, reused: int, size: int) -> int:
        """`reach` for a container that is given the GPUs *reused* again and needs the others of
        *size* beside them; *reused* included."""
        found = 0
        for region in self.regions(size):
            if not reused & ~region and (region & (free | reused)).bit_count() >= size:
                found |= region & (free | reused)
                # The distances of NUMA nodes are not known.
                if not (self._any_of_fewest and self.policy is Policy.RESTRICTED):
                    break
        return found

    def reach_of_several(self, free: int, size: int, count: int) -> int:
        """Those of the *free* GPUs that *count* containers of *size* GPUs could get, one after the
        other; 0: the kubelet would refuse one of them."""
        found = 0
        for _ in range(count):
            reached = self.reach(free, size)
            if not reached:
                return 0
            found |= reached
            free &= ~_lowest(reached, size)
        return found

    def holds(self, gpus: int, size: int) -> bool:
        """Whether a container of *size* GPUs may have this set."""
        return any(not gpus & ~region for region in self.regions(size))


def alignment_of(machine: Machine) -> Alignment | None:
    """None if the kubelet refuses no set of GPUs, or if it is not known whether it does."""
    if machine.topology_manager is None or not machine.topology_manager.refuses:
        return None
    alignment = Alignment(machine)
    return alignment if alignment.matters else None


def _union(masks: list[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _lowest(gpus: int, count: int) -> int:
    left = gpus
    for _ in range(count):
        left &= left - 1
    return gpus & ~left
