"""The best other placement of a gang or a pod, searched in a snapshot as if it had no GPUs."""

from collections.abc import Sequence

import numpy as np

from linkwise.extender.place.criteria import is_equal
from linkwise.extender.place.gang_placement import pod_sets_of
from linkwise.extender.place.runner_up import RunnerUp, Single, runner_up
from linkwise.extender.show.explain.node_arrays import Field
from linkwise.extender.show.explain.snapshot import NodeState
from linkwise.extender.state.cache.node_info import running_sets
from linkwise.extender.state.cache.node_table import NodeTable
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.views import RunnerUpView, Verdict
from linkwise.pods.spans import spans_of
from linkwise.topology.vendors.known import vendor_of
from linkwise.topology.vendors.vendor import Vendor

_TALKS = 2  # GPUs from which on there is communication


class Alternatives:
    """Runner-ups in one snapshot; the searches share their arrays."""

    def __init__(self, field: Field) -> None:
        self._field, self._snapshot = field, field.snapshot
        self._rows = field.table()

    def runner_up(self, members: Sequence[PodRecord]) -> RunnerUpView | None:
        """*members* are in the order of ranks; those without GPUs do not count.

        None if no other placement has room, or if a member's node is not usable.
        """
        places = [(record, spot) for record in members if (spot := self._place(record))]
        if not all(self._field.usable[row] for _, (row, _) in places) or not places:
            return None
        rows = self._without(places)
        records = [record for record, _ in places]
        spans = spans_of(record.ask.spans for record in records)
        view = self._field.view(rows, spans)
        alone = len(records) == 1 and records[0].ask.gang is None
        single = self._single(records[0], places[0][1][0]) if alone else None
        pod_sets = pod_sets_of(records, self._field.nodes_for)
        found = runner_up(view, pod_sets, [spot for _, spot in places], spans, single)
        return None if found is None else self._view(found)

    def _place(self, record: PodRecord) -> tuple[int, int] | None:
        """Its row, and the bitmask of its GPUs."""
        if not record.live or not record.demand.gpus or record.template is None:
            return None
        plan = self._snapshot.plan_of(record)
        row = self._rows.row_of.get(record.node or (plan.plan.node if plan else ""))
        if row is None:
            return None
        gpus = self._field.nodes[row].owned.get(record.uid, 0)
        return (row, gpus) if gpus else None

    def _without(self, places: Sequence[tuple[PodRecord, tuple[int, int]]]) -> NodeTable:
        """The rows as if these pods had given back their GPUs and resources."""
        rows = self._rows.copy()
        for record, (row, gpus) in places:
            machine = self._field.nodes[row].machine
            rows.free[row] |= gpus & (machine.healthy_gpus if machine is not None else 0)
            rows.left.give_back(row, record.needs)
        return rows

    def _single(self, record: PodRecord, row: int) -> Single:
        """*row* is that of the pod's node; other pods run there on one set for each pod or gang."""
        owned = self._field.nodes[row].owned
        others = {uid: gpus for uid, gpus in owned.items() if uid != record.uid}
        room = self._snapshot.room
        shares = {
            resource: np.array([node.shares.free.get(resource, 0) for node in self._field.nodes])
            for resource in room.resources
        }
        return Single(running_sets(others, self._snapshot.by_uid), room, shares)

    def _view(self, found: RunnerUp) -> RunnerUpView:
        other, why = found.other, found.difference
        rows = sorted(other.gpus, key=lambda row: int(self._rows.name_ranks()[row]))
        unequal = Verdict.LOST if why.first_wins else Verdict.BETTER
        talks = sum(mask.bit_count() for mask in other.gpus.values()) >= _TALKS
        return RunnerUpView(
            nodes=tuple(self._field.nodes[row].name for row in rows),
            gpus=_indices(self._field.nodes[rows[0]], other.gpus[rows[0]])
            if other.gpus.keys() == found.taken.gpus.keys()
            else (),
            gbytes_per_s=round(other.together, 1)
            if talks and np.isfinite(other.together)
            else None,
            verdict=Verdict.EQUAL if is_equal(why) else unequal,
            criterion=why.criterion.name,
            why=_vendor(self._field.nodes[rows[0]]).own_words(why.in_words),
        )


def _vendor(node: NodeState) -> Vendor:
    assert node.machine is not None, "it is usable"
    return vendor_of(node.machine)


def _indices(node: NodeState, gpus: int) -> tuple[int, ...]:
    assert node.machine is not None, "it is usable"
    return node.machine.indices_of(gpus)
