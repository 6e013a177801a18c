"""The value of a placement by each criterion, and the first criterion in which two differ
(docs/topology.md, "What counts for a gang")."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from linkwise.extender.cache.machine_kind import ENOUGH, MachineKind
from linkwise.extender.cache.node_table import Ints, popcount
from linkwise.extender.cache.topology_domains import NO_DOMAIN
from linkwise.extender.placement.cluster_view import ClusterView
from linkwise.extender.placement.request import PodSet
from linkwise.extender.placement.worth.communicator import TOLERANCE, worths
from linkwise.extender.placement.worth.reach import APART, ONE_NODE, Reach, reach_of
from linkwise.pods.spans import Spans
from linkwise.topology.machine.model import LinkClass

_FULLEST, _NAME, _INDICES = "fullest", "name", "lowest indices"
Places = Sequence[tuple[int, int]]
"""(row, GPU set) of each member, in the order of ranks."""


@dataclass(frozen=True, slots=True)
class GangJudgement:
    gpus: Mapping[int, int]  # row -> bitmask of all the members' GPUs there
    together: float  # GB/s of the whole communicator; infinity if each member is its own
    span: str  # the first preferred span that it meets; empty: none
    spans_missed: int  # the spans preferred over that one
    worth: float  # as `together`, or ENOUGH if the GPUs have the preferred link
    models: int
    own: float  # GB/s of the slowest member's own ring, or ENOUGH
    closeness: int  # link class of the GPUs of the node where they are least close
    level: int  # the nearest level that all nodes share; 0: one node
    level_name: str  # empty: they share none
    room: int  # how many pods like the first fit on that node or in that domain
    damage: float  # GB/s that later jobs lose
    numa_nodes: int  # of the GPUs; compared only within one node
    nic: int  # link class to the NIC nearest to all GPUs; -1: unknown; only within one node
    order: tuple[int, ...]  # by the nodes' names, then by GPUs
    outlook: float | None = None  # later worth of the node's GPUs; None: not compared
    lost_room: float | None = None  # of a single pod: GPUs of room that pods to come lose

    @property
    def nodes(self) -> int:
        return len(self.gpus)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first criterion in which two placements differ."""

    criterion: str
    first_wins: bool
    values: tuple[str, str]  # as text: of the first, of the second
    unit: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether the two are equal in all that matters to their own pods and to other pods."""
        tidier = self.criterion == _FULLEST and not self.first_wins
        return tidier or self.criterion in (_NAME, _INDICES)

    @property
    def in_words(self) -> str:
        """Text such as `worth: 370.8 against 48 GB/s`, the winner's value first."""
        won, lost = self.values if self.first_wins else self.values[::-1]
        unit = f" {self.unit}" if self.unit else ""
        return f"{self.criterion}: {won} against {lost}{unit}" if won else self.criterion


def judge(
    view: ClusterView, pod_sets: Sequence[PodSet], places: Places, spans: Spans
) -> GangJudgement:
    """Judge *places*. In *view*, their GPUs are free."""
    gpus: dict[int, int] = {}
    for row, mask in places:
        gpus[row] = gpus.get(row, 0) | mask
    parts = [(_kind(view, row), mask) for row, mask in gpus.items()]
    prefer = pod_sets[0].request.requirement.prefer
    level = _level(view, list(gpus))
    reach = _reach(view, level, apart=spans.apart)
    missed = next((n for n, key in enumerate(spans.prefer) if _share(view, gpus, key)), None)
    shares = 0 < level <= len(view.levels)
    kind, mask = parts[0]
    models = {name for kind, mask in parts for name in _models(kind, mask)}
    return GangJudgement(
        gpus=gpus,
        together=math.inf if spans.apart else _least(parts, LinkClass.NVLINK, reach),
        span="" if missed is None else spans.prefer[missed],
        spans_missed=len(spans.prefer) if missed is None else missed,
        worth=_least(parts, prefer, reach),
        models=len(models),
        own=_slowest(view, pod_sets, places),
        closeness=min(
            int(kind.closeness(pod_sets[0].request, np.array([mask]))[0]) for kind, mask in parts
        ),
        level=level,
        level_name=view.levels[level - 1].key if shares else "",
        room=_room(view, pod_sets[0], next(iter(gpus)), level, models),
        damage=sum(
            _kind(view, row).damage(int(view.rows.free[row]), mask) for row, mask in gpus.items()
        ),
        numa_nodes=int(kind.table.numa_nodes[mask]),
        nic=int(kind.table.nic_classes[mask]),
        order=(*sorted(int(view.rows.name_ranks()[row]) for row in gpus), *gpus.values()),
    )


def difference(one: GangJudgement, other: GangJudgement, *, alone: bool = False) -> Difference:
    """*alone*: both are placements of a single pod, whose bandwidth has no tolerance."""
    return next(_differences(one, other, alone=alone))


def _differences(one: GangJudgement, other: GangJudgement, *, alone: bool) -> Iterator[Difference]:
    if one.spans_missed != other.spans_missed:
        names = one.span or "none", other.span or "none"
        yield Difference("preferred span", one.spans_missed < other.spans_missed, names)
    yield from _worth(one, other, alone=alone)
    pure = one.models == 1, other.models == 1
    if pure[0] != pure[1]:
        yield Difference("GPU models", pure[0], (str(one.models), str(other.models)))
    if one.own != other.own:
        yield Difference(
            "slowest pod's ring", one.own > other.own, (_own(one), _own(other)), "GB/s"
        )
    if alone:
        yield from _closeness(one, other)
    if one.nodes != other.nodes:
        yield Difference(
            "fewest nodes", one.nodes < other.nodes, (str(one.nodes), str(other.nodes))
        )
    if one.level != other.level:
        names = one.level_name or "none", other.level_name or "none"
        yield Difference("nearest level", one.level < other.level, names)
    if one.gpus.keys() == other.gpus.keys():
        yield from _on_one_node(one, other)
    if one.lost_room is not None and other.lost_room is not None:
        yield from _lost_room(one.lost_room, other.lost_room)
        yield from _damage(one, other)
        yield from _fullest(one, other)
        yield Difference(_NAME, one.order < other.order, ("", ""))
    costs = [*_damage(one, other), *_fullest(one, other)]
    yield from reversed(costs) if one.level else costs
    yield Difference(_NAME, one.order < other.order, ("", ""))


def _worth(one: GangJudgement, other: GangJudgement, *, alone: bool) -> Iterator[Difference]:
    tolerance = 0.0 if alone else TOLERANCE * max(one.worth, other.worth)
    if abs(one.worth - other.worth) > tolerance:
        wins = one.worth > other.worth
        if max(one.worth, other.worth) >= ENOUGH:
            yield Difference("preferred link", wins, ("kept", "not") if wins else ("not", "kept"))
        yield Difference("worth", wins, (_gb(one.together), _gb(other.together)), "GB/s")


def _damage(one: GangJudgement, other: GangJudgement) -> Iterator[Difference]:
    values = _gb(one.damage), _gb(other.damage)
    if values[0] != values[1]:
        yield Difference("damage", one.damage < other.damage, values, "GB/s")


def _lost_room(one: float, other: float) -> Iterator[Difference]:
    values = f"{one:.2g}", f"{other:.2g}"
    if values[0] != values[1]:
        yield Difference("lost room", one < other, values, "GPUs")


def _fullest(one: GangJudgement, other: GangJudgement) -> Iterator[Difference]:
    if one.room != other.room:
        values = str(one.room), str(other.room)
        yield Difference(_FULLEST, one.room < other.room, values, "pods")


def _closeness(one: GangJudgement, other: GangJudgement) -> Iterator[Difference]:
    if one.closeness != other.closeness:
        values = _class(one.closeness), _class(other.closeness)
        yield Difference("closest link", one.closeness > other.closeness, values)


def _on_one_node(one: GangJudgement, other: GangJudgement) -> Iterator[Difference]:
    yield from _closeness(one, other)
    if one.outlook is not None and other.outlook is not None:
        if one.outlook != other.outlook:
            yield Difference("outlook", one.outlook > other.outlook, ("", ""))
    else:
        yield from _damage(one, other)
    if one.numa_nodes != other.numa_nodes:
        counts = str(one.numa_nodes), str(other.numa_nodes)
        yield Difference("NUMA nodes", one.numa_nodes < other.numa_nodes, counts)
    if one.nic != other.nic:
        yield Difference("nearest NIC", one.nic > other.nic, (_class(one.nic), _class(other.nic)))
    yield Difference(_INDICES, one.order < other.order, ("", ""))


def _class(link: int) -> str:
    return LinkClass(link).name if link >= 0 else "none"


def _gb(speed: float) -> str:
    return f"{speed:.1f}"


def _own(judgement: GangJudgement) -> str:
    return "enough" if judgement.own >= ENOUGH else _gb(judgement.own)


def _kind(view: ClusterView, row: int) -> MachineKind:
    return view.kinds[int(view.rows.kinds[row])]


def _least(parts: Sequence[tuple[MachineKind, int]], prefer: LinkClass, reach: Reach) -> float:
    return min(float(worths(kind, prefer, reach)[mask]) for kind, mask in parts)


def _models(kind: MachineKind, mask: int) -> set[str]:
    return {gpu.model for p, gpu in enumerate(kind.machine.gpus) if mask >> p & 1}


def _slowest(view: ClusterView, pod_sets: Sequence[PodSet], places: Places) -> float:
    slowest = ENOUGH
    for pods in pod_sets:
        for member in pods.members:
            row, mask = places[member]
            if mask.bit_count() > 1:
                slowest = min(slowest, _kind(view, row).quality(pods.request, mask))
    return slowest


def _level(view: ClusterView, rows: list[int]) -> int:
    if len(rows) == 1:
        return 0
    numbers = (level.numbers[rows] for level in view.levels)
    shared = (n for n, each in enumerate(numbers, 1) if _is_one(each))
    return next(shared, len(view.levels) + 1)


def _share(view: ClusterView, rows: Collection[int], key: str) -> bool:
    return _is_one(view.level(key).numbers[list(rows)])


def _is_one(numbers: Ints) -> bool:
    return bool(numbers[0] != NO_DOMAIN and (numbers == numbers[0]).all())


def _reach(view: ClusterView, level: int, *, apart: bool) -> Reach:
    if apart:
        return APART
    return ONE_NODE if not level else reach_of([each.key for each in view.levels], level - 1)


def _room(view: ClusterView, pods: PodSet, row: int, level: int, models: Collection[str]) -> int:
    """How many pods of *pods* fit there; if the gang has one GPU model, on GPUs of that model."""
    usable = np.array([*(_usable(kind, pods, models) for kind in view.kinds), 0])
    free = view.rows.free & usable[view.rows.kinds]  # NOT_USABLE takes the last entry
    room = np.minimum(popcount(free) // pods.request.size, view.rows.pods_that_fit(pods.needs))
    if not level:
        return int(room[row])
    inside = pods.nodes
    if level <= len(view.levels):
        numbers = view.levels[level - 1].numbers
        inside = inside & (numbers == numbers[row])
    return int(room[inside].sum())


def _usable(kind: MachineKind, pods: PodSet, models: Collection[str]) -> int:
    allowed = kind.allowed(pods.request.requirement)
    return allowed & kind.of_model(next(iter(models))) if len(models) == 1 else allowed
