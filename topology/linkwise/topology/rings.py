"""Rings through GPUs: how good the best one is, and how many fit beside each other.

An all-reduce runs along rings that pass every GPU once (Hamiltonian cycles). A ring is as fast as
its slowest hop, and several rings add up as long as no two of them use the same NVLink.
Plain search over one set; `tables.py` does the same for all sets of a machine at once.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations

MOST_GPUS = 8
"""Up to so many GPUs joined by NVLinks, disjoint rings are counted exactly."""

_MOST_STEPS = 20_000  # of one search; the recorded machines need a few dozen

Counts = tuple[tuple[int, ...], ...]


def best_bottleneck(hops: Sequence[Sequence[float]]) -> float:
    """The slowest hop of the best ring through all points of a symmetric matrix of hops.

    Of one or two points: 0, or the hop between them. At most 2^(n-1) n steps per distinct hop.
    """
    if len(hops) < 2:
        return 0.0
    speeds = sorted({hop for row, hop in _upper(hops)}, reverse=True)
    return next(speed for speed in speeds if _has_ring(hops, speed))


def _upper(matrix: Sequence[Sequence[float]]) -> Iterator[tuple[tuple[int, int], float]]:
    for first, second in combinations(range(len(matrix)), 2):
        yield (first, second), matrix[first][second]


def _has_ring(hops: Sequence[Sequence[float]], least: float) -> bool:
    """Whether a ring has no hop below *least*: paths from point 0, by the set they have passed."""
    count = len(hops)
    near = [
        sum(1 << b for b in range(count) if b != a and hops[a][b] >= least) for a in range(count)
    ]
    ends = [0] * (1 << count)  # points passed -> where a path that passed just these can end
    ends[1] = 1
    for passed in range(1, 1 << count, 2):
        if ends[passed]:
            for point in range(1, count):
                if not passed >> point & 1 and ends[passed] & near[point]:
                    ends[passed | 1 << point] |= 1 << point
    return bool(ends[-1] & near[0])


@lru_cache(maxsize=4096)
def disjoint_rings(links: Counts) -> int:
    """How many rings fit through all points of a symmetric matrix of link counts, no link twice.

    Exact up to `MOST_GPUS` points, unless the search takes more steps than any machine known needs;
    then, and for more points, the best that was found: at least the narrowest hop of the best ring.
    """
    if len(links) < 3:
        return 0
    certain = int(best_bottleneck(links))
    if certain == 0 or len(links) > MOST_GPUS:
        return certain
    search = _Search(links)
    for wanted in range(search.most(), certain, -1):
        if search.fits(wanted):
            return wanted
    return certain


class _Search:
    """Looks for edge-disjoint rings. An edge is a position in the upper triangle, by rows."""

    def __init__(self, links: Counts) -> None:
        self._count = len(links)
        edges = list(combinations(range(self._count), 2))
        self._left = tuple(links[a][b] for a, b in edges)
        self._at = [[e for e, ends in enumerate(edges) if v in ends] for v in range(self._count)]
        number = {edge: position for position, edge in enumerate(edges)}
        self._cuts = [
            [e for e, (a, b) in enumerate(edges) if (side >> a & 1) != (side >> b & 1)]
            for side in range(1, 1 << (self._count - 1))
        ]
        self._rings = [
            frozenset(
                number[min(a, b), max(a, b)] for a, b in zip(ring, ring[1:] + ring[:1], strict=True)
            )
            for ring in _rings(links)
        ]
        self._dead_ends: set[tuple[int, tuple[int, ...]]] = set()
        self._steps = 0

    def most(self) -> int:
        """No more rings than this can fit: every ring crosses every cut at least twice."""
        return min(sum(self._left[edge] for edge in cut) // 2 for cut in self._cuts)

    def fits(self, wanted: int) -> bool:
        self._steps = 0
        return self._fits(wanted, self._left)

    def _fits(self, wanted: int, left: tuple[int, ...]) -> bool:
        """Every ring needs two links at each point, so look at the scarcest point's first link:
        either a ring uses it, or it stays unused."""
        if wanted == 0:
            return True
        self._steps += 1
        if (wanted, left) in self._dead_ends or self._steps > _MOST_STEPS:
            return False
        if any(sum(left[edge] for edge in cut) < 2 * wanted for cut in self._cuts):
            return False
        scarcest = min(self._at, key=lambda edges: sum(left[edge] for edge in edges))
        first = next(edge for edge in scarcest if left[edge])
        for ring in self._rings:
            if first in ring and all(left[edge] for edge in ring):
                rest = tuple(n - (edge in ring) for edge, n in enumerate(left))
                if self._fits(wanted - 1, rest):
                    return True
        without = tuple(n - (edge == first) for edge, n in enumerate(left))
        if self._fits(wanted, without):
            return True
        self._dead_ends.add((wanted, left))
        return False


def _rings(links: Counts) -> Iterator[tuple[int, ...]]:
    """Every ring through all points, each once: from point 0, towards its lower neighbour first."""
    count = len(links)

    def extend(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(path) == count:
            if links[path[-1]][0] and path[1] < path[-1]:
                yield path
            return
        for point in range(1, count):
            if links[path[-1]][point] and point not in path:
                yield from extend((*path, point))

    return extend((0,))
