"""Looks for GPUs for those of a gang that have none: among the nodes that may run them, and where
kube-scheduler has refused some, first among those that it is known to let pass.

A gang is placed as a whole, beside its members that have GPUs already; a single pod on its best
node, by a way that knows all nodes' worth beforehand.
"""

from collections.abc import Callable, Iterable, Sequence

from linkwise.extender.best_node import BestNode
from linkwise.extender.books import Books
from linkwise.extender.feasible import Feasible
from linkwise.extender.hopeless import Hopeless
from linkwise.extender.kinds import Wish
from linkwise.extender.learned import Learned
from linkwise.extender.muster import Muster, spots_of
from linkwise.extender.place import Refusal, Spot, orders_of, place
from linkwise.extender.records import PodRecord, Template
from linkwise.extender.rows import Bools


class Search:
    def __init__(
        self, books: Books, feasible: Feasible, learned: Learned, best_node: BestNode
    ) -> None:
        self._books = books
        self._feasible, self._learned, self._best_node = feasible, learned, best_node
        self._hopeless = Hopeless(books)

    def seek(self, found: Muster, now: float) -> list[Spot] | Refusal:
        beside = spots_of(self._books, found)
        if beside:
            return self._search(found, beside, now)
        return self._hopeless.seek(found.open, lambda: self._search(found, beside, now))

    def _search(self, found: Muster, beside: Sequence[Spot], now: float) -> list[Spot] | Refusal:
        def nodes(template: Template) -> Bools:
            allowed = self._learned.rows(template)
            own = self._feasible.rows(template)
            return own if allowed is None else own & allowed

        def known_nodes(template: Template) -> Bools:
            known = self._learned.known_to_pass(template, now)
            return nodes(template) if known is None else nodes(template) & known

        if any(self._learned.refused(template) for template in _templates(found.open)):
            spots = self._place(found, known_nodes, beside)
            if not isinstance(spots, Refusal):
                return spots
        return self._place(found, nodes, beside)

    def _place(
        self, found: Muster, nodes: Callable[[Template], Bools], beside: Sequence[Spot]
    ) -> list[Spot] | Refusal:
        member = found.open[0]
        if member.ask.gang is not None or member.template is None:
            return place(self._books, orders_of(found.open, nodes), beside)
        spot = self._best_of(member, nodes(member.template))
        return spot if isinstance(spot, Refusal) else [spot]

    def best_for(self, pod: PodRecord) -> Spot | Refusal:
        """The best node for a pod that is not planned ahead."""
        if pod.template is None:
            return Refusal(1, 0, "", 0)
        return self._best_of(pod, self._feasible.rows(pod.template))

    def _best_of(self, pod: PodRecord, nodes: Bools) -> Spot | Refusal:
        wish = Wish(pod.demand, pod.ask.requirement)
        return self._best_node.find(wish, pod.needs, nodes)


def _templates(members: Iterable[PodRecord]) -> set[Template]:
    return {member.template for member in members if member.template is not None}
