"""The runner-up: the best placement other than the chosen one, which explains the choice.

Any other placement lacks a node of the chosen one or, if that is a single node, one of its GPUs.
So the search runs again without each of these, and the best of its results is the runner-up.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from linkwise.extender.place.cluster_view import ClusterView
from linkwise.extender.place.criteria import difference
from linkwise.extender.place.gang_placement import place
from linkwise.extender.place.judgement import GangJudgement, Places, judge
from linkwise.extender.place.nodes.best_node import NodeWorth, first_of, order_of
from linkwise.extender.place.request import NoRoom, PodSet
from linkwise.extender.place.room import Left, Room
from linkwise.extender.state.cache.machine_kind import Floats
from linkwise.extender.state.cache.node_table import NOT_USABLE, Ints
from linkwise.pods.spans import Spans
from linkwise.topology.sets.choose import ranked
from linkwise.topology.sets.criteria import Difference, Question
from linkwise.topology.sets.criteria import difference as of_sets

_MOST_SEARCHES = 8  # each without one node; of nodes that are alike, only one is left out


@dataclass(frozen=True, slots=True)
class Single:
    """What counts for a single pod beside what counts for gangs: the GPU sets on its node that come
    free as a whole, and the room of later pods, with free shares [rows] by resource."""

    running: Sequence[int]
    room: Room
    shares: Mapping[str, Ints]


@dataclass(frozen=True, slots=True)
class RunnerUp:
    taken: GangJudgement
    other: GangJudgement
    difference: Difference  # between the two, in this order


def runner_up(
    view: ClusterView,
    pod_sets: Sequence[PodSet],
    places: Places,
    spans: Spans,
    single: Single | None = None,
) -> RunnerUp | None:
    """None if no other placement has room.

    In *view*, the gang's GPUs are free. *single* is given for a single pod.
    """
    taken = _judge(view, pod_sets, places, spans, single)
    home, _ = places[0]
    best: GangJudgement | None = None
    for others in _others(view, pod_sets, places, taken, spans, single):
        rival = _judge(view, pod_sets, others, spans, single)
        if best is None or not _difference(view, pod_sets[0], best, rival, single, home).first_wins:
            best = rival
    if best is None:
        return None
    return RunnerUp(taken, best, _difference(view, pod_sets[0], taken, best, single, home))


def _others(
    view: ClusterView,
    pod_sets: Sequence[PodSet],
    places: Places,
    taken: GangJudgement,
    spans: Spans,
    single: Single | None,
) -> Iterator[Places]:
    row, gpus = next(iter(taken.gpus.items()))
    if single is not None and pod_sets[0].request.simple:
        yield from _sets_beside(view, row, pod_sets[0], gpus, single.running)
        yield from _best_elsewhere(view, row, pod_sets[0], single)
        return
    if single is not None:
        yield from _best_elsewhere(view, row, pod_sets[0], single)
        views = _without_one_gpu(view, row, gpus)
    elif taken.nodes == 1:
        views = _without_one_gpu(view, row, gpus)
    else:
        rows = _unlike(view, places, taken)[-_MOST_SEARCHES:]
        views = [_with_free(view, row, 0) for row in rows]
    for each in views:
        found = place(each, pod_sets, spans=spans)
        if not isinstance(found, NoRoom):
            yield [(view.rows.row_of[spot.node], spot.gpus) for spot in found]


def _judge(
    view: ClusterView,
    pod_sets: Sequence[PodSet],
    places: Places,
    spans: Spans,
    single: Single | None,
) -> GangJudgement:
    judgement = judge(view, pod_sets, places, spans)
    if single is None:
        return judgement
    rows, gpus = (np.array(column, dtype=np.int64) for column in zip(*places, strict=True))
    lost = float(_lost(view, rows, gpus, pod_sets[0], single)[0])
    return replace(judgement, lost_room=lost)


def _lost(view: ClusterView, rows: Ints, gpus: Ints, pods: PodSet, single: Single) -> Floats:
    """[rows] the room that later pods lose if the pod takes *gpus* of these nodes."""
    of, shares = view.rows, {resource: free[rows] for resource, free in single.shares.items()}
    numbers = np.array([*(kind.number for kind in view.kinds), NOT_USABLE])
    kinds = numbers[of.kinds[rows]]  # as the cache numbers them, and so the room
    cpu, memory = of.left.milli_cpu[rows], of.left.memory[rows]
    left = Left(kinds, of.free[rows], cpu, memory, shares)
    return single.room.lost(left, left.without(pods.needs, gpus))


def _best_elsewhere(view: ClusterView, row: int, pods: PodSet, single: Single) -> Iterator[Places]:
    """For a single pod: its place on the best node other than that of *row*, in the order of
    `BestNode`."""
    table = view.rows
    able = pods.nodes & table.fits(pods.needs) & (table.kinds != NOT_USABLE)
    able[row] = False
    rows = np.flatnonzero(able)
    worth = NodeWorth.of_none(len(rows))
    for number in np.unique(table.kinds[rows]).tolist():
        places, kind = np.flatnonzero(table.kinds[rows] == number), view.kinds[number]
        free = table.free[rows[places]]
        worth.put(places, kind, pods.request, free)
    if (suits := np.flatnonzero(worth.taken)).size:
        worth.lost_room[suits] = _lost(view, rows[suits], worth.taken[suits], pods, single)
        ranks = table.name_ranks()[rows]
        best = first_of(suits, *order_of(worth, ranks))
        yield [(int(rows[best]), int(worth.taken[best]))]


def _without_one_gpu(view: ClusterView, row: int, gpus: int) -> list[ClusterView]:
    """A view without the first of *gpus*, one without the second, and so on."""
    free = int(view.rows.free[row])
    each_gpu = (1 << position for position in range(gpus.bit_length()))
    return [_with_free(view, row, free & ~gpu) for gpu in each_gpu if gpu & gpus]


def _sets_beside(
    view: ClusterView, row: int, pods: PodSet, taken: int, running: Sequence[int]
) -> Iterator[Places]:
    """For a single pod: the best set on the node other than *taken*."""
    kind, requirement = view.kinds[int(view.rows.kinds[row])], pods.request.requirement
    free = int(view.rows.free[row])
    best_two = ranked(
        kind.machine,
        free & kind.allowed(requirement),
        pods.request.size,
        within=kind.reach(pods.request, free),
        require=requirement.require,
        prefer=requirement.prefer,
        running=running,
    )
    yield from islice(([(row, each.gpus)] for each in best_two if each.gpus != taken), 1)


def _unlike(view: ClusterView, places: Places, taken: GangJudgement) -> list[int]:
    """The gang's rows, in the order of names; of nodes that differ in name alone, only the last."""
    members: dict[int, list[int]] = {}
    for row, gpus in places:
        members.setdefault(row, []).append(gpus)
    ranks = view.rows.name_ranks()
    last = {}
    for row in sorted(taken.gpus, key=lambda row: int(ranks[row])):
        domains = tuple(int(level.numbers[row]) for level in view.levels)
        alike = (int(view.rows.kinds[row]), int(view.rows.free[row]), *members[row], domains)
        last[alike] = row
    return sorted(last.values(), key=lambda row: int(ranks[row]))


def _with_free(view: ClusterView, row: int, gpus: int) -> ClusterView:
    rows = copy(view.rows)
    rows.free = rows.free.copy()
    rows.free[row] = gpus
    return replace(view, rows=rows)


def _difference(
    view: ClusterView,
    pods: PodSet,
    one: GangJudgement,
    other: GangJudgement,
    single: Single | None,
    home: int,
) -> Difference:
    if single is None or one.gpus.keys() != other.gpus.keys():
        return difference(one, other, alone=single is not None)
    ((row, gpus),), rival = one.gpus.items(), other.gpus[next(iter(other.gpus))]
    kind, request = view.kinds[int(view.rows.kinds[row])], pods.request
    free = int(view.rows.free[row]) & kind.allowed(request.requirement)
    # What runs on the pod's node says nothing of other nodes, nor of an unhealthy GPU, which could
    # not be chosen again.
    running = None if row != home or (gpus | rival) & ~free else tuple(single.running)
    prefer = request.requirement.prefer
    return of_sets(Question(kind.table, free, prefer, running, request.drawn), gpus, rival)
