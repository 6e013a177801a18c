"""Which waiting gangs and pods would start if idle pods went.

Each is tried by itself, the most urgent first, as if the others did not wait; GPUs that are
reserved for others stay reserved.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter

import numpy as np

from linkwise.extender.next.gangs.members import GangMembers
from linkwise.extender.next.queue.reservations import Claimant, claimant_of_single
from linkwise.extender.place.gang_placement import place, pod_sets_of
from linkwise.extender.place.request import NoRoom, Spot
from linkwise.extender.show.explain.funnel import alike
from linkwise.extender.show.explain.node_arrays import Field
from linkwise.extender.show.explain.snapshot import GangState, NodeState
from linkwise.extender.show.explain.usage import waits
from linkwise.extender.state.cache.node_table import NodeTable
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.views import WouldStartView
from linkwise.pods.spans import Spans, spans_of

_MOST_TRIED = 8  # different requests; each search may take 50 ms in a large cluster
_MOST_SPARED = 4  # searches for idle pods that one of them could do without


@dataclass(frozen=True, slots=True)
class IdleUnit:
    """Idle pods that go together: a single one, or all of a gang."""

    pods: tuple[tuple[PodRecord, NodeState], ...]

    @property
    def name(self) -> str:
        record = self.pods[0][0]
        return f"gang {record.gang_name}" if record.gang_name else f"pod {record.key}"


@dataclass(frozen=True, slots=True)
class Found:
    views: tuple[WouldStartView, ...]
    waiting: int  # gangs and pods
    untried: int  # of these


@dataclass(frozen=True, slots=True)
class _Waiting:
    name: str
    claimant: Claimant
    pods: Sequence[PodRecord]  # as many as are enough to start

    @property
    def spans(self) -> Spans:
        return spans_of(pod.ask.spans for pod in self.pods)

    @property
    def request(self) -> object:
        """Equal for those that the same places suit."""
        return tuple((alike(pod), pod.ask.subgroup) for pod in self.pods), self.spans

    def without(self, gone: Sequence[IdleUnit]) -> WouldStartView:
        gpus = sum(pod.demand.gpus for pod in self.pods)
        return WouldStartView(self.name, gpus, tuple(unit.name for unit in gone))


class WouldStart:
    def __init__(self, field: Field) -> None:
        self._field, self._snapshot = field, field.snapshot
        self._table = field.table()
        self._kept = cache(self._kept_from)

    def all(self, idle: Sequence[IdleUnit]) -> Found:
        """*idle*: the first is the first to go."""
        waiting = [each for _, each in sorted(self._waiting(), key=itemgetter(0))]
        views: list[WouldStartView] = []
        tried: dict[object, Sequence[IdleUnit] | None] = {}
        untried = 0
        for each in waiting if idle else ():
            key = each.request, self._field.open_to(each.claimant)
            if key not in tried and len(tried) == _MOST_TRIED:
                untried += 1
                continue
            if key not in tried:
                tried[key] = self._needed(each, idle)
            if gone := tried[key]:
                views.append(each.without(gone))
        return Found(tuple(views), len(waiting), untried)

    def gang(self, gang: GangState, idle: Sequence[IdleUnit]) -> WouldStartView | None:
        """None: it does not start without them, or there is room already."""
        pods = _first_of(gang.found)
        claimant = self._snapshot.claimant_of(gang)
        if claimant is None or not pods:
            return None
        return self._view(_Waiting(gang.key.title, claimant, pods), idle)

    def pod(
        self, record: PodRecord, claimant: Claimant, idle: Sequence[IdleUnit]
    ) -> WouldStartView | None:
        return self._view(_Waiting(f"pod {record.key}", claimant, (record,)), idle)

    def _view(self, waiting: _Waiting, idle: Sequence[IdleUnit]) -> WouldStartView | None:
        gone = self._needed(waiting, idle)
        return waiting.without(gone) if gone else None

    def _waiting(self) -> Iterator[tuple[object, _Waiting]]:
        """Those that lack nothing but room, with their urgency."""
        snapshot = self._snapshot
        for gang in snapshot.gangs:
            claimant = None if gang.alone else snapshot.claimant_of(gang)
            if claimant is not None and (pods := _first_of(gang.found)):
                yield claimant.urgency, _Waiting(gang.key.title, claimant, pods)
        for record in snapshot.pods:
            if (
                record.ask.gang is None
                and waits(snapshot, record)
                and record.template is not None
                and not (record.invalid or record.left_alone or record.held_back or record.awaits)
            ):
                claimant = claimant_of_single(record, snapshot.ordering, snapshot.run_times)
                name = f"pod {record.key}"
                yield claimant.urgency, _Waiting(name, claimant, (record,))

    def _needed(self, waiting: _Waiting, idle: Sequence[IdleUnit]) -> Sequence[IdleUnit] | None:
        """Those of *idle* that have to go so that *waiting* can start; None: all are too few.

        The first of *idle* go first. Empty: there is room already.
        """
        if self._seek(waiting, idle) is None:
            return None
        enough = bisect_left(
            range(len(idle)), True, key=lambda n: self._seek(waiting, idle[:n]) is not None
        )
        spots = self._seek(waiting, idle[:enough])
        assert spots is not None, "these are enough"
        needed: Sequence[IdleUnit] = _used(spots, idle[:enough])
        if self._seek(waiting, needed) is None:  # what else others have is needed too
            needed = idle[:enough]
        # Without the last one there was no room.
        for unit in list(reversed(needed[:-1]))[:_MOST_SPARED]:
            fewer = [each for each in needed if each is not unit]
            if self._seek(waiting, fewer) is not None:
                needed = fewer
        return needed

    def _seek(self, waiting: _Waiting, gone: Sequence[IdleUnit]) -> list[Spot] | None:
        table = self._table_without(waiting.claimant, gone)
        view = self._field.view(table, waiting.spans)
        pod_sets = pod_sets_of(waiting.pods, self._field.nodes_for)
        found = place(view, pod_sets, spans=waiting.spans)
        return None if isinstance(found, NoRoom) else found

    def _table_without(self, claimant: Claimant, gone: Sequence[IdleUnit]) -> NodeTable:
        field, mine = self._field, self._field.open_to(claimant)
        kept, table = self._kept(mine), self._table.copy()
        table.free = np.where(field.usable, field.free_to(mine), 0)
        for record, node in (pod for unit in gone for pod in unit.pods):
            row = table.row_of[node.name]
            if node.machine is not None and field.usable[row]:
                own = node.owned.get(record.uid, 0) & node.machine.healthy_gpus
                table.free[row] |= own & ~kept.get(node.name, 0)
            table.left.give_back(row, record.needs)
        return table

    def _kept_from(self, mine: frozenset[int]) -> Mapping[str, int]:
        """The GPUs that others get once they are free: node -> bitmask."""
        kept: dict[str, int] = {}
        for number, reservation in enumerate(self._snapshot.reservations):
            if number not in mine:
                for node, gpus in reservation.gpus.items():
                    kept[node] = kept.get(node, 0) | gpus
        return kept


def _first_of(found: GangMembers) -> Sequence[PodRecord]:
    """The fewest members with which the gang could start; none if it runs, or has places, or if
    members are missing."""
    if found.started or found.bound or found.flying or found.planned or found.clash:
        return ()
    counts = found.together()
    return found.open[: counts[0]] if counts else ()


def _used(spots: Sequence[Spot], idle: Sequence[IdleUnit]) -> list[IdleUnit]:
    """Those of *idle* whose GPUs are in *spots*."""
    taken: dict[str, int] = {}
    for spot in spots:
        taken[spot.node] = taken.get(spot.node, 0) | spot.gpus
    return [
        unit
        for unit in idle
        if any(node.owned.get(pod.uid, 0) & taken.get(node.name, 0) for pod, node in unit.pods)
    ]
