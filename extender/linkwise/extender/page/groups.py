"""The cluster's nodes in groups: those of one rack or clique, and of these at most 32."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from linkwise.extender.api.records import SortKey, natural
from linkwise.extender.explain.node_arrays import has_gpus
from linkwise.extender.explain.snapshot import NodeState, Snapshot
from linkwise.extender.explain.worth_view import domain_of

MOST_NODES = 32
_WORDS = {
    "nvidia.com/gpu.clique": "clique",
    "topology.kubernetes.io/zone": "zone",
}

Domain = tuple[str, str]  # a level and its value
Path = tuple[Domain, ...]  # the widest level first


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that are drawn together, in the natural order of their names."""

    key: str
    title: str
    within: str  # the wider domains
    nodes: tuple[NodeState, ...]


class Grouper:
    """Groups the nodes of one snapshot after the other. A group whose nodes did not change stays
    the same object."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[NodeState, Path, SortKey]] = {}
        self._paths: dict[str, Path] = {}
        self._outline: list[tuple[str, str, str, tuple[str, ...]]] = []
        self._groups: dict[str, Group] = {}

    def groups(self, snapshot: Snapshot) -> tuple[Group, ...]:
        nodes = {node.name: node for node in snapshot.nodes if has_gpus(node)}
        self._places = {name: self._place(snapshot, node) for name, node in nodes.items()}
        paths = {name: path for name, (_, path, _) in self._places.items()}
        if paths != self._paths:
            order = {name: key for name, (_, _, key) in self._places.items()}
            self._paths, self._outline = paths, list(_outline(paths, order))
        self._groups = {
            key: self._group(Group(key, title, within, tuple(nodes[name] for name in names)))
            for key, title, within, names in self._outline
        }
        return tuple(self._groups.values())

    def _place(self, snapshot: Snapshot, node: NodeState) -> tuple[NodeState, Path, SortKey]:
        known = self._places.get(node.name)
        if known is not None and known[0] is node:
            return known
        path = tuple(
            (level, domain)
            for level in reversed(snapshot.levels)
            if (domain := domain_of(node, level))
        )
        return node, path, natural(node.name) if known is None else known[2]

    def _group(self, group: Group) -> Group:
        before = self._groups.get(group.key)
        if before is None or before.title != group.title or before.within != group.within:
            return group
        same = len(before.nodes) == len(group.nodes) and all(
            ours is theirs for ours, theirs in zip(before.nodes, group.nodes, strict=True)
        )
        return before if same else group


def _outline(
    paths: Mapping[str, Path], order: Mapping[str, SortKey]
) -> Iterable[tuple[str, str, str, tuple[str, ...]]]:
    """Key, title, wider domains and nodes of each group."""
    shared = _shared(paths.values())
    by_path: dict[Path, list[str]] = {}
    for name in sorted(paths, key=lambda name: order[name]):
        by_path.setdefault(tuple(each for each in paths[name] if each in shared), []).append(name)
    for path in sorted(by_path, key=_order):
        names = by_path[path]
        for first in range(0, len(names), MOST_NODES):
            part = tuple(names[first : first + MOST_NODES])
            number = first // MOST_NODES
            key = ",".join([*(domain for _, domain in path), str(number)])
            yield key, _title(path, names, part), ", ".join(map(_in_words, path[-2::-1])), part


def _shared(paths: Iterable[Path]) -> frozenset[Domain]:
    """The domains of levels at which at least two nodes share one: else a level says nothing."""
    count: dict[Domain, int] = {}
    for path in paths:
        for domain in path:
            count[domain] = count.get(domain, 0) + 1
    levels = {level for (level, _), nodes in count.items() if nodes > 1}
    return frozenset(domain for domain in count if domain[0] in levels)


def _order(path: Path) -> tuple[tuple[str, SortKey], ...]:
    # Nodes without any domain come last: no label key begins with a tilde.
    return tuple((level, natural(domain)) for level, domain in path) or (("~", ()),)


def _title(path: Path, names: Sequence[str], part: Sequence[str]) -> str:
    whole = len(part) == len(names)
    title = _in_words(path[-1]) if path else ""
    if whole and title:
        return title
    nodes = part[0] if len(part) == 1 else f"{part[0]} to {part[-1]}"
    return f"{title}, {nodes}" if title else nodes


def _in_words(domain: Domain) -> str:
    level, value = domain
    return f"{_WORDS.get(level, level.rpartition('/')[2])} {value}"
