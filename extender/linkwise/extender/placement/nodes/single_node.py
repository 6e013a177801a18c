"""Filter returns only the best node for a single pod: nothing is left to choose or to score.

kube-scheduler proposes some hundred nodes. It would rate each of them with all its plugins and with
a second call to the extender, only to choose the node that the extender rates best. Filter returns
all suitable nodes in two cases:
- The pod, or kube-scheduler for it, has preferences of its own.
- The pod was offered one node before and comes again. Then something that the extender cannot see
  has kept it off that node (another extender, a volume, a plugin's late refusal).

docs/decisions/0010-one-node.md says what this saves.
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
        self._cache, self.best_node = cache, best_node
        self._made = cache.memory.set()  # uids of the pods that were offered one node of several

    def offer(self, record: PodRecord, names: Sequence[str], view: NodesView) -> str | None:
        """The node of *names* to return; None if there is none, or if all are to be returned."""
        if record.prefers or record.uid in self._made:
            return None
        request = GpuRequest(record.demand, record.ask.requirement)
        best = self.best_node.among(request, record.needs, names, view)
        if best is None or puts_off(record.template, self._cache.nodes[best].record):
            return None
        if len(names) > 1 and record.uid in self._cache.pods:
            self._made.add(record.uid)
        return best

    @property
    def pending(self) -> int:
        """How many pods were offered a node and are not known to be bound."""
        return len(self._made)

    def forget(self, uid: str) -> None:
        self._made.discard(uid)
