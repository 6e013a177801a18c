"""Looks for GPUs for those of a gang that have none: among the nodes that may run them, and where
kube-scheduler has refused some, first among those that it is known to let pass.

A gang is placed as a whole, beside its members that have GPUs already; a single pod on its best
node, by a way that knows all nodes' worth beforehand.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from linkwise.extender.api.records import PodRecord, Template
from linkwise.extender.api.spans import NODE, Spans, ordered, spans_of
from linkwise.extender.api.unlocked import RunUnlocked
from linkwise.extender.cache.cache import Books
from linkwise.extender.cache.machine_kind import Wish
from linkwise.extender.cache.node_table import NOT_USABLE, Bools, Rows
from linkwise.extender.gangs.failed_searches import Hopeless
from linkwise.extender.gangs.members import Muster, plan_of, spots_of
from linkwise.extender.placement.cluster_view import ClusterView, cluster_view
from linkwise.extender.placement.gang_placement import place, pod_sets_of
from linkwise.extender.placement.nodes.best_node import BestNode
from linkwise.extender.placement.nodes.node_filters import Feasible
from linkwise.extender.placement.nodes.scheduler_feedback import Learned
from linkwise.extender.placement.request import NOBODY, PlacedMembers, PodSet
from linkwise.extender.placement.result import Refusal, Spot
from linkwise.extender.placement.worth.estimate import estimate_of
from linkwise.extender.placement.worth.ideal import Machines, ideal
from linkwise.extender.placement.worth.reach import reach_of
from linkwise.topology.plan import CommunicatorEstimate


@dataclass(frozen=True, slots=True)
class View:
    """The nodes as they are shown to one who asks, with what is kept for him."""

    what: Hashable  # tells one view from another
    rows: Callable[[], Rows]  # as they are at the moment; a copy


_TALKS = 2  # GPUs: one alone talks to nobody
_TRIES = 2  # with others in the books; then they wait


class Moved(Exception):  # noqa: N818 - nothing is wrong
    """While room was sought for a gang, the gang itself changed: it is to be looked at anew."""


class Search:
    def __init__(
        self,
        books: Books,
        feasible: Feasible,
        learned: Learned,
        best_node: BestNode,
        levels: Sequence[str],
    ) -> None:
        """*levels* of domains, nearest first."""
        self._books, self._levels = books, tuple(levels)
        books.domains.keep(levels)
        self._feasible, self._learned, self._best_node = feasible, learned, best_node
        self._hopeless = Hopeless(books)

    def forget_refusals(self) -> None:
        """How much room there was for whom there is too little is found out anew."""
        self._hopeless.forget()

    def seek(
        self,
        found: Muster,
        now: float,
        *,
        aside: RunUnlocked | None = None,
        view: View | None = None,
    ) -> list[Spot] | Refusal:
        """Room for those who are open, of a single pod where nothing more than what is free is in
        *view*. With *aside* others may use the books meanwhile; what comes back is true all the
        same when it comes. Raises Moved."""
        view = view or View(self._books.supposed, self._rows)
        beside = spots_of(self._books, found)
        if beside:
            return self._search(found, beside, now, aside, view)
        return self._hopeless.seek(
            found.open,
            _spans_of(found),
            view.what,
            lambda: self._search(found, beside, now, aside, view),
        )

    def _rows(self) -> Rows:
        return self._books.rows.copy()

    def _search(
        self,
        found: Muster,
        beside: Sequence[Spot],
        now: float,
        aside: RunUnlocked | None,
        view: View,
    ) -> list[Spot] | Refusal:
        def known_nodes(template: Template) -> Bools:
            known, nodes = self._learned.known_to_pass(template, now), self._nodes(template)
            return nodes if known is None else nodes & known

        if any(self._learned.refused(template) for template in _templates(found.open)):
            spots = self._place(found, known_nodes, beside, aside, view)
            if not isinstance(spots, Refusal):
                return spots
        return self._place(found, self._nodes, beside, aside, view)

    def _nodes(self, template: Template) -> Bools:
        """[rows] where pods of this template may run, as far as we know or have learnt."""
        allowed, own = self._learned.rows(template), self._feasible.rows(template)
        return own if allowed is None else own & allowed

    def _place(
        self,
        found: Muster,
        nodes: Callable[[Template], Bools],
        beside: Sequence[Spot],
        aside: RunUnlocked | None,
        view: View,
    ) -> list[Spot] | Refusal:
        member = found.open[0]
        if member.ask.gang is None and member.template is not None:
            spot = self._best_of(member, nodes(member.template))
            return spot if isinstance(spot, Refusal) else [spot]
        spans = _spans_of(found)
        placed = self._placed(found, beside)
        levels = ordered(self._levels, spans)
        for _ in range(_TRIES):
            if aside is None:
                break
            seen = Seen(self._books, found.open)
            cluster = cluster_view(self._books, view.rows(), levels)
            pod_sets = pod_sets_of(found.open, nodes)
            answer = aside(partial(place, cluster, pod_sets, placed, spans))
            if seen.still_true_of(answer, cluster, pod_sets, nodes, view):
                return answer
        cluster = cluster_view(self._books, view.rows(), levels)
        return place(cluster, pod_sets_of(found.open, nodes), placed, spans)

    def _placed(self, found: Muster, beside: Sequence[Spot]) -> PlacedMembers:
        if not beside:
            return NOBODY
        rows = self._books.rows.row_of
        models: set[str] = set()
        on_rows: dict[int, int] = {}
        for spot in beside:
            book = self._books.nodes.get(spot.node)
            if book is not None and book.machine is not None:
                gpus = book.machine.gpus
                models |= {gpu.model for p, gpu in enumerate(gpus) if spot.gpus >> p & 1}
            if spot.node in rows:
                row = rows[spot.node]
                on_rows[row] = on_rows.get(row, 0) | spot.gpus
        return PlacedMembers(
            tuple(sorted(on_rows)),
            tuple(on_rows[row] for row in sorted(on_rows)),
            tuple(sorted({rows[node] for node in _next_to(self._books, found) if node in rows})),
            frozenset(models),
        )

    def span(self, found: Muster, spots: Sequence[Spot]) -> str:
        """What a gang that goes there has in common, as its plan says it; empty for a single pod,
        and where nothing is."""
        if found.open[0].ask.gang is None:
            return ""
        nodes = {spot.node for spot in (*spots_of(self._books, found), *spots)}
        if len(nodes) == 1:
            return f"{NODE}={nodes.pop()}"
        rows = [self._books.rows.row_of[node] for node in nodes]
        levels = ordered(self._levels, _spans_of(found))
        level, domain = self._books.domains.shared(levels, rows)
        return level and f"{level}={domain}"

    def communicators(
        self, found: Muster, spots: Sequence[Spot]
    ) -> Mapping[str, CommunicatorEstimate]:
        """By node, what a gang that goes there is worth, as its plan says it; empty for a single
        pod, a lone GPU, and members that do not talk to each other."""
        spans = _spans_of(found)
        gpus: dict[str, int] = {}
        for spot in (*spots_of(self._books, found), *spots):
            gpus[spot.node] = gpus.get(spot.node, 0) | spot.gpus
        count = sum(mask.bit_count() for mask in gpus.values())
        if found.open[0].ask.gang is None or spans.apart or count < _TALKS:
            return {}
        parts = {
            book.row: (node, (book.kind, mask))
            for node, mask in gpus.items()
            if mask and (book := self._books.nodes.get(node)) is not None and book.kind is not None
        }
        domains = self._books.domains
        levels = domains.known(ordered(self._levels, spans))
        shared, _ = domains.shared(levels, list(parts))
        nearest = levels.index(shared) if shared else len(levels)
        worth = estimate_of([part for _, part in parts.values()], levels, nearest)
        told = {
            inside: CommunicatorEstimate(
                together=round(worth.together, 1),
                inside=round(inside, 1),
                between=None if worth.between is None else round(worth.between, 1),
            )
            for inside in set(worth.inside)
        }
        nodes = (node for node, _ in parts.values())
        return {node: told[inside] for node, inside in zip(nodes, worth.inside, strict=True)}

    def ideal(self, found: Muster, spots: Sequence[Spot]) -> float:
        """GB/s that as many GPUs would have together if the machines that there are were idle."""
        books, requirement = self._books, found.open[0].ask.requirement
        of_rows = books.rows.kinds[: len(books.rows)]
        levels = books.domains.known(ordered(self._levels, _spans_of(found)))
        machines = []
        for number in np.flatnonzero(np.bincount(of_rows[of_rows != NOT_USABLE])).tolist():
            nearest = books.domains.nearest(levels, np.flatnonzero(of_rows == number))
            kind = books.kinds[number]
            machines.append(Machines(kind, kind.allowed(requirement), reach_of(levels, nearest)))
        return ideal(machines, [spot.gpus.bit_count() for spot in spots])

    def best_for(self, pod: PodRecord) -> Spot | Refusal:
        """The best node for a pod that is not planned ahead."""
        if pod.template is None:
            return Refusal(1, 0, "", 0)
        return self._best_of(pod, self._nodes(pod.template))

    def _best_of(self, pod: PodRecord, nodes: Bools) -> Spot | Refusal:
        wish = Wish(pod.demand, pod.ask.requirement)
        return self._best_node.find(wish, pod.needs, nodes)


def _templates(members: Iterable[PodRecord]) -> set[Template]:
    return {member.template for member in members if member.template is not None}


def _spans_of(found: Muster) -> Spans:
    return spans_of(member.ask.spans for member in found.seats)


class Seen:
    """What the books were when something began that let others use them."""

    def __init__(self, books: Books, members: Sequence[PodRecord]) -> None:
        self._books, self._gang = books, members[0].gang
        self._gang_change = self._change_of_gang()
        self._room, self._changed_rows = books.room, len(books.changed_rows)

    def still_true_of(
        self,
        answer: list[Spot] | Refusal,
        cluster: ClusterView,
        pod_sets: Sequence[PodSet],
        nodes: Callable[[Template], Bools],
        view: View,
    ) -> bool:
        """Raises Moved."""
        if self._change_of_gang() != self._gang_change:
            raise Moved
        if isinstance(answer, Refusal):
            return self._books.room == self._room  # what is free only got less
        rows = [cluster.rows.row_of[spot.node] for spot in answer]
        return self._same(cluster.rows, view.rows(), rows) and all(
            nodes(pods.template)[[rows[member] for member in pods.members]].all()
            for pods in pod_sets
        )

    def still_free(self, before: Rows, spots: Sequence[Spot]) -> bool:
        """Whether these nodes are as they were in *before*, a copy. Raises Moved."""
        if self._change_of_gang() != self._gang_change:
            raise Moved
        return self._same(before, self._books.rows, [before.row_of[spot.node] for spot in spots])

    def _same(self, before: Rows, after: Rows, rows: Sequence[int]) -> bool:
        changed = self._books.changed_rows[self._changed_rows :]
        return {*changed}.isdisjoint(rows) and after.equals(before, rows)

    def _change_of_gang(self) -> int | None:
        return None if self._gang is None else self._books.gang_changes.get(self._gang)


def _next_to(books: Books, found: Muster) -> Iterable[str]:
    """The nodes of those that come just before or after an open one in the order of ranks."""
    open_ones = {member.uid for member in found.open}
    for first, second in pairwise(found.seats):
        for placed, other in ((first, second), (second, first)):
            if other.uid in open_ones and placed.uid not in open_ones:
                written = plan_of(books, placed)
                yield placed.node or (written.plan.node if written is not None else "")
