"""A single pod is shown its best node alone: there is nothing left to choose, score or ask again.

kube-scheduler proposes some hundred nodes and would rate each of them by all its plugins and by a
second call of ours, only to come to the node that is best to us. Where the pod has wishes of its
own, or kube-scheduler for it, it gets all nodes as ever; and so does a pod that comes again, as
something that we cannot see has kept it off the node that it was offered (another extender, a
volume, a plugin's late refusal). docs/decisions/0010-one-node.md has what that saves.
"""

from collections.abc import Sequence

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cache.cache import Cache
from linkwise.extender.cache.machine_kind import GpuRequest
from linkwise.extender.placement.nodes.best_node import BestNode
from linkwise.extender.placement.nodes.node_filters import puts_off
from linkwise.extender.placement.nodes.nodes_view import NodesView


class Offers:
    def __init__(self, cache: Cache, best_node: BestNode) -> None:
        self._cache, self._best_node = cache, best_node
        self._made: set[str] = set()  # uids of the pods that were shown one node of several

    def offer(self, record: PodRecord, names: Sequence[str], view: NodesView) -> str | None:
        """The one of these nodes to answer; None where there is none, or all are to be told."""
        if record.prefers or record.uid in self._made:
            return None
        request = GpuRequest(record.demand, record.ask.requirement)
        best = self._best_node.among(request, names, view)
        if best is None or puts_off(record.template, self._cache.nodes[best].record):
            return None
        if len(names) > 1 and record.uid in self._cache.pods:
            self._made.add(record.uid)
        return best

    @property
    def pending(self) -> int:
        """Pods that were offered a node and are not known to be bound."""
        return len(self._made)

    def forget(self, uid: str) -> None:
        self._made.discard(uid)
