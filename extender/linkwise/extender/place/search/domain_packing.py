"""Chooses the nodes of one domain for the members of a gang: the fewest, and the closest together.

From the widest level down, the packing fills whole domains one after the other, the one with most
room first. The rest goes to the domain that it fills best. So a gang that needs three cliques gets
three and not five, and a half-free clique is used before a free one is split. If fewer domains
might do, `fewest_domains` says which, and the packing fills only these. Members that belong
together, such as those of one child Job, stay in one domain if that takes no more nodes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from linkwise.extender.place.cluster_view import Counts, Level, domain_counts
from linkwise.extender.place.communicator import Reach, Standard
from linkwise.extender.place.search.candidates import Candidates
from linkwise.extender.place.search.fewest_domains import fewest_domains
from linkwise.extender.state.cache.node_table import Bools, Ints

_NEXT_TO, _NEAR = 2, 1
_EXACT = 6  # nodes that `_exact` chooses together
_LESS = 1e-6  # GB/s; a smaller difference of damage is none
_FAR = 1e9  # GB/s; more than any damage, so nodes with members of the gang come first


@dataclass(frozen=True, slots=True)
class Near:
    """The rows with members of the gang, and those of them with the next members in rank."""

    rows: Ints
    next_to: Ints

    def of(self, numbers: Ints, domains: Ints) -> Ints:
        """[candidates] the closeness of the gang's other members to a node of these *domains*;
        higher is closer. *numbers* are the domains of all rows."""
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
    ranks: Ints  # [count] the rank of the first of their nodes' names

    def sums(self, weights: Ints, where: Bools | None = None) -> Ints:
        chosen = slice(None) if where is None else where
        sums = np.bincount(self.of[chosen], weights[chosen], minlength=self.count)
        return sums.astype(np.int64)


class NodePacking:
    def __init__(
        self,
        pool: Candidates,
        room: Ints,
        levels: Sequence[Level],
        near: Near,
        reach: Reach,
        standard: Standard,
    ) -> None:
        """*room* [candidates] is the number of members with which each reaches *standard*. *levels*
        are those below the domain that holds all, nearest first."""
        self._pool, self._room, self._levels, self._near = pool, room, levels, near
        self._reach, self._standard = reach, standard
        widest_first = [level.apart for level in reversed(levels)]
        self._domains = [numbers[pool.rows] for numbers in widest_first]
        self._closeness = [
            near.of(numbers, numbers[pool.rows]) if len(near.rows) else np.zeros_like(room)
            for numbers in widest_first
        ]
        self._near_nodes = np.isin(pool.rows, near.rows)

    def choose(
        self,
        among: Ints,
        wanted: int,
        nodes: int,
        must: Sequence[tuple[int, int]] = (),
        least: Counts = (),
    ) -> list[tuple[int, int]] | None:
        """(candidate, members there) for *nodes* of the candidates *among*, and for those in
        *must*, in the order that puts neighbours in rank close to each other.

        *among* has room for *wanted* members. No choice is in fewer domains than *least*. None if
        it fits only more members, or only fewer.
        """
        taken = self._take(among, wanted, nodes, 0) if wanted else []
        if taken is None:
            taken = self._take_nodes(among, wanted, nodes)
        elif self.domains([*must, *taken]) > least:
            taken = self._take_fewest(among, wanted, nodes, must) or taken
        return None if taken is None else self._in_order([*must, *taken])

    def domains(self, chosen: Sequence[tuple[int, int]]) -> Counts:
        """In how many domains of each level the gang then is."""
        rows = [*self._pool.rows[[place for place, _ in chosen]], *self._near.rows]
        return domain_counts(self._levels, rows)

    def _take_fewest(
        self, among: Ints, wanted: int, nodes: int, must: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]] | None:
        """Only in the fewest domains of each level; None if these are not known."""
        if self._pool.unit > 1:
            return None  # members that belong together count more
        depths = [n for n, of in enumerate(self._domains) if not self._says_nothing(of[among])]
        if not depths:
            return None
        levels = [self._domains[depth][among] for depth in depths]
        here = [self._domains[depth][[place for place, _ in must]] for depth in depths]
        is_new = [
            (self._closeness[depth][among] == 0) & ~np.isin(of, theirs)
            for depth, of, theirs in zip(depths, levels, here, strict=True)
        ]
        some = fewest_domains(levels, is_new, self._room[among], wanted, nodes)
        if some is None:
            return None
        inside = ~is_new[-1]
        inside[some] = True
        return self._take(among[inside], wanted, nodes, 0)

    def _take(
        self, among: Ints, wanted: int, nodes: int, depth: int
    ) -> list[tuple[int, int]] | None:
        while depth < len(self._domains) and self._says_nothing(self._domains[depth][among]):
            depth += 1
        if depth == len(self._domains):
            return self._take_nodes(among, wanted, nodes)
        taken: list[tuple[int, int]] = []
        while True:
            if self._says_nothing(self._domains[depth][among]):
                rest = self._take(among, wanted, nodes, depth + 1)
                return None if rest is None else taken + rest
            groups = self._groups(among, depth)
            best, members, share = self._best_group(groups, wanted, nodes)
            inside = groups.of == best
            part = self._take(among[inside], members, share, depth + 1)
            if part is None:
                return None
            taken += part
            wanted, nodes, among = wanted - members, nodes - share, among[~inside]
            if not wanted:
                return taken

    @staticmethod
    def _says_nothing(domains: Ints) -> bool:
        """Whether the domains distinguish nothing: all in one, or each in its own."""
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
        """(group, members, nodes there); a group that has room for all the rest comes first.

        Whatever the order of the groups, *nodes* stays enough: each group uses the nodes with most
        room that must be used, and as many of their equals as possible.
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
        """The largest number of members up to *most*, *each* per node, that splits no unit; 0 if
        the other nodes would then have too little room for the rest."""
        whole = most - most % lcm(self._pool.unit, each)
        rest = others[: nodes - whole // each].sum()
        return whole if rest >= wanted - whole else 0

    def _take_nodes(self, among: Ints, wanted: int, nodes: int) -> list[tuple[int, int]] | None:
        """Fill all but the last few nodes, then choose those for the rest with `_exact`."""
        pool, room = self._pool, self._room
        if room[among].sum() == wanted:  # all nodes are filled: there is nothing to choose
            return [(int(i), int(room[i])) for i in among if room[i]]
        sure = among[:0]
        if nodes > _EXACT:
            least = -np.partition(-room[among], nodes - 2)[nodes - 2]
            most = among[room[among] >= least]  # the damage on the others need not be computed
            damage = pool.damage(most, room[most], self._reach, self._standard)
            tied = (-room[most], ~self._near_nodes[most], damage)
            sure = pool.sorted(most, tied)[: nodes - _EXACT]
        chosen = [(int(i), int(room[i])) for i in sure]
        rest = wanted - sum(count for _, count in chosen)
        last = self._exact(np.setdiff1d(among, sure), rest, nodes - len(chosen))
        return None if last is None else chosen + last

    def _exact(self, among: Ints, wanted: int, nodes: int) -> list[tuple[int, int]] | None:
        """Place *wanted* members on at most *nodes* nodes with the least damage. Among equals,
        nodes with members of the gang win, then the fullest, then the first by name."""
        cost = np.full((nodes + 1, wanted + 1), np.inf)
        cost[:, 0] = 0.0
        steps: list[tuple[int, int, NDArray[np.bool_]]] = []  # candidate, members, where better
        for place, counts in self._worth_trying(among, nodes):
            before = cost.copy()
            for count, damage in counts:
                if count <= wanted:
                    other = before[:-1, : wanted + 1 - count] + damage
                    better = other < cost[1:, count:] - _LESS
                    cost[1:, count:][better] = other[better]
                    steps.append((place, count, better))
        if cost[nodes, wanted] == np.inf:
            return None
        return _traced(steps, nodes, wanted)

    def _worth_trying(
        self, among: Ints, nodes: int
    ) -> Iterator[tuple[int, list[tuple[int, float]]]]:
        """Candidates with (members, damage) for each possible number of members; of candidates
        that are alike, only the first *nodes*."""
        pool = self._pool
        in_order = pool.sorted(among, [~self._near_nodes[among]])
        in_order = in_order[_first_of_each(pool.alike(in_order), nodes)]
        seen: Counter[tuple[tuple[int, float], ...]] = Counter()
        of_alike: dict[tuple[int, bool], tuple[tuple[int, float], ...]] = {}
        for place, number in zip(in_order.tolist(), pool.alike(in_order).tolist(), strict=True):
            near = bool(self._near_nodes[place])
            counts = of_alike.get((number, near))
            if counts is None:
                counts = of_alike[number, near] = tuple(
                    (count, self._cost(number, count, near=near))
                    for count in pool.counts_of(self._reach, self._standard, number)
                )
            seen[counts] += 1
            if seen[counts] <= nodes:
                yield place, list(counts)

    def _cost(self, alike: int, count: int, *, near: bool) -> float:
        damage = self._pool.damage_of(alike, count, self._reach, self._standard)
        return damage if near else damage + _FAR

    def _in_order(self, chosen: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Sort so that the nodes of each domain are consecutive; otherwise by name."""
        places = np.array([i for i, _ in chosen])
        ranks = self._pool.ranks[places]
        keys = [ranks]
        for domains in reversed(self._domains):
            _, of = np.unique(domains[places], return_inverse=True)
            first = np.full(int(of.max()) + 1, int(ranks.max()))
            np.minimum.at(first, of, ranks)
            keys.append(first[of])
        return [chosen[i] for i in np.lexsort(keys)]


def _first_of_each(alike: Ints, most: int) -> NDArray[np.bool_]:
    """[alike] whether the entry is among the first *most* with its number."""
    order = np.argsort(alike, kind="stable")
    _, starts, counts = np.unique(alike[order], return_index=True, return_counts=True)
    before = np.arange(len(alike)) - np.repeat(starts, counts)
    first = np.zeros(len(alike), dtype=np.bool_)
    first[order] = before < most
    return first


def _traced(
    steps: Sequence[tuple[int, int, NDArray[np.bool_]]], nodes: int, wanted: int
) -> list[tuple[int, int]]:
    """Trace back from the last step which steps led to *wanted* members on *nodes* nodes."""
    chosen: list[tuple[int, int]] = []
    used: set[int] = set()
    for place, count, better in reversed(steps):
        if place not in used and count <= wanted and nodes and better[nodes - 1, wanted - count]:
            chosen.append((place, count))
            used.add(place)
            nodes, wanted = nodes - 1, wanted - count
            if not wanted:
                break
    assert not wanted, "every cost comes from a step"
    return chosen


def _first(groups: Ints, *keys: Ints) -> int:
    """The group with the smallest keys; the first key counts most."""
    return int(groups[np.lexsort([key[groups] for key in reversed(keys)])[0]])
