"""Which nodes of one domain take the members of a gang, and how many each: fewest nodes, and of
those the ones that lie closest together.

From the widest level down, domains are filled whole one after the other, the one with most room
first, and what is left over goes to the domain that it fills best. So a gang that needs three
cliques is in three and not in five, and half of a clique is left where it was half before.
Members that belong together, as those of one child Job, are not torn between two domains where
that takes no more nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np

from linkwise.extender.ground import Level
from linkwise.extender.pool import Pool
from linkwise.extender.rows import Bools, Ints

_NEXT_TO, _NEAR = 2, 1


@dataclass(frozen=True, slots=True)
class Near:
    """Rows where members of the gang are already, and of these where the next ones in rank are."""

    rows: Ints
    next_to: Ints

    def of(self, numbers: Ints, domains: Ints) -> Ints:
        """[candidates] how near the gang's others are to a node of these *domains*; *numbers* are
        the domains of all rows. More is nearer."""
        near = np.isin(domains, numbers[self.rows]) * _NEAR
        closeness: Ints = np.maximum(near, np.isin(domains, numbers[self.next_to]) * _NEXT_TO)
        return closeness


@dataclass(frozen=True, slots=True)
class _Groups:
    """The candidates left to choose from, by their domain at one level."""

    among: Ints
    of: Ints  # [among] the domain of each, from 0
    count: int
    closeness: Ints  # [count]
    ranks: Ints  # [count] by the first of their nodes' names

    def sums(self, weights: Ints, where: Bools | None = None) -> Ints:
        chosen = slice(None) if where is None else where
        sums = np.bincount(self.of[chosen], weights[chosen], minlength=self.count)
        return sums.astype(np.int64)


class Fill:
    def __init__(self, pool: Pool, room: Ints, levels: Sequence[Level], near: Near) -> None:
        """*room* [candidates] for members of the wanted quality; *levels*, nearest first."""
        self._pool, self._room = pool, room
        widest_first = [level.apart for level in reversed(levels)]
        self._domains = [numbers[pool.rows] for numbers in widest_first]
        self._closeness = [
            near.of(numbers, numbers[pool.rows]) if len(near.rows) else np.zeros_like(room)
            for numbers in widest_first
        ]
        self._near_nodes = np.isin(pool.rows, near.rows)

    def choose(self, among: Ints, nodes: int) -> list[tuple[int, int]]:
        """(candidate, members there) for so many of *among*, which are enough, in the order in
        which neighbours in rank are neighbours on them."""
        return self._in_order(self._take(among, self._pool.wanted, nodes, 0))

    def _take(self, among: Ints, wanted: int, nodes: int, depth: int) -> list[tuple[int, int]]:
        while depth < len(self._domains) and self._says_nothing(self._domains[depth][among]):
            depth += 1
        if depth == len(self._domains):
            return self._take_nodes(among, wanted, nodes)
        taken: list[tuple[int, int]] = []
        while True:
            if self._says_nothing(self._domains[depth][among]):
                return taken + self._take(among, wanted, nodes, depth + 1)
            groups = self._groups(among, depth)
            best, members, share = self._best_group(groups, wanted, nodes)
            inside = groups.of == best
            taken += self._take(among[inside], members, share, depth + 1)
            wanted, nodes, among = wanted - members, nodes - share, among[~inside]
            if not wanted:
                return taken

    @staticmethod
    def _says_nothing(domains: Ints) -> bool:
        """All in one domain, or each in its own."""
        distinct = len(np.unique(domains))
        return distinct == 1 or distinct == len(domains)

    def _groups(self, among: Ints, depth: int) -> _Groups:
        numbers, of = np.unique(self._domains[depth][among], return_inverse=True)
        closeness = np.zeros(len(numbers), dtype=np.int64)
        closeness[of] = self._closeness[depth][among]
        ranks = np.full(len(numbers), len(self._pool.ranks) + self._pool.ranks.max() + 1)
        np.minimum.at(ranks, of, self._pool.ranks[among])
        return _Groups(among, of, len(numbers), closeness, ranks)

    def _best_group(self, groups: _Groups, wanted: int, nodes: int) -> tuple[int, int, int]:
        """A group, and how many members on how many nodes there: all that are left, if it can be.

        However the groups are chosen one after the other, the nodes stay enough: of the nodes with
        most room, a group takes those that must be taken, and as many as may be of their equals.
        """
        room = self._room[groups.among]
        by_room = np.lexsort((-room, groups.of))
        starts = np.searchsorted(groups.of[by_room], np.arange(groups.count))
        place_in_group = np.arange(len(by_room)) - starts[groups.of[by_room]]
        first = np.zeros(len(room), dtype=np.bool_)
        first[by_room] = place_in_group < nodes
        able = groups.sums(room, first) >= wanted
        least = -int(np.partition(-room, nodes - 1)[nodes - 1])  # of the nodes with most room
        must = groups.sums(np.ones_like(room), room > least)
        equals = groups.sums(np.ones_like(room), room == least)
        share = must + np.minimum(equals, nodes - int(must.sum()))
        members = groups.sums(room, room > least) + (share - must) * least
        may = able | (share > 0)
        nearest = may & (groups.closeness == groups.closeness[may].max())
        total = groups.sums(room)
        if (able & nearest).any():
            best = _first(np.flatnonzero(able & nearest), total, groups.ranks)
            return best, wanted, nodes
        best = _first(np.flatnonzero(nearest), -members, total, groups.ranks)
        if not must[best]:
            others = np.sort(room[groups.of != best])[::-1]
            whole = self._whole_units(int(members[best]), least, others, wanted, nodes)
            if whole:
                return best, whole, whole // least
        return best, int(members[best]), int(share[best])

    def _whole_units(self, most: int, each: int, others: Ints, wanted: int, nodes: int) -> int:
        """How many of at most so many members, *each* so many on a node, so that no unit of those
        that belong together is torn; 0 where the other nodes would then be too few for the rest."""
        whole = most - most % lcm(self._pool.unit, each)
        rest = others[: nodes - whole // each].sum()
        return whole if rest >= wanted - whole else 0

    def _take_nodes(self, among: Ints, wanted: int, nodes: int) -> list[tuple[int, int]]:
        """All but one take as many members as they can; the one for the rest is the best fit."""
        pool, room, near = self._pool, self._room, self._near_nodes
        if room[among].sum() == wanted:  # all of them whole: there is nothing to choose
            return [(int(i), int(room[i])) for i in among if room[i]]
        order = among[:0]
        if nodes > 1:
            least = -np.partition(-room[among], nodes - 2)[nodes - 2]
            most = among[room[among] >= least]  # what others would lose need not be known
            tied = (-room[most], ~near[most], pool.losses(most, room[most]))
            order = pool.sorted(most, tied)[: nodes - 1]
        chosen = [(int(i), int(room[i])) for i in order]
        rest = wanted - sum(count for _, count in chosen)
        enough = np.setdiff1d(among[room[among] >= rest], order)
        keys = (~near[enough], pool.losses(enough, np.full(len(enough), rest)))
        last = pool.first(enough, keys)
        assert last is not None, "these nodes are enough nodes"
        return [*chosen, (last, rest)]

    def _in_order(self, chosen: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The nodes of each domain beside each other; otherwise by name."""
        places = np.array([i for i, _ in chosen])
        ranks = self._pool.ranks[places]
        keys = [ranks]
        for domains in reversed(self._domains):
            _, of = np.unique(domains[places], return_inverse=True)
            first = np.full(int(of.max()) + 1, int(ranks.max()))
            np.minimum.at(first, of, ranks)
            keys.append(first[of])
        return [chosen[i] for i in np.lexsort(keys)]


def _first(groups: Ints, *keys: Ints) -> int:
    """Of these groups the one that is least by the keys, the first of which counts most."""
    return int(groups[np.lexsort([key[groups] for key in reversed(keys)])[0]])
