"""The fewest nodes of a domain, and the fewest domains of each level, that have room for some
members.

Fewer at a wider level count first. The packing fills the roomiest domains first. That is not always
best: two spines with room for 10 members may have them on 2 leaves, or on 10.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from linkwise.extender.place.search.candidates import joined
from linkwise.extender.state.cache.node_table import NO_DOMAIN, Bools, Ints


def fewest_nodes(domains: Ints, most: Ints, fewest: Ints, wanted: int) -> tuple[Ints, Ints]:
    """The domains with room for *wanted* members, and the number of nodes that each needs.

    *domains*, *most* and *fewest* are [candidates]. The nodes with most room count first, except
    those whose *fewest* members would be too many beside those of the nodes before.
    """
    inside = np.flatnonzero((most > 0) & (domains != NO_DOMAIN))
    numbers, of = numbered(domains[inside])
    by_room = np.lexsort((fewest[inside], -most[inside], of))
    of, room, least = of[by_room], most[inside][by_room], fewest[inside][by_room]
    starts = np.searchsorted(of, np.arange(len(numbers)))
    rooms, leasts = _running(room, of, starts), _running(least, of, starts)
    total = np.zeros(len(numbers), dtype=np.int64)
    np.maximum.at(total, of, rooms)
    nodes = np.bincount(of, rooms < wanted, minlength=len(numbers)).astype(np.int64) + 1
    able = total >= wanted
    last = np.minimum(starts + nodes - 1, len(of) - 1)
    ends = np.append(starts[1:], len(of))
    for domain in np.flatnonzero(able & (leasts[last] > wanted)).tolist():
        among = slice(starts[domain], ends[domain])
        needed = _without_too_many(room[among].tolist(), least[among].tolist(), wanted)
        able[domain], nodes[domain] = needed > 0, needed
    return numbers[able], nodes[able]


def _without_too_many(most: list[int], fewest: list[int], wanted: int) -> int:
    """How many nodes take *wanted* members, if each that would make them too many is left out; 0 if
    the others have too little room."""
    nodes = room = least = 0
    for its_most, its_fewest in zip(most, fewest, strict=True):
        if least + its_fewest <= wanted:
            nodes, room, least = nodes + 1, room + its_most, least + its_fewest
            if room >= wanted:
                return nodes
    return 0


def numbered(domains: Ints) -> tuple[Ints, Ints]:
    """`np.unique` of numbers from 0 on, with inverse, without a sort."""
    there = np.zeros(int(domains.max(initial=-1)) + 1, dtype=np.bool_)
    there[domains] = True
    place: Ints = np.cumsum(there) - 1
    return np.flatnonzero(there), place[domains]


def _running(numbers: Ints, of: Ints, starts: Ints) -> Ints:
    """The cumulative sums within each group."""
    sums = np.cumsum(numbers)
    before: Ints = (sums[starts] - numbers[starts])[of] if len(of) else sums
    return sums - before


_MOST_WORK = 100_000  # members times the sizes of shares among which `fewest_domains` chooses
_NONE = np.iinfo(np.int64).max // 2  # a cost at which there is no room


def at_least(
    domains: Ints, levels: Sequence[Ints], room: Ints, wanted: int, nodes: int = 1
) -> Sequence[Ints]:
    """For each of the *levels* and each of the *domains*, the fewest nearer domains that *wanted*
    members on *nodes* nodes or more can be in, looked at each level by itself.

    *domains*, *levels* and *room* are [candidates] with room. Each domain has room for all, and on
    no fewer nodes.
    """
    if not levels:
        return ()
    if nodes > 1:
        useful = _useful(domains, room, wanted, nodes)
        domains, room, levels = domains[useful], room[useful], [level[useful] for level in levels]
    found = []
    for level in levels:
        parts, which = numbered(level)
        first = np.zeros(len(parts), dtype=np.int64)
        first[which] = np.arange(len(which))
        if (domains[first][which] != domains).any():  # it is not nested in them
            _, first, which = np.unique(
                joined(domains, level), return_index=True, return_inverse=True
            )
        counts, rooms = np.bincount(which), np.bincount(which, room).astype(np.int64)
        by_nodes, by_room = (
            fewest_nodes(domains[first], most, np.zeros_like(most), least)[1]
            for most, least in ((counts, nodes), (rooms, wanted))
        )
        found.append(np.maximum(by_nodes, by_room))
    return found


def _useful(domains: Ints, room: Ints, wanted: int, nodes: int) -> Bools:
    """[candidates] whether the node has room enough to be one of *nodes* of its domain that take
    *wanted* members."""
    if room.min() == room.max():
        return np.ones(len(room), dtype=np.bool_)
    numbers, of = numbered(domains)
    by_room = np.lexsort((-room, of))
    starts = np.searchsorted(of[by_room], np.arange(len(numbers)))
    place = np.arange(len(by_room)) - starts[of[by_room]]
    others = np.bincount(of[by_room], room[by_room] * (place < nodes - 1), minlength=len(numbers))
    useful: Bools = room >= wanted - others[of]
    return useful


def fewest_domains(
    levels: Sequence[Ints], is_new: Sequence[Bools], room: Ints, wanted: int, nodes: int
) -> Ints | None:
    """The candidates in the fewest domains with room for *wanted* members on *nodes* nodes, no
    fewer of which have so much; None if that would take too long.

    *levels* [candidates] are the domains, the widest level first; *is_new* [candidates] is false
    where a domain costs nothing, as the gang is there already.
    """
    useful = np.flatnonzero((room > 0) & _useful(np.zeros_like(room), room, wanted, nodes))
    alike = bool(room[useful].min() == room[useful].max())
    if alike:  # then nodes need not be counted, and only whole domains are worth a look
        room, wanted = np.minimum(room, 1), nodes
    shares = len(np.unique(levels[-1][useful])) if alike else len(useful)
    if shares * wanted > _MOST_WORK or (nodes + 1) ** (len(levels) + 1) >= _NONE:
        return None
    knapsack = _Knapsack(levels, is_new, room, wanted, nodes, alike=alike)
    return np.sort(np.concatenate([*knapsack.shares(useful, 0).chosen(wanted)]))


@dataclass(frozen=True, slots=True)
class _Shares:
    """What nodes or domains can take: members, ascending, and what the cheapest choice for so many
    costs. *chosen* has the candidates of that choice's nearest domains."""

    sizes: Ints
    costs: Ints
    chosen: Callable[[int], Iterator[Ints]]


class _Knapsack:
    """The cheapest choice for 0, 1 … members, from the nearest domains up. A cost is a number whose
    digits are the nodes, where these are counted, and the domains of each level, the widest first.
    """

    def __init__(
        self,
        levels: Sequence[Ints],
        is_new: Sequence[Bools],
        room: Ints,
        wanted: int,
        nodes: int,
        *,
        alike: bool,
    ) -> None:
        """*alike*: each candidate has room for one member."""
        self._levels, self._is_new, self._room = levels, is_new, room
        self._wanted, self._nodes, self._alike = wanted, nodes, alike

    def shares(self, inside: Ints, depth: int) -> _Shares:
        """Of the candidates *inside* one domain of the level above *depth*."""
        if depth == len(self._levels):
            return self._of_nodes(inside)
        of = self._levels[depth][inside]
        parts = [inside[of == domain] for domain in np.unique(of)]
        # Of equals the first are chosen: those near the gang, then the tightest.
        is_new, room = self._is_new[depth], self._room
        parts.sort(key=lambda part: (bool(is_new[part[0]]), int(room[part].sum())))
        if self._alike and depth == len(self._levels) - 1 and is_new[inside].all():
            return _roomiest_first(parts)
        return self._of_parts(parts, depth)

    def _of_nodes(self, inside: Ints) -> _Shares:
        sizes = np.cumsum(-np.sort(-self._room[inside])[: self._nodes])
        costs = self._digit(-1) * np.arange(1, len(sizes) + 1)
        if self._alike:
            sizes, costs = sizes[-1:], np.zeros(1, dtype=np.int64)
        return _Shares(sizes, costs, lambda _: iter((inside,)))

    def _of_parts(self, parts: Sequence[Ints], depth: int) -> _Shares:
        every = np.arange(self._wanted + 1)
        least = np.where(every > 0, _NONE, 0)
        steps: list[tuple[_Shares, Ints]] = []
        for part in parts:
            share = self.shares(part, depth + 1)
            own = self._digit(depth) if self._is_new[depth][part[0]] else 0
            rest = np.maximum(every - share.sizes[:, np.newaxis], 0)
            costs = least[rest] + (share.costs + own)[:, np.newaxis]
            best = costs.argmin(axis=0)
            better = (cost := costs[best, every]) < least
            least = np.where(better, cost, least)
            steps.append((share, np.where(better, share.sizes[best], 0)))

        def chosen(members: int) -> Iterator[Ints]:
            for share, taken in reversed(steps):
                if size := int(taken[members]):
                    yield from share.chosen(min(size, members))
                    members = max(members - size, 0)

        last = (np.diff(least, append=_NONE + 1) > 0) & (least < _NONE) & (every > 0)
        return _Shares(every[last], least[last], chosen)

    def _digit(self, depth: int) -> int:
        """The cost of a domain at *depth*; at -1, of a node."""
        place: int = (self._nodes + 1) ** (len(self._levels) - 1 - depth)
        return place


def _roomiest_first(parts: Sequence[Ints]) -> _Shares:
    """Of domains that cost 1 each and have room for one member on each candidate, sorted by size:
    the largest, and last the smallest that suffices."""
    sizes = np.cumsum([len(part) for part in reversed(parts)])

    def chosen(members: int) -> Iterator[Ints]:
        count = int(np.searchsorted(sizes, members))
        yield from parts[len(parts) - count :]
        rest = members - (int(sizes[count - 1]) if count else 0)
        yield next(part for part in parts if len(part) >= rest)

    return _Shares(sizes, np.arange(1, len(parts) + 1), chosen)
