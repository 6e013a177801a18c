"""Which kubelets refused pods of which template, and where one more may be tried.

Every pod of a template asks its kubelet for the same, so what is refused once is refused again
until something changes there. `placement.nodes.kubelet_admission` decides when that may be.
"""

from collections.abc import Callable, Iterable, Mapping

from linkwise.extender.api.records import Template


class TurnedAway:
    """*theirs* names the pods of a template, by uid, that are on a node or will be."""

    def __init__(self, theirs: Callable[[Template, str], Iterable[str]]) -> None:
        self._theirs = theirs
        # template -> node -> None: closed; else the pods of the template that were there before one
        # more may be tried
        self._nodes: dict[Template, dict[str, frozenset[str] | None]] = {}

    def put(self, template: Template, node: str, *, trial: bool) -> None:
        beside = frozenset(self._theirs(template, node)) if trial else None
        self._nodes.setdefault(template, {})[node] = beside

    def drop(self, template: Template, node: str) -> None:
        nodes = self._nodes.get(template, {})
        nodes.pop(node, None)
        if not nodes:
            self._nodes.pop(template, None)

    def of(self, template: Template | None) -> frozenset[str]:
        """The nodes that refused pods of this template, those where one may be tried too."""
        return frozenset(self._nodes.get(template, ())) if template is not None else frozenset()

    def is_closed(self, template: Template | None, node: str) -> bool:
        """Whether the node takes no pod of this template, not even as a trial."""
        nodes = self._nodes.get(template) if template is not None else None
        return nodes is not None and node in nodes and nodes[node] is None

    def takes_none(self, template: Template | None, node: str) -> bool:
        """Whether the node takes no other pod of this template now: it is closed, or one is being
        tried."""
        nodes = self._nodes.get(template) if template is not None else None
        if nodes is None or template is None or node not in nodes:
            return False
        beside = nodes[node]
        return beside is None or any(uid not in beside for uid in self._theirs(template, node))

    def is_tried(self, template: Template, node: str, uid: str) -> bool:
        """Whether this pod is on the node to test whether the kubelet refuses it."""
        beside = self._nodes.get(template, {}).get(node)
        return beside is not None and uid not in beside

    def all(self) -> Mapping[Template, frozenset[str]]:
        """template -> the nodes that take no other pod of it now."""
        found = {
            template: frozenset(node for node in nodes if self.takes_none(template, node))
            for template, nodes in self._nodes.items()
        }
        return {template: nodes for template, nodes in found.items() if nodes}
