"""Which kubelets refused pods of which template, and where one more may be tried.

Every pod of a template asks its kubelet for the same, so what is refused once is refused again
until something changes there. `placement.nodes.kubelet_admission` decides when that may be.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from linkwise.extender.api.records import Template


class _Refused(NamedTuple):
    said: str
    beside: frozenset[str] | None  # None: closed; else the pods there before one may be tried


class TurnedAway:
    """*theirs* names the pods of a template, by uid, that are on a node or will be."""

    def __init__(self, theirs: Callable[[Template, str], Iterable[str]]) -> None:
        self._theirs = theirs
        self._nodes: dict[Template, dict[str, _Refused]] = {}

    def put(self, template: Template, node: str, said: str, *, trial: bool) -> None:
        beside = frozenset(self._theirs(template, node)) if trial else None
        self._nodes.setdefault(template, {})[node] = _Refused(said, beside)

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
        return nodes is not None and node in nodes and nodes[node].beside is None

    def takes_none(self, template: Template | None, node: str) -> bool:
        """Whether the node takes no other pod of this template now: it is closed, or one is being
        tried."""
        nodes = self._nodes.get(template) if template is not None else None
        if nodes is None or template is None or node not in nodes:
            return False
        beside = nodes[node].beside
        return beside is None or any(uid not in beside for uid in self._theirs(template, node))

    def is_tried(self, template: Template, node: str, uid: str) -> bool:
        """Whether this pod is on the node to test whether the kubelet refuses it."""
        refused = self._nodes.get(template, {}).get(node)
        return refused is not None and refused.beside is not None and uid not in refused.beside

    def all(self) -> Mapping[Template, Mapping[str, str]]:
        """template -> node that takes no other pod of it now -> what its kubelet said."""
        found = {
            template: {n: nodes[n].said for n in nodes if self.takes_none(template, n)}
            for template, nodes in self._nodes.items()
        }
        return {template: nodes for template, nodes in found.items() if nodes}
