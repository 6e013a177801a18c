"""The value of a placement by each criterion (`criteria`)."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from linkwise.extender.place.cluster_view import ClusterView, Counts, domain_counts
from linkwise.extender.place.communicator import APART, ONE_NODE, Reach, reach_of, worths
from linkwise.extender.place.request import PodSet
from linkwise.extender.state.cache.machine_kind import ENOUGH, MachineKind
from linkwise.extender.state.cache.node_table import NO_DOMAIN, Ints, popcount
from linkwise.pods.spans import Spans
from linkwise.topology.machine.model import LinkClass

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
    domains: Counts  # that they are in at each nearer level, the widest first
    domain_levels: tuple[str, ...]
    room: int  # how many pods like the first fit on that node or in that domain
    damage: float  # GB/s that later jobs lose
    nvlinks: int  # of the GPUs to any other; this and the next two count only within one node
    numa_nodes: int
    nic: int  # link class to the NIC nearest to all GPUs; -1: unknown
    free_share: float  # of the GPUs of the first node
    order: tuple[int, ...]  # by the nodes' names, then by GPUs
    lost_room: float = 0.0  # of a single pod: GPUs of room that pods to come lose

    @property
    def nodes(self) -> int:
        return len(self.gpus)

    @property
    def domains_text(self) -> str:
        counts = zip(self.domains, self.domain_levels, strict=True)
        return ", ".join(f"{count} of {level}" for count, level in counts)

    @property
    def mixes(self) -> bool:
        return self.models > 1

    @property
    def is_enough(self) -> bool:
        return self.worth >= ENOUGH

    @property
    def quality(self) -> float:
        """Of a single pod."""
        return self.own

    @property
    def has_preferred(self) -> bool:
        return self.own >= ENOUGH


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
    nearer = view.levels[: max(level - 1, 0)]
    (kind, mask), row = parts[0], next(iter(gpus))
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
        domains=domain_counts(nearer, list(gpus)),
        domain_levels=tuple(each.key for each in reversed(nearer)),
        room=_room(view, pod_sets[0], row, level, models),
        damage=sum(
            _kind(view, row).damage(int(view.rows.free[row]), mask) for row, mask in gpus.items()
        ),
        nvlinks=int(kind.table.nvlinks[mask]),
        numa_nodes=int(kind.table.numa_nodes[mask]),
        nic=int(kind.table.nic_classes[mask]),
        free_share=int(view.rows.free[row]).bit_count() / kind.all_gpus.bit_count(),
        order=(*sorted(int(view.rows.name_ranks()[row]) for row in gpus), *gpus.values()),
    )


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
