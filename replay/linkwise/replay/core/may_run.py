"""The nodes on which a pod may run: what kube-scheduler checks before it calls an extender."""

from collections.abc import Iterable

from linkwise.extender.place.nodes.node_filters import why_not
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.timers import Agenda
from linkwise.kube.objects import Node, Pod
from linkwise.pods.annotations import resource_of


class MayRun:
    def __init__(self, nodes: Iterable[Node], resources: tuple[str, ...]) -> None:
        self._reader = Ingest(resources, Agenda())
        self._resources = resources
        self._nodes = [self._reader.node(node) for node in nodes]
        self._differ = any(node.taints for node in self._nodes) or len(resources) > 1
        self._all = frozenset(node.name for node in self._nodes)
        self._known: dict[str, frozenset[str]] = {}

    def names(self, pod: Pod) -> frozenset[str]:
        """Return the nodes by resource, node selector, node affinity and taints, for a pod that
        takes GPUs."""
        spec = pod.spec
        if not (self._differ or spec.node_selector or spec.affinity):
            return self._all
        resource = resource_of(pod, self._resources)
        alike = repr((resource, spec.node_selector, spec.affinity, spec.tolerations))
        if alike not in self._known:
            template = self._reader.pod(pod).template
            assert template is not None, "it takes GPUs"
            self._known[alike] = frozenset(
                node.name for node in self._nodes if not why_not(template, node)
            )
        return self._known[alike]
