"""What kube-scheduler's filter calls teach about nodes, beyond what we know ourselves.

A call names exactly the nodes that passed everything else (volumes, spread, other plugins). A pod
that was nominated for a node and then comes without it was refused there: that node is left out of
the plans for pods of the same template until the node, or the pods on it, change. A call that
merely lacks a node proves nothing: kube-scheduler looks at a sample of a large cluster.
In memory only; a new extender learns anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from linkwise.extender.books import Books
from linkwise.extender.records import Template
from linkwise.extender.rows import Bools

FRESH_SECONDS = 30.0
_MOST_TEMPLATES = 1024


@dataclass(frozen=True, slots=True)
class _Passing:
    names: tuple[str, ...]
    at: float


class Learned:
    def __init__(self, books: Books) -> None:
        self._books = books
        # Not weak: a pod made anew must find what was learned with the one before it.
        self._refused: dict[Template, dict[str, int]] = {}
        self._passing: dict[Template, _Passing] = {}  # the latest last; none that is not fresh

    def passed(self, template: Template, names: tuple[str, ...], now: float) -> None:
        self._passing.pop(template, None)
        self._passing[template] = _Passing(names, now)
        # Each may name 5,000 nodes, and pods of very many templates may wait for weeks.
        while now - self._passing[first := next(iter(self._passing))].at > FRESH_SECONDS:
            del self._passing[first]

    @property
    def templates(self) -> int:
        """How many of them something is remembered of that filter calls named."""
        return len(self._passing)

    def refuse(self, template: Template, node: str) -> None:
        book = self._books.nodes.get(node)
        if book is not None:
            if template not in self._refused and len(self._refused) >= _MOST_TEMPLATES:
                del self._refused[next(iter(self._refused))]
            self._refused.setdefault(template, {})[node] = book.version

    def lapse(self, touched: Iterable[str]) -> bool:
        """Forget refusals on nodes that changed since; whether there were any."""
        nodes = set(touched)
        lapsed = False
        for template, refused in list(self._refused.items()):
            for node in refused.keys() & nodes:
                book = self._books.nodes.get(node)
                if book is None or book.version != refused[node]:
                    del refused[node]
                    lapsed = True
            if not refused:
                del self._refused[template]
        return lapsed

    def refused(self, template: Template) -> tuple[str, ...]:
        return tuple(sorted(self._refused.get(template, {})))

    def refusing(self) -> dict[Template, frozenset[str]]:
        """The nodes that refused pods, by the pods' template."""
        return {template: frozenset(nodes) for template, nodes in self._refused.items() if nodes}

    def rows(self, template: Template) -> Bools | None:
        """[rows] False for the nodes that refused pods of this template; None: no node did."""
        if template not in self._refused:
            return None
        allowed = np.ones(len(self._books.rows), dtype=np.bool_)
        for node in self._refused.get(template, {}):
            row = self._books.rows.row_of.get(node)
            if row is not None:
                allowed[row] = False
        return allowed

    def known_to_pass(self, template: Template, now: float) -> Bools | None:
        """[rows] the nodes that passed lately, where our own judgement has failed before."""
        passing = self._passing.get(template)
        if not self._refused.get(template) or passing is None or now - passing.at > FRESH_SECONDS:
            return None
        allowed = np.zeros(len(self._books.rows), dtype=np.bool_)
        rows = self._books.rows.rows_of(passing.names)
        allowed[rows[rows >= 0]] = True
        return allowed
