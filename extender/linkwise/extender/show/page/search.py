"""Finds pods, gangs, nodes and namespaces by a part of their names, or by names that are alike."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from linkwise.drawing.tables import Column, Link, Table
from linkwise.extender.show.explain.explainer import state_of
from linkwise.extender.show.explain.names_said import nearest
from linkwise.extender.show.explain.snapshot import Snapshot
from linkwise.extender.show.page import elements
from linkwise.extender.show.page.groups import Group

MOST_FOUND = 50  # of each kind


@dataclass(frozen=True, slots=True)
class Hit:
    kind: str  # pod, gang, node, namespace
    name: str
    link: str
    where: str


_COLUMNS: Sequence[Column[Hit]] = (
    Column("what", lambda it: it.kind),
    Column("name", lambda it: Link(it.name, it.link)),
    Column("where", lambda it: it.where),
)


@dataclass(frozen=True, slots=True)
class Found:
    hits: tuple[Hit, ...]
    more: bool  # there are more of a kind than MOST_FOUND
    alike: bool = False  # no name has that part; these are spelled nearly so

    @property
    def table(self) -> Table:
        return Table.of(_COLUMNS, self.hits, dash="")


def search(snapshot: Snapshot, groups: Sequence[Group], words: str) -> Found:
    """*words*: a part of a name, in any case. Nothing is found by an empty one."""
    wanted = words.strip().lower()
    if not wanted:
        return Found((), more=False)
    found = _with(snapshot, groups, wanted)
    return found if found.hits else _alike(snapshot, groups, wanted)


def _alike(snapshot: Snapshot, groups: Sequence[Group], wanted: str) -> Found:
    """The names that a mistyped *wanted* may mean."""
    gangs = (gang.key.name.rpartition("/")[2] for gang in snapshot.gangs if not gang.alone)
    pods = (
        record.ref.name
        for record in snapshot.pods
        if not record.ended and (record.demand.gpus or record.shares)
    )
    nodes = (node.name for group in groups for node in group.nodes)
    spaces = {record.ref.namespace for record in snapshot.pods}
    names = [
        name for each in (gangs, nodes, pods, sorted(spaces)) for name in nearest(wanted, each)
    ]
    hits: dict[Hit, None] = {}
    for name in names:
        hits |= dict.fromkeys(_with(snapshot, groups, name.lower()).hits)
    return Found(tuple(hits)[:MOST_FOUND], more=len(hits) > MOST_FOUND, alike=True)


def _with(snapshot: Snapshot, groups: Sequence[Group], wanted: str) -> Found:
    """What has *wanted*, in lower case, in its name."""
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
                link = f"{elements.to_group(group.key)}#n{place}"
                yield Hit("node", node.name, link, group.title)


def _namespaces(snapshot: Snapshot, wanted: str) -> Iterable[Hit]:
    count: dict[str, int] = {}
    for record in snapshot.pods:
        if (record.demand.gpus or record.shares) and not record.ended:
            count[record.ref.namespace] = count.get(record.ref.namespace, 0) + 1
    for name in sorted(count):
        if wanted in name.lower():
            pods = f"{count[name]} pods with or waiting for GPUs"
            yield Hit("namespace", name, elements.to_search(f"{name}/"), pods)


def _gangs(snapshot: Snapshot, wanted: str) -> Iterable[Hit]:
    for gang in snapshot.gangs:
        name = f"{gang.key.namespace}/{gang.key.name}"
        if not gang.alone and wanted in name.lower():
            yield Hit("gang", name, elements.to_gang(name), gang.phase.value)


def _pods(snapshot: Snapshot, wanted: str) -> Iterable[Hit]:
    for record in snapshot.pods:
        takes = record.demand.gpus or record.shares
        if takes and not record.ended and wanted in record.key.lower():
            state = state_of(snapshot, record)
            where = f"{state} on {record.node}" if record.node else state
            yield Hit("pod", record.key, elements.to_pod(record.key), where)
