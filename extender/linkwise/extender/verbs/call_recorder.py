"""Records what a filter call shows: the nodes that it names passed all other filters of
kube-scheduler, and a planned node that it omits may have been refused."""

from linkwise.extender.api.records import PodRecord
from linkwise.extender.cycle.planner import Planner
from linkwise.extender.queue.books import Part


class CallRecorder(Part):
    def __init__(self, planner: Planner) -> None:
        super().__init__(planner)
        self._changes, self._refused_plans = planner.changes, planner.refused_plans

    def record(
        self, record: PodRecord, names: tuple[str, ...], wanted: str | None, now: float
    ) -> None:
        """A filter call about *record* names these nodes. *wanted*: the only node that the extender
        lets it through to; None: there is none."""
        if record.template is None:
            return
        self._asked(record, is_planned=wanted is not None)
        # Earlier refusals of the nodes that it names no longer count.
        if record.nominated and record.nominated in names:
            self._feedback.asked_about(record.uid, record.nominated)
        ended = bool(names) and self._gang_refusals.named(record.gang)
        if self._feedback.named(record.template, names) or ended:
            self._changes.refusals_ended()
        is_omitted = wanted is not None and wanted not in names
        if record.gang is not None and (wanted is None or is_omitted):
            self._feedback.passed(record.template, names, now)
        if wanted is None:
            return
        if not is_omitted:
            self._refused_plans.let_through(record, wanted)
        elif record.nominated == wanted:
            self._refused_plans.omitted(record, wanted, names, now)

    def _asked(self, record: PodRecord, *, is_planned: bool) -> None:
        """kube-scheduler calls about a member. If it never did while there was a plan, the plan
        timed out because its calls were missing; now the calls arrive again."""
        gang = self._registry.of(record)
        if gang is None:
            return
        if record.of_other_priority and not gang.called:
            gang.called = True
            self._changes.due.add(gang.key)
        if is_planned:
            gang.asked = True
        elif gang.refused and not gang.asked:
            self._queue.take_up(gang.key)
            self._changes.due.add(gang.key)
