"""Places the members of a gang that are all alike: on one node, or in a domain at some level.

At each level, arrays compare all domains at once. The highest possible worth of the communicator
wins; worths within the tolerance are equal. Among equals, GPUs of one model, then `OF_ASSIGNMENTS`.
"""

from collections.abc import Iterator, Sequence
from itertools import islice, product
from operator import itemgetter

import numpy as np

from linkwise.extender.place.cluster_view import Counts, domain_counts
from linkwise.extender.place.communicator import (
    APART,
    ONE_NODE,
    TOLERANCE,
    Reach,
    Standard,
    reach_of,
)
from linkwise.extender.place.request import PodSet
from linkwise.extender.place.search.candidates import (
    AssignedPart,
    Assignment,
    Candidates,
    Scope,
    best_of,
    joined,
)
from linkwise.extender.place.search.domain_packing import Near, NodePacking
from linkwise.extender.place.search.fewest_domains import at_least, fewest_nodes
from linkwise.extender.state.cache.node_table import NO_DOMAIN, Ints

_ANYTHING = Standard()
_DomainOrder = tuple[Counts, int, int]
_MOST_MUSTS = 64  # combinations tried if nodes with members need more members
_MOST_DOMAINS = 8  # tried if the first does not have the members on as few nearer domains as it may


class DomainSearch:
    def __init__(self, scopes: Sequence[Scope], pods: PodSet, *, apart: bool = False) -> None:
        """*scopes* are limited to one GPU model each; the last one allows any. *apart*: each member
        is a communicator of its own."""
        self._scopes, self._pods, self._apart = scopes, pods, apart
        placed = scopes[0].placed
        self._near = Near(scopes[0].placed_rows, np.array(placed.next_to, dtype=np.int64))

    def within(self, domains: Ints) -> Assignment | None:
        """The best assignment within one of these domains [rows]; None if none has room."""
        places = [place for scope in self._scopes for place in self._places(scope, domains)]
        below = np.inf
        while True:
            best, worths = _best_worths(places, below)
            if best == -np.inf:
                return None
            least = best - TOLERANCE * best
            equal = [place for place in places if worths.get(place, -np.inf) >= least]
            for mixes in (False, True):
                of_models = (place.assign(least) for place in equal if place.mixes is mixes)
                found = [each for each in of_models if each is not None]
                if found:
                    return best_of(found)
            below = least  # at this worth there is room only for more members, or for fewer

    def _places(self, scope: Scope, domains: Ints) -> Iterator["_Place"]:
        """The level of single nodes, then the other levels from the nearest to the widest."""
        pool = scope.candidates(self._pods, domains != NO_DOMAIN)
        if pool.most < pool.wanted:
            return  # there are too few GPUs, so no search for sets is needed
        levels = scope.view.levels
        if len(scope.placed_rows) <= 1:
            own = np.where(domains == NO_DOMAIN, NO_DOMAIN, np.arange(len(domains)))
            one_node = scope.with_placed(own)
            yield _Place(pool, one_node, self._reach(ONE_NODE), 0, scope, self._near)
        if pool.wanted == 1 and not len(scope.placed_rows):
            return
        keys = [level.key for level in levels]
        for number, level in enumerate(levels):
            nearer = scope.with_placed(joined(domains, level.apart))
            reach = self._reach(reach_of(keys, number))
            yield _Place(pool, nearer, reach, number + 1, scope, self._near)
        reach = self._reach(reach_of(keys, len(keys)))
        yield _Place(pool, domains, reach, len(levels) + 1, scope, self._near)

    def _reach(self, reach: Reach) -> Reach:
        return APART if self._apart else reach


def _best_worths(places: Sequence["_Place"], below: float) -> tuple[float, dict["_Place", float]]:
    """The highest worth under *below* of all places, and the worths of those that may reach it
    within the tolerance."""
    bounds = {place: place.bound(below) for place in places}
    best, worths = -np.inf, dict["_Place", float]()
    for place in sorted(places, key=bounds.__getitem__, reverse=True):
        if bounds[place] < best - TOLERANCE * abs(best):
            break
        worths[place] = place.best_worth(below)
        best = max(best, worths[place])
    return best, worths


class _Place:
    """The domains of one level; one of them must hold all members."""

    def __init__(
        self, pool: Candidates, domains: Ints, reach: Reach, level: int, scope: Scope, near: Near
    ) -> None:
        """*domains* [rows]; at *level* 0 each node is a domain."""
        self._pool, self._reach, self.level = pool, reach, level
        self._domains, self._of = domains, domains[pool.rows]
        self._scope, self._near, self.mixes = scope, near, scope.mixes
        self._nearer = scope.view.levels[: max(level - 1, 0)]
        # The worth that nodes with members of the gang allow: with the gang's GPUs there as they
        # are, and with the best GPUs added.
        self._as_it_is = scope.placed_worths(pool.prefer, reach) if level else {}
        added = {row: pool.best_worth(row, reach) for row in self._as_it_is}
        most = min(
            (max(worth, added[row]) for row, worth in self._as_it_is.items()), default=np.inf
        )
        worths = {*pool.standards(reach, _ANYTHING)[0], *self._as_it_is.values()}
        self._worths = sorted((worth for worth in worths if worth <= most), reverse=True)
        self._rooms: dict[tuple[Standard, bool], tuple[Ints, Ints]] = {}

    def bound(self, below: float) -> float:
        """`best_worth` is not higher than this."""
        return next((worth for worth in self._worths if worth < below), -np.inf)

    def best_worth(self, below: float) -> float:
        """The highest worth under *below* at which all members have room; -inf if there is none."""
        found = self._highest([Standard(worth) for worth in self._worths if worth < below])
        return -np.inf if found is None else found.worth

    def assign(self, least: float) -> Assignment | None:
        """Sets for all members with which the communicator's worth is at least *least*."""
        owns = self._pool.standards(self._reach, Standard(least))[1]
        standard = self._highest([Standard(least, own) for own in owns])
        if standard is None:
            return None
        if not self.level:
            return self._on_one_node(standard)
        found = []
        for must in self._musts(standard):
            chosen = self._chosen(standard, must)
            if chosen is not None:
                found.append(self._assignment(standard, chosen))
        return best_of(found) if found else None

    def _chosen(
        self, standard: Standard, must: Sequence[tuple[int, int]]
    ) -> list[tuple[int, int]] | None:
        """(candidate, members there) for all members, including those in *must*."""
        wanted = self._pool.wanted - sum(count for _, count in must)
        most, fewest = self._pool.room_at(self._reach, standard, wanted)
        most[[place for place, _ in must]] = 0
        packing = NodePacking(self._pool, most, self._nearer, self._near, self._reach, standard)
        if not wanted:
            return packing.choose(np.zeros(0, dtype=np.int64), 0, 0, must)
        able, nodes = fewest_nodes(self._of, most, fewest, wanted) if must else self._room(standard)
        for count in np.unique(nodes).tolist():
            found: list[tuple[_DomainOrder, list[tuple[int, int]]]] = []
            for order, domain in self._best_first(able[nodes == count], most, wanted, count):
                if found and (found[0][0] <= order or len(found) == _MOST_DOMAINS):
                    break
                among = np.flatnonzero((self._of == domain) & (most > 0))
                chosen = packing.choose(among, wanted, count, must, order[0])
                if chosen is not None:
                    found.append(((packing.domains(chosen), *order[1:]), chosen))
                    found.sort(key=itemgetter(0))
            if found:
                return found[0][1]
        return None

    def _musts(self, standard: Standard) -> Iterator[tuple[tuple[int, int], ...]]:
        """The possible members on nodes that have members already and reach *standard* only with
        more GPUs."""
        rows = [row for row, worth in self._as_it_is.items() if worth < standard.worth]
        places = np.flatnonzero(np.isin(self._pool.rows, rows))
        if len(places) < len(rows):
            return
        counts = [
            self._pool.counts_of(self._reach, standard, int(alike))
            for alike in self._pool.alike(places)
        ]
        for each in islice(product(*counts), _MOST_MUSTS):
            if sum(each) <= self._pool.wanted:
                yield tuple(zip(places.tolist(), each, strict=True))

    def _highest(self, standards: list[Standard]) -> Standard | None:
        """The first of *standards*, given best first, at which some domain has room for all."""
        if standards and self._has_room(standards[0], whole=True):
            return standards[0]  # as on an idle cluster
        low, high = min(1, len(standards)), len(standards)
        while low < high:  # room at one standard is room at all lower ones, except for *fewest*
            middle = (low + high) // 2
            if self._has_room(standards[middle], whole=False):
                high = middle
            else:
                low = middle + 1
        return next((each for each in standards[low:] if self._has_room(each, whole=True)), None)

    def _has_room(self, standard: Standard, *, whole: bool) -> bool:
        if not self.level:
            able = self._pool.can_take(self._reach, standard, self._pool.wanted)
            return bool((self._of[able] != NO_DOMAIN).any())
        if next(self._musts(standard), None) is None:
            return False
        return bool(len(self._room(standard, whole=whole)[0]))

    def _room(self, standard: Standard, *, whole: bool = True) -> tuple[Ints, Ints]:
        """`fewest_nodes` for all members. With *whole*, a domain needs a use for the members that
        its nodes take at least."""
        most, fewest = self._pool.room_at(self._reach, standard, self._pool.wanted)
        if int(fewest.max(initial=0)) <= 1:  # then no node takes more members than it should
            whole = False
        known = self._rooms.get((standard, whole))
        if known is None:
            least = fewest if whole else np.zeros_like(most)
            known = fewest_nodes(self._of, most, least, self._pool.wanted)
            self._rooms[standard, whole] = known
        return known

    def _on_one_node(self, standard: Standard) -> Assignment | None:
        pool = self._pool
        able = pool.can_take(self._reach, standard, pool.wanted)
        able = able[self._of[able] != NO_DOMAIN]
        counts = np.full(len(able), pool.wanted)
        damage = pool.damage(able, counts, self._reach, standard)
        best = pool.first(able, [damage])
        return None if best is None else self._assignment(standard, [(best, pool.wanted)])

    def _assignment(self, standard: Standard, chosen: list[tuple[int, int]]) -> Assignment:
        pool, reach = self._pool, self._reach
        parts = tuple(
            AssignedPart(int(pool.rows[place]), 0, pool.sets(place, count, reach, standard))
            for place, count in chosen
        )
        places = np.array([place for place, _ in chosen])
        counts = np.array([count for _, count in chosen])
        damage = float(pool.damage(places, counts, reach, standard).sum())
        worth = min(
            pool.worth(place, sum(part.sets), reach)
            for (place, _), part in zip(chosen, parts, strict=True)
        )
        rows = [*pool.rows[places], *self._scope.placed_rows]
        domains = domain_counts(self._nearer, rows)
        return Assignment(
            parts, min(worth, self._of_others(places)), standard.own, damage, self.level, domains
        )

    def _of_others(self, places: Ints) -> float:
        """The worth that nodes allow where the gang has GPUs and gets no more."""
        used = set(self._pool.rows[places].tolist())
        worths = (worth for row, worth in self._as_it_is.items() if row not in used)
        return min(worths, default=np.inf)

    def _best_first(
        self, able: Ints, room: Ints, wanted: int, nodes: int
    ) -> Iterator[tuple[_DomainOrder, int]]:
        """The domains *able*, with their order: those that need the fewest nearer domains first, as
        far as each level tells by itself; then the fullest, so that free domains stay whole; then
        by the names of their nodes."""
        inside = np.flatnonzero(np.isin(self._of, able) & (room > 0))
        numbers, of = np.unique(self._of[inside], return_inverse=True)
        total = np.bincount(of, room[inside])
        ranks = np.full(len(numbers), int(self._pool.ranks.max()))
        np.minimum.at(ranks, of, self._pool.ranks[inside])
        rows = self._pool.rows[inside]
        levels = [level.apart[rows] for level in reversed(self._nearer)]
        least = at_least(of, levels, room[inside], wanted, nodes)
        for place in np.lexsort((ranks, total, *reversed(least))).tolist():
            counts = tuple(int(count[place]) for count in least)
            yield (counts, int(total[place]), int(ranks[place])), int(numbers[place])
