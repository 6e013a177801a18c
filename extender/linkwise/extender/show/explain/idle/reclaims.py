"""Which idle pods will be evicted for a waiting gang or pod, if they stay idle."""

from linkwise.extender.next.queue.reservations import Claimant, claimant_of_single
from linkwise.extender.show.explain.idle.would_start import IdleUnit, WouldStart
from linkwise.extender.show.explain.node_arrays import Field
from linkwise.extender.show.explain.snapshot import GangState, NodeState
from linkwise.extender.state.records import PodRecord
from linkwise.extender.state.views import ReclaimView, WouldStartView


class Reclaims:
    """An estimate: the extender may choose others, as it weighs PodDisruptionBudgets too."""

    def __init__(self, field: Field) -> None:
        self._snapshot = field.snapshot
        self._would_start = WouldStart(field)

    def of_gang(self, gang: GangState) -> ReclaimView | None:
        claimant = self._snapshot.claimant_of(gang)
        if claimant is None or not all(pod.preempts for pod in gang.found.open):
            return None
        units, begins = self._units(claimant)
        return self._view(begins, self._would_start.gang(gang, units) if units else None)

    def of_single(self, record: PodRecord) -> ReclaimView | None:
        if not record.preempts:
            return None
        ordering, run_times = self._snapshot.ordering, self._snapshot.run_times
        claimant = claimant_of_single(record, ordering, run_times)
        units, begins = self._units(claimant)
        found = self._would_start.pod(record, claimant, units) if units else None
        return self._view(begins, found)

    def _units(self, claimant: Claimant) -> tuple[list[IdleUnit], dict[str, float]]:
        """Those that may be evicted for the claimant, the first to go first, and when, by name."""
        snapshot, priority = self._snapshot, -claimant.urgency[0]
        found: dict[object, list[tuple[PodRecord, NodeState]]] = {}
        times: dict[object, float] = {}
        for uid, at in snapshot.reclaim_from.items():
            record = snapshot.by_uid.get(uid)
            node = None if record is None else snapshot.node_named.get(record.node)
            if record is not None and node is not None and record.priority <= priority:
                together = record.gang or uid
                found.setdefault(together, []).append((record, node))
                times[together] = at
        in_order = sorted(found, key=lambda together: (times[together], found[together][0][0].uid))
        units = {each: IdleUnit(tuple(found[each])) for each in in_order}
        return [*units.values()], {unit.name: times[each] for each, unit in units.items()}

    def _view(self, begins: dict[str, float], found: WouldStartView | None) -> ReclaimView | None:
        if found is None:
            return None
        at = max(begins[name] for name in found.without)
        return ReclaimView(found.without, max(at, self._snapshot.at))
