"""The runner-up: the best placement other than the chosen one, which explains the choice.

Any other placement lacks a node of the chosen one or, if that is a single node, one of its GPUs.
So the search runs again without each of these, and the best of its results is the runner-up.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from linkwise.extender.api.spans import Spans
from linkwise.extender.placement.cluster_view import ClusterView
from linkwise.extender.placement.gang_placement import place
from linkwise.extender.placement.judgement import (
    Difference,
    GangJudgement,
    Places,
    difference,
    judge,
)
from linkwise.extender.placement.request import PodSet
from linkwise.extender.placement.result import NoRoom
from linkwise.topology.sets.choose import ranked
from linkwise.topology.sets.outlook import outlook_of

_MOST_SEARCHES = 8  # each without one node; of nodes that are alike, only one is left out


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
    running: Sequence[int] | None = None,
) -> RunnerUp | None:
    """None if no other placement has room.

    In *view*, the gang's GPUs are free. *running* is given for a single pod: the GPU sets on its
    node that come free as a whole.
    """
    alone = running is not None
    taken = judge(view, pod_sets, places, spans)
    best: GangJudgement | None = None
    for others in _others(view, pod_sets, places, taken, spans, running):
        rival = judge(view, pod_sets, others, spans)
        if running is not None and rival.gpus.keys() == taken.gpus.keys():
            taken, rival = _with_outlook(view, pod_sets[0], taken, rival, running)
        if best is None or not difference(best, rival, alone=alone).first_wins:
            best = rival
    return None if best is None else RunnerUp(taken, best, difference(taken, best, alone=alone))


def _others(
    view: ClusterView,
    pod_sets: Sequence[PodSet],
    places: Places,
    taken: GangJudgement,
    spans: Spans,
    running: Sequence[int] | None,
) -> Iterator[Places]:
    row, gpus = next(iter(taken.gpus.items()))
    if running is not None and pod_sets[0].request.simple:
        yield from _sets_beside(view, row, pod_sets[0], gpus, running)
        views = [_with_free(view, row, 0)]
    elif taken.nodes == 1:
        free = int(view.rows.free[row])
        each_gpu = (1 << position for position in range(gpus.bit_length()))
        views = [_with_free(view, row, free & ~gpu) for gpu in each_gpu if gpu & gpus]
    else:
        rows = _unlike(view, places, taken)[-_MOST_SEARCHES:]
        views = [_with_free(view, row, 0) for row in rows]
    for each in views:
        found = place(each, pod_sets, spans=spans)
        if not isinstance(found, NoRoom):
            yield [(view.rows.row_of[spot.node], spot.gpus) for spot in found]


def _sets_beside(
    view: ClusterView, row: int, pods: PodSet, taken: int, running: Sequence[int]
) -> Iterator[Places]:
    """For a single pod: the best set on the node other than *taken*."""
    kind, requirement = view.kinds[int(view.rows.kinds[row])], pods.request.requirement
    best_two = ranked(
        kind.machine,
        int(view.rows.free[row]) & kind.allowed(requirement),
        pods.request.size,
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


def _with_outlook(
    view: ClusterView,
    pods: PodSet,
    taken: GangJudgement,
    rival: GangJudgement,
    running: Sequence[int],
) -> tuple[GangJudgement, GangJudgement]:
    """For a single pod on one node: both judgements with the outlook, which replaces the damage."""
    ((row, gpus),) = taken.gpus.items()
    kind = view.kinds[int(view.rows.kinds[row])]
    free = int(view.rows.free[row]) & kind.allowed(pods.request.requirement)
    outlook = outlook_of(kind.table)
    if outlook is None or gpus & ~free:  # an unhealthy GPU could not be chosen again
        return taken, rival
    of_both = outlook.after(np.array([gpus, rival.gpus[row]]), free, running).tolist()
    return replace(taken, outlook=of_both[0]), replace(rival, outlook=of_both[1])
