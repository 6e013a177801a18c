"""Learns from kube-scheduler's filter calls about nodes what the extender itself does not know.

A call names exactly the nodes that passed everything else (volumes, spread, other plugins).
kube-scheduler tries a nominated pod on its nominated node alone first. It continues without that
node for two reasons: a plugin refused the node, or its call to the extender was lost. So a call
without the nominated node is a refusal only if the second reason is excluded:

- kube-scheduler looked at every node, as it does until it has found LEAST_SAMPLE that pass;
- or it happened twice, APART_SECONDS apart, and no call named the node in between.

A refusal excludes the node from plans for pods of the same template. It ends when a call names the
node, when the node or the pods on it change, and by itself after a pause. If the node refuses again
after it, the next pause is twice as long. All of this is in memory; a new extender learns it again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.node_table import Bools
from linkwise.extender.state.records import Template
from linkwise.extender.state.timers import Agenda

FRESH_SECONDS = 30.0
# kube-scheduler's minFeasibleNodesToFind (pkg/scheduler/schedule_one.go): it skips none of fewer.
LEAST_SAMPLE = 100
# Two calls about a refused pod come within milliseconds, the second one for a preemption.
APART_SECONDS = 1.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 300.0
_MOST_DOUBLINGS = 5  # more make no difference
_MOST_TEMPLATES = 1024
_MOST_DOUBTS = 4096


def names_all(names: Sequence[str]) -> bool:
    """Whether a call that names these nodes names all that pass kube-scheduler's own filters."""
    return len(names) < LEAST_SAMPLE


@dataclass(frozen=True, slots=True)
class _Passing:
    names: tuple[str, ...]
    at: float


@dataclass(slots=True)
class _Refusal:
    version: int  # of the node, including the pods on it
    until: float
    times: int = 1  # in a row
    lapsed: bool = False  # its pause is over; `times` stays, for the next refusal


class SchedulerFeedback:
    def __init__(self, cache: Cache, agenda: Agenda) -> None:
        agenda.ask(self._times)
        self._cache = cache
        # Not weak: a recreated pod must find what its predecessor's calls taught.
        self._refusals: dict[Template, dict[str, _Refusal]] = {}
        self._passing: dict[Template, _Passing] = {}  # the latest last; only fresh ones
        # (uid, node) -> when a call first omitted the node for which the pod was nominated
        self._doubts: dict[tuple[str, str], float] = {}

    def named(self, template: Template, names: tuple[str, ...]) -> bool:
        """A call names these nodes, so they refuse no pod of this template. Returns whether that
        ended a refusal."""
        refusals = self._refusals.get(template)
        if not refusals:
            return False
        ended = [node for node in refusals.keys() & set(names) if not refusals[node].lapsed]
        for node in refusals.keys() & set(names):
            del refusals[node]
        if not refusals:
            del self._refusals[template]
        return bool(ended)

    def passed(self, template: Template, names: tuple[str, ...], now: float) -> None:
        """These nodes passed for a pod of this template, though maybe not all that would."""
        self._passing.pop(template, None)
        self._passing[template] = _Passing(names, now)
        # Each call may name 5,000 nodes, and pods of many templates may wait for weeks.
        while now - self._passing[first := next(iter(self._passing))].at > FRESH_SECONDS:
            del self._passing[first]

    @property
    def templates(self) -> int:
        """For how many templates the nodes of a filter call are remembered."""
        return len(self._passing)

    def lacks(self, uid: str, node: str, names: tuple[str, ...], now: float) -> bool:
        """A call about a pod that is nominated for *node* names other nodes. Returns whether that
        is a refusal by the node."""
        if names_all(names):
            return True
        doubt = (uid, node)
        first = self._doubts.get(doubt)
        if first is None:
            if len(self._doubts) >= _MOST_DOUBTS:
                del self._doubts[next(iter(self._doubts))]
            self._doubts[doubt] = now
            return False
        if now < first + APART_SECONDS:
            return False
        del self._doubts[doubt]
        return True

    def asked_about(self, uid: str, node: str) -> None:
        """A call about this pod names the node."""
        self._doubts.pop((uid, node), None)

    def refuse(self, template: Template, node: str, now: float) -> None:
        info = self._cache.nodes.get(node)
        if info is None:
            return
        if template not in self._refusals and len(self._refusals) >= _MOST_TEMPLATES:
            del self._refusals[next(iter(self._refusals))]
        refusals = self._refusals.setdefault(template, {})
        before = refusals.get(node)
        # Several pods that were planned there may be refused before the first one is planned again.
        times = 1 if before is None else before.times + before.lapsed
        pause = FIRST_PAUSE_SECONDS * 2 ** min(times - 1, _MOST_DOUBLINGS)
        until = now + min(pause, LONGEST_PAUSE_SECONDS)
        refusals[node] = _Refusal(info.version, until, times)

    def lapse(self, touched: Iterable[str], now: float) -> bool:
        """End refusals by nodes that changed, and those whose pause is over. Returns whether there
        were any."""
        nodes = set(touched)
        any_ended = False
        for template, refusals in list(self._refusals.items()):
            for node, refusal in list(refusals.items()):
                if node in nodes and self._has_changed(node, refusal):
                    any_ended |= not refusal.lapsed
                    del refusals[node]
                elif now >= refusal.until and not refusal.lapsed:
                    refusal.lapsed = any_ended = True
                elif now >= refusal.until + LONGEST_PAUSE_SECONDS:
                    del refusals[node]
            if not refusals:
                del self._refusals[template]
        return any_ended

    def _has_changed(self, node: str, refusal: _Refusal) -> bool:
        info = self._cache.nodes.get(node)
        return info is None or info.version != refusal.version

    def _times(self) -> Iterable[float]:
        for refusals in self._refusals.values():
            yield from (refusal.until for refusal in refusals.values() if not refusal.lapsed)

    def refused(self, template: Template) -> tuple[str, ...]:
        return tuple(sorted(self._refusing(template)))

    def refusing(self) -> dict[Template, frozenset[str]]:
        """template -> the nodes that refused its pods."""
        found = {template: frozenset(self._refusing(template)) for template in self._refusals}
        return {template: nodes for template, nodes in found.items() if nodes}

    def rows(self, template: Template) -> Bools | None:
        """[rows] False for the nodes that refused pods of this template; None: no node did."""
        refusing = self._refusing(template)
        if not refusing:
            return None
        allowed = np.ones(len(self._cache.rows), dtype=np.bool_)
        for node in refusing:
            row = self._cache.rows.row_of.get(node)
            if row is not None:
                allowed[row] = False
        return allowed

    def known_to_pass(self, template: Template, now: float) -> Bools | None:
        """[rows] the nodes that passed recently; None if no node refused pods of this template, or
        none passed recently."""
        passing = self._passing.get(template)
        if passing is None or now - passing.at > FRESH_SECONDS or not self._refusing(template):
            return None
        allowed = np.zeros(len(self._cache.rows), dtype=np.bool_)
        rows = self._cache.rows.rows_of(passing.names)
        allowed[rows[rows >= 0]] = True
        return allowed

    def _refusing(self, template: Template) -> list[str]:
        refusals = self._refusals.get(template, {})
        return [node for node, refusal in refusals.items() if not refusal.lapsed]
