"""The fewest nodes of each domain that have room for some members, for all domains at once."""

import numpy as np

from linkwise.extender.cache.node_table import Ints
from linkwise.extender.cache.topology_domains import NO_DOMAIN


def fewest_nodes(domains: Ints, most: Ints, fewest: Ints, wanted: int) -> tuple[Ints, Ints]:
    """The domains with room for *wanted* members, and the number of nodes that each needs.

    *domains*, *most* and *fewest* are [candidates]. The nodes with most room count first, but for
    those whose *fewest* members would be too many beside those of the nodes before.
    """
    inside = np.flatnonzero((most > 0) & (domains != NO_DOMAIN))
    numbers, of = _numbered(domains[inside])
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


def _numbered(domains: Ints) -> tuple[Ints, Ints]:
    """`np.unique` with inverse, without a sort."""
    there = np.zeros(int(domains.max(initial=-1)) + 1, dtype=np.bool_)
    there[domains] = True
    place: Ints = np.cumsum(there) - 1
    return np.flatnonzero(there), place[domains]


def _running(numbers: Ints, of: Ints, starts: Ints) -> Ints:
    """The cumulative sums within each group."""
    sums = np.cumsum(numbers)
    before: Ints = (sums[starts] - numbers[starts])[of] if len(of) else sums
    return sums - before
