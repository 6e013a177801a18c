"""The nodes on which a pod may run: what kube-scheduler checks before it calls an extender."""

from collections.abc import Iterable

from linkwise.extender.api.timers import Agenda
from linkwise.extender.cache.ingest import Ingest
from linkwise.extender.placement.nodes.node_filters import why_not
from linkwise.kube.objects import Node, Pod


class MayRun:
    def __init__(self, nodes: Iterable[Node], resource: str) -> None:
        self._reader = Ingest(resource, Agenda())
        self._nodes = [self._reader.node(node) for node in nodes]
        self._are_tainted = any(node.taints for node in self._nodes)
        self._all = frozenset(node.name for node in self._nodes)
        self._known: dict[str, frozenset[str]] = {}

    def names(self, pod: Pod) -> frozenset[str]:
        """Return the nodes by node selector, node affinity and taints, for a pod that takes
        GPUs."""
        spec = pod.spec
        if not (self._are_tainted or spec.node_selector or spec.affinity):
            return self._all
        alike = repr((spec.node_selector, spec.affinity, spec.tolerations))
        if alike not in self._known:
            template = self._reader.pod(pod).template
            assert template is not None, "it takes GPUs"
            self._known[alike] = frozenset(
                node.name for node in self._nodes if not why_not(template, node)
            )
        return self._known[alike]
