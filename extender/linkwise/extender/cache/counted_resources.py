"""Which resources are counted beside CPU, memory, GPUs and places for pods.

Each costs a column for every node, so their number is limited, and no node may use it up: any
kubelet lists what it likes. A resource counts once a node lists it and a pod requests it that a
scheduler places. Where there are too many, those make room that no node lists, or no pod requests,
any more.
"""

from collections import Counter
from collections.abc import Iterable

from linkwise.extender.api.records import NodeRecord, PodRecord
from linkwise.extender.cache.resources_left import ResourcesLeft


class CountedResources:
    def __init__(self, left: ResourcesLeft) -> None:
        self._left = left
        self._nodes: Counter[str] = Counter()  # how many list a resource
        self._pods: Counter[str] = Counter()  # how many request it

    def node_changed(self, before: NodeRecord | None, after: NodeRecord | None) -> bool:
        """Returns whether other resources count now: all nodes have to be shown again."""
        return self._changed(self._nodes, _listed(before), _listed(after))

    def pod_changed(self, before: PodRecord | None, after: PodRecord | None) -> bool:
        """As `node_changed`."""
        return self._changed(self._pods, _requested(before), _requested(after))

    def _changed(self, of: Counter[str], before: frozenset[str], after: frozenset[str]) -> bool:
        if before == after:
            return False
        of.update(after - before)
        for name in before - after:
            of[name] -= 1
            if not of[name]:
                del of[name]
        return self._left.count_too(filter(self._counts, sorted(after - before)), self._counts)

    def _counts(self, name: str) -> bool:
        return name in self._nodes and name in self._pods


def _listed(node: NodeRecord | None) -> frozenset[str]:
    return frozenset() if node is None else _names(node.offers.others)


def _requested(pod: PodRecord | None) -> frozenset[str]:
    """A kubelet creates static pods itself, so theirs would be another list of its own."""
    return frozenset() if pod is None or pod.ended or pod.static else _names(pod.needs.others)


def _names(amounts: Iterable[tuple[str, int]]) -> frozenset[str]:
    return frozenset(name for name, _ in amounts)
