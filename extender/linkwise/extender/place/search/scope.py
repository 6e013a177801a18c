"""The GPUs and the domains that a gang may use, given those that it has already."""

from collections.abc import Iterator, Sequence

import numpy as np

from linkwise.extender.place import communicator
from linkwise.extender.place.cluster_view import ClusterView
from linkwise.extender.place.communicator import Reach
from linkwise.extender.place.request import PlacedMembers, PodSet
from linkwise.extender.place.search.candidates import Candidates
from linkwise.extender.state.cache.node_table import NOT_USABLE, Bools, Ints
from linkwise.extender.state.cache.topology_domains import NO_DOMAIN
from linkwise.pods.spans import Spans
from linkwise.topology.machine.model import LinkClass

_ALL = 0  # the number of a domain that contains every node


class Scope:
    def __init__(self, view: ClusterView, placed: PlacedMembers, model: str | None) -> None:
        """Limited to GPUs of one *model*; None: any."""
        self.view, self.placed, self.mixes = view, placed, model is None
        self.free = view.rows.free
        if model is not None:
            of_kind = np.array([*(kind.of_model(model) for kind in view.kinds), 0])
            self.free = self.free & of_kind[view.rows.kinds]  # NOT_USABLE takes the last entry
        self.beside: Ints = np.zeros(len(view.rows), dtype=np.int64)
        self.placed_rows = np.array(placed.rows, dtype=np.int64)
        self.beside[self.placed_rows] = placed.gpus

    def in_order(self, spans: Spans) -> Iterator[Ints]:
        """[rows] the domains of each preferred span in turn, and last the domains that the required
        spans allow."""
        allowed = self.required(spans.require)
        for key in spans.prefer:
            level = self.view.level(key)
            if (level.numbers != NO_DOMAIN).any():
                yield self.with_placed(joined(allowed, level.apart))
        yield allowed

    def required(self, levels: Sequence[str]) -> Ints:
        """[rows] the domain of each node that may hold members; NO_DOMAIN: the node may not."""
        domains = np.full(len(self.view.rows), _ALL)
        for key in levels:
            domains = joined(domains, self.view.level(key).numbers)
        return self.with_placed(domains) if levels else domains

    def with_placed(self, domains: Ints) -> Ints:
        """Only the domain with the gang's other members; none if they are in several."""
        if not len(self.placed_rows):
            return domains
        theirs = domains[self.placed_rows[0]]
        together = theirs != NO_DOMAIN and (domains[self.placed_rows] == theirs).all()
        return np.where((domains == theirs) & together, domains, NO_DOMAIN)

    def placed_worths(self, prefer: LinkClass, reach: Reach) -> dict[int, float]:
        """Row -> GB/s that the node allows the communicator with the GPUs that the gang has there
        already."""
        rows, kinds = self.view.rows, self.view.kinds
        return {
            row: float(communicator.worths(kinds[int(rows.kinds[row])], prefer, reach)[gpus])
            for row, gpus in zip(self.placed.rows, self.placed.gpus, strict=True)
            if gpus and rows.kinds[row] != NOT_USABLE
        }

    def candidates(self, pods: PodSet, inside: Bools) -> Candidates:
        rows = self.view.rows
        room = rows.pods_that_fit(pods.needs)
        usable = inside & pods.nodes & (rows.kinds != NOT_USABLE)
        found = np.flatnonzero(usable & (room > 0) & (self.free != 0))
        return Candidates(self.view, pods, found, self.free[found], room[found], self.beside[found])


def joined(domains: Ints, others: Ints) -> Ints:
    """[rows] the intersections of *domains* and *others*; NO_DOMAIN if either is."""
    if (domains == _ALL).all():
        return others
    _, numbers = np.unique(domains * (others.max(initial=0) + 1) + others, return_inverse=True)
    return np.where((domains == NO_DOMAIN) | (others == NO_DOMAIN), NO_DOMAIN, numbers)
