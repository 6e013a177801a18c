"""The cluster's nodes in groups: those of one rack or clique, and of these at most 32."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import NamedTuple

from linkwise.extender.show.explain.node_arrays import has_gpus
from linkwise.extender.show.explain.snapshot import NodeState, Snapshot
from linkwise.extender.show.explain.worth_view import domain_of
from linkwise.extender.state.records import SortKey, natural

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


@dataclass(frozen=True, slots=True)
class _Place:
    node: NodeState
    path: Path | None  # None: it has no GPUs, so it is in no group
    order: SortKey


class Grouper:
    """Groups the nodes of one snapshot after the other. A group whose nodes did not change stays
    the same object."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._outline: list[_Outline] = []
        self._group_of: dict[str, int] = {}  # name of a node -> position in `_outline`
        self._groups: tuple[Group, ...] = ()

    def groups(self, snapshot: Snapshot) -> tuple[Group, ...]:
        before, changed, moved = self._places, list[str](), False
        self._places = {}
        for node in snapshot.nodes:
            place = known = before.get(node.name)
            if place is None or place.node is not node:
                place = _place(snapshot, node)
                moved |= known is None or known.path != place.path
                changed.append(node.name)
            self._places[node.name] = place
        if moved or len(before) != len(self._places):
            self._outline = list(_outline(self._places))
            names = enumerate(each.names for each in self._outline)
            self._group_of = {name: position for position, part in names for name in part}
            old = {group.key: group for group in self._groups}
            self._groups = tuple(self._group(each, old.get(each.key)) for each in self._outline)
        elif changed:
            found = list(self._groups)
            for position in {self._group_of[name] for name in changed if name in self._group_of}:
                found[position] = self._group(self._outline[position], None)
            self._groups = tuple(found)
        return self._groups

    def _group(self, outline: "_Outline", before: Group | None) -> Group:
        nodes = tuple(self._places[name].node for name in outline.names)
        group = Group(outline.key, outline.title, outline.within, nodes)
        if before is None or (before.title, before.within) != (group.title, group.within):
            return group
        same = len(before.nodes) == len(nodes) and all(map(is_, before.nodes, nodes))
        return before if same else group


class _Outline(NamedTuple):
    key: str
    title: str
    within: str
    names: tuple[str, ...]


def _place(snapshot: Snapshot, node: NodeState) -> _Place:
    if not has_gpus(node):
        return _Place(node, None, ())
    domains = ((level, domain_of(node, level)) for level in reversed(snapshot.levels))
    return _Place(node, tuple(each for each in domains if each[1]), natural(node.name))


def _outline(places: Mapping[str, _Place]) -> Iterator[_Outline]:
    paths = {name: place.path for name, place in places.items() if place.path is not None}
    shared = _shared(paths.values())
    by_path: dict[Path, list[str]] = {}
    for name in sorted(paths, key=lambda name: places[name].order):
        by_path.setdefault(tuple(each for each in paths[name] if each in shared), []).append(name)
    for path in sorted(by_path, key=_order):
        names, within = by_path[path], ", ".join(map(_in_words, path[-2::-1]))
        for first in range(0, len(names), MOST_NODES):
            part = tuple(names[first : first + MOST_NODES])
            key = ",".join([*(domain for _, domain in path), str(first // MOST_NODES)])
            yield _Outline(key, _title(path, names, part), within, part)


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
