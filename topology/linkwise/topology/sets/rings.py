"""Rings through GPUs: how fast the best one is, and how many disjoint ones there are.

An all-reduce runs along rings that pass every GPU once (Hamiltonian cycles). A ring is as fast as
its slowest hop. Several rings add up if no two of them use the same NVLink. This is a plain search
over one set; `tables.py` does the same for all sets of a machine at once.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations

MOST_GPUS = 8
"""Disjoint rings are counted exactly for up to this many GPUs joined by NVLinks."""

MOST_LINKS = 18
"""NVLinks of the chip with the most so far (Hopper, Blackwell)."""

_MOST_STEPS = 10_000  # for one number of rings; recorded machines need a few dozen
_MOST_STEPS_ONE_WAY = 2_500  # there are twice the rings of twice the edges; a mesh of 8 needs 1,489

Counts = tuple[tuple[int, ...], ...]


def best_bottleneck(hops: Sequence[Sequence[float]]) -> float:
    """Return the slowest hop of the best ring through all points of a symmetric matrix of hops.

    One point: 0. Two points: the hop between them. At most 2^(n-1) n steps per distinct hop.
    """
    if len(hops) < 2:
        return 0.0
    speeds = sorted({hop for row, hop in _upper(hops)}, reverse=True)
    return next(speed for speed in speeds if _has_ring(hops, speed))


def _upper(matrix: Sequence[Sequence[float]]) -> Iterator[tuple[tuple[int, int], float]]:
    for first, second in combinations(range(len(matrix)), 2):
        yield (first, second), matrix[first][second]


def _has_ring(hops: Sequence[Sequence[float]], least: float) -> bool:
    """True if some ring has no hop below *least*: paths from point 0, by the set they have
    passed."""
    count = len(hops)
    near = [
        sum(1 << b for b in range(count) if b != a and hops[a][b] >= least) for a in range(count)
    ]
    ends = [0] * (1 << count)  # points passed -> where a path through just these can end
    ends[1] = 1
    for passed in range(1, 1 << count, 2):
        if ends[passed]:
            for point in range(1, count):
                if not passed >> point & 1 and ends[passed] & near[point]:
                    ends[passed | 1 << point] |= 1 << point
    return bool(ends[-1] & near[0])


@lru_cache(maxsize=4096)
def disjoint_rings(links: Counts) -> int:
    """Return how many rings fit through all points of a symmetric matrix of link counts, with no
    link used twice.

    The result is reachable, and at least the narrowest hop of the best ring, which repeats that
    ring. It is the maximum for up to `MOST_GPUS` points of `MOST_LINKS` links if the search ends
    within its steps, as it does on every known machine. Beyond that, nothing more is searched.
    """
    return 0 if len(links) < 3 else _most(links, int(best_bottleneck(links)), one_way=False)


@lru_cache(maxsize=4096)
def one_way_rings(links: Counts) -> int:
    """Return how many rings fit if each has a direction, and no link is used twice in one
    direction: at least twice the `disjoint_rings`, each both ways round. Bounds as there."""
    return _most(links, 2 * disjoint_rings(links), one_way=True)


def _most(links: Counts, certain: int, *, one_way: bool) -> int:
    if certain == 0 or len(links) > MOST_GPUS or max(map(sum, links)) > MOST_LINKS:
        return certain
    search = _Search(links, one_way=one_way)
    for wanted in range(search.most(), certain, -1):
        if search.fits(wanted):
            return wanted
    return certain


class _Search:
    """Searches for rings that share no link, or no direction of a link if they are *one_way*.

    An edge, or a direction of one, is a digit of the number that says how many links each has left:
    taking a ring is one subtraction.
    """

    def __init__(self, links: Counts, *, one_way: bool) -> None:
        self._pairs = [edge for edge, count in _upper(links) if count]
        self._edges = self._pairs + [(b, a) for a, b in self._pairs if one_way]
        digit = {edge: position * _DIGIT for position, edge in enumerate(self._edges)}
        self._left = sum(links[a][b] << digit[a, b] for a, b in self._edges)
        self._links, self._one_way = links, one_way
        self._with: dict[int, list[int]] = {shift: [] for shift in digit.values()}
        for ring in _rings(links, one_way=one_way):
            hops = zip(ring, ring[1:] + ring[:1], strict=True)
            shifts = [digit[hop if one_way else (min(hop), max(hop))] for hop in hops]
            for shift in shifts:
                self._with[shift].append(sum(1 << other for other in shifts))
        self._most_steps = _MOST_STEPS_ONE_WAY if one_way else _MOST_STEPS
        self._steps = 0
        self._dead_ends: set[tuple[int, int]] = set()

    def most(self) -> int:
        """Return an upper bound: every ring crosses every cut once each way."""
        sides = range(1, 1 << (len(self._links) - 1))
        return min(map(self._crossing, sides)) // (1 if self._one_way else 2)

    def _crossing(self, side: int) -> int:
        return sum(self._links[a][b] for a, b in self._pairs if (side >> a & 1) != (side >> b & 1))

    def fits(self, wanted: int) -> bool:
        self._steps = 0
        each = 1 if self._one_way else 2
        spare = [sum(row) - each * wanted for row in self._links]
        return self._fits(wanted, self._left, spare * 2 if self._one_way else spare)

    def _ends(self, edge: tuple[int, int]) -> tuple[int, int]:
        """The places in `spare` of the edge's ends. With directions, each point leaves from one
        place, and is reached at another."""
        return (edge[0], edge[1] + len(self._links)) if self._one_way else edge

    def _fits(self, wanted: int, left: int, spare: list[int]) -> bool:
        """Return whether *wanted* rings fit.

        *spare* is what each point has beyond the links for the rings wanted, and a ring does not
        change it. So try the first link of the scarcest point: a ring takes it, or none does.
        """
        if wanted == 0:
            return True
        self._steps += 1
        if min(spare) < 0 or (wanted, left) in self._dead_ends or self._steps > self._most_steps:
            return False
        scarcest = spare.index(min(spare))
        first, ends = next(
            (position * _DIGIT, ends)
            for position, edge in enumerate(self._edges)
            if scarcest in (ends := self._ends(edge)) and left >> position * _DIGIT & _DIGIT_MASK
        )
        present = _digits_above_zero(left, len(self._edges))
        for ring in self._with[first]:
            if ring & ~present == 0 and self._fits(wanted - 1, left - ring, spare):
                return True
        less = [n - (place in ends) for place, n in enumerate(spare)]
        if self._fits(wanted, left - (1 << first), less):
            return True
        self._dead_ends.add((wanted, left))
        return False


_DIGIT = 6  # bits: room for the model's 36 NVLinks of a pair
_DIGIT_MASK = (1 << _DIGIT) - 1


def _digits_above_zero(number: int, digits: int) -> int:
    """Return 1 in every digit of *number* that is not 0."""
    return sum(
        1 << shift for shift in range(0, digits * _DIGIT, _DIGIT) if number >> shift & _DIGIT_MASK
    )


def _rings(links: Counts, *, one_way: bool) -> Iterator[tuple[int, ...]]:
    """Yield every ring through all points once: from point 0, towards its lower neighbour first, or
    both ways round."""
    count = len(links)

    def extend(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(path) == count:
            if links[path[-1]][0] and (one_way or path[1] < path[-1]):
                yield path
            return
        for point in range(1, count):
            if links[path[-1]][point] and point not in path:
                yield from extend((*path, point))

    return extend((0,))
