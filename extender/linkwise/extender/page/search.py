"""Finds pods, gangs, nodes and namespaces by a part of their names."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from linkwise.extender.explain.explainer import state_of
from linkwise.extender.explain.snapshot import Snapshot
from linkwise.extender.page import links
from linkwise.extender.page.groups import Group

MOST_FOUND = 50  # of each kind


@dataclass(frozen=True, slots=True)
class Hit:
    kind: str  # pod, gang, node, namespace
    name: str
    link: str
    where: str


@dataclass(frozen=True, slots=True)
class Found:
    hits: tuple[Hit, ...]
    more: bool  # there are more of a kind than MOST_FOUND


def search(snapshot: Snapshot, groups: Sequence[Group], words: str) -> Found:
    """*words*: a part of a name, in any case. Nothing is found by an empty one."""
    wanted = words.strip().lower()
    if not wanted:
        return Found((), more=False)
    kinds = [
        list(islice(hits, MOST_FOUND + 1))
        for hits in (
            _nodes(groups, lambda name: wanted in name.lower()),
            _namespaces(snapshot, wanted),
            _gangs(snapshot, wanted),
            _pods(snapshot, wanted),
        )
    ]
    return Found(
        tuple(hit for hits in kinds for hit in hits[:MOST_FOUND]),
        more=any(len(hits) > MOST_FOUND for hits in kinds),
    )


def nodes_named(groups: Sequence[Group], names: Collection[str]) -> tuple[Hit, ...]:
    """The nodes of these names, MOST_FOUND at most."""
    hits = _nodes(groups, lambda name: name in names) if names else ()
    return tuple(islice(hits, MOST_FOUND))


def _nodes(groups: Sequence[Group], is_wanted: Callable[[str], bool]) -> Iterable[Hit]:
    for group in groups:
        for place, node in enumerate(group.nodes):
            if is_wanted(node.name):
                link = f"{links.to_group(group.key)}#n{place}"
                yield Hit("node", node.name, link, group.title)


def _namespaces(snapshot: Snapshot, wanted: str) -> Iterable[Hit]:
    count: dict[str, int] = {}
    for record in snapshot.pods:
        if (record.demand.gpus or record.shares) and not record.ended:
            count[record.ref.namespace] = count.get(record.ref.namespace, 0) + 1
    for name in sorted(count):
        if wanted in name.lower():
            pods = f"{count[name]} pods with or waiting for GPUs"
            yield Hit("namespace", name, links.to_search(f"{name}/"), pods)


def _gangs(snapshot: Snapshot, wanted: str) -> Iterable[Hit]:
    for gang in snapshot.gangs:
        name = f"{gang.key.namespace}/{gang.key.name}"
        if not gang.alone and wanted in name.lower():
            yield Hit("gang", name, links.to_gang(name), gang.phase.value)


def _pods(snapshot: Snapshot, wanted: str) -> Iterable[Hit]:
    for record in snapshot.pods:
        takes = record.demand.gpus or record.shares
        if takes and not record.ended and wanted in record.key.lower():
            state = state_of(snapshot, record)
            where = f"{state} on {record.node}" if record.node else state
            yield Hit("pod", record.key, links.to_pod(record.key), where)
