"""The best placement but the one that was taken, for people who ask why it was taken.

Another placement lacks something of the one taken: a node, or, where that is a single node, one of
its GPUs. So the search is asked again without each of these, and the best of its answers counts.
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
from linkwise.extender.placement.result import Refusal
from linkwise.topology.choose import ranked
from linkwise.topology.outlook import outlook_of

_MOST_SEARCHES = 8  # without a node each; nodes that are alike are left out once


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
    """None: nothing else has room. *view* is without the gang: its GPUs are free. *running*: of a
    single pod, the GPU sets on its node that come free as a whole."""
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
        if not isinstance(found, Refusal):
            yield [(view.rows.row_of[spot.node], spot.gpus) for spot in found]


def _sets_beside(
    view: ClusterView, row: int, pods: PodSet, taken: int, running: Sequence[int]
) -> Iterator[Places]:
    """The best set on the node but the one taken, for a single pod."""
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
    """Of its nodes that are alike in all but name the last, in the order of names."""
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
    """Of a single pod on one node: what comes free together counts for more than the damage."""
    ((row, gpus),) = taken.gpus.items()
    kind = view.kinds[int(view.rows.kinds[row])]
    free = int(view.rows.free[row]) & kind.allowed(pods.request.requirement)
    outlook = outlook_of(kind.table)
    if outlook is None or gpus & ~free:  # it could not be taken again: a GPU of it is unhealthy
        return taken, rival
    of_both = outlook.after(np.array([gpus, rival.gpus[row]]), free, running).tolist()
    return replace(taken, outlook=of_both[0]), replace(rival, outlook=of_both[1])
